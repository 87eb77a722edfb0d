"""A request that nobody answers is seen: how old it is, and that it expired."""

import time
from collections.abc import AsyncIterator

import pytest
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry

from libs.bus.connect import BusConnection, close, connect
from libs.bus.streams import provision
from libs.service.unanswered import Unanswered
from schemas.subjects import REQUESTS, cancel, set_quota
from tests.kit.background import ServerInBackground
from tests.kit.waiting import until

KEPT_S = 4.0
"""Time for a look at what is about to expire."""


@pytest.fixture
async def js(own_server: ServerInBackground) -> AsyncIterator[JetStreamContext]:
    nats: BusConnection = await connect(own_server.url, name="test")
    js = nats.jetstream()
    await provision(js, ["p"], scale=0.001)
    yield js
    await close(nats)


async def ask(js: JetStreamContext, count: int) -> None:
    for _ in range(count):
        await js.publish(cancel("research", "ana"), b"x")


async def answer(js: JetStreamContext, count: int) -> None:
    consumer = await js.pull_subscribe_bind(consumer="admission", stream=REQUESTS)
    for message in await consumer.fetch(count, timeout=30):
        await message.ack_sync()
    await consumer.unsubscribe()


class Seen:
    def __init__(self, js: JetStreamContext, look_s: float = 0.2) -> None:
        self.registry = CollectorRegistry()
        self.watch = Unanswered(js, "p", self.registry, look_s=look_s)

    def oldest(self, consumer: str = "admission") -> float | None:
        return self.registry.get_sample_value("baton_requests_oldest_seconds", {"consumer": consumer})

    def expired(self, consumer: str = "admission") -> float:
        return self.registry.get_sample_value("baton_requests_expired_total", {"consumer": consumer}) or 0.0


async def test_the_age_is_that_of_the_oldest_request_without_an_answer(js: JetStreamContext) -> None:
    seen = Seen(js)
    await seen.watch.look()
    assert (seen.oldest(), seen.oldest("quota_billing-p")) == (0.0, 0.0), "nothing was asked"
    await ask(js, 3)
    await seen.watch.look()
    first = seen.oldest()
    assert first is not None
    assert first > 0
    await seen.watch.look()
    assert (seen.oldest() or 0) > first
    assert seen.oldest("quota_billing-p") == 0.0, "it is for the other to answer"
    await answer(js, 3)
    await seen.watch.look()
    assert seen.oldest() == 0.0


async def test_what_expires_without_an_answer_is_counted_and_what_was_answered_is_not(js: JetStreamContext) -> None:
    seen, began = Seen(js, look_s=60), time.time()
    await ask(js, 5)
    await js.publish(set_quota("p", "ana"), b"x")
    await answer(js, 2)
    config = (await js.stream_info(REQUESTS)).config
    await js.update_stream(config.evolve(max_age=time.time() - began + KEPT_S, duplicate_window=1.0))

    async def expired() -> bool:
        """The broker takes them one after the other."""
        await seen.watch.look()
        return seen.expired() >= 3 and seen.expired("quota_billing-p") > 0

    await until(expired)
    await until(lambda: _empty(js))
    await seen.watch.look()
    assert (seen.oldest(), seen.expired(), seen.expired("quota_billing-p")) == (0.0, 3.0, 1.0)


async def _empty(js: JetStreamContext) -> bool:
    return (await js.stream_info(REQUESTS)).state.messages == 0
