"""A stream of requests that fills up takes small ones alone: large ones of one team leave the others their room."""

from collections.abc import AsyncIterator

import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError

from libs.bus.connect import BusConnection, close, connect
from libs.bus.messages import Outgoing
from libs.bus.outbox import is_full
from libs.bus.request_size_limit import LIFTED_BELOW, SIZE_STEPS, RequestSizeLimit, size_limit_at
from libs.bus.streams import provision
from libs.bus.trim import fill_of
from libs.client.errors import Busy
from libs.client.sending import store
from schemas.subjects import REQUESTS, cancel, submit
from tests.kit.background import ServerInBackground

LARGE = 200_000
ANY = -1


@pytest.fixture
async def nats(own_server: ServerInBackground) -> AsyncIterator[BusConnection]:
    connection = await connect(own_server.url, name="test")
    await provision(connection.jetstream(), ["main"], scale=0.01)
    yield connection
    await close(connection)


async def flood(js: JetStreamContext, count: int) -> int:
    """Large requests of as many invented users, one after the other; how many were stored before the first was refused."""
    for number in range(count):
        try:
            await js.publish(submit("red", f"u{number}"), b"x" * LARGE)
        except APIError as refused:
            if not is_full(refused):
                raise
            return number
    return count


async def fill(js: JetStreamContext) -> float:
    return fill_of(await js.stream_info(REQUESTS))


def test_the_size_follows_how_full_it_is() -> None:
    smaller, small, first = (size for _, size in SIZE_STEPS)
    assert [size_limit_at(full, ANY) for full in (0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 1.0)] == [
        ANY, ANY, first, small, small, smaller, smaller
    ]  # fmt: skip
    assert size_limit_at(0.22, first) == first, "until there is room again"
    assert size_limit_at(0.3, small) == small
    assert size_limit_at(0.6, smaller) == smaller
    assert size_limit_at(LIFTED_BELOW - 0.01, smaller) == ANY


async def test_who_sends_large_requests_leaves_room_for_others(nats: BusConnection) -> None:
    js = nats.jetstream()
    limit = RequestSizeLimit(js)
    stored = 0
    for _ in range(20):
        stored += await flood(js, 5)
        await limit.turn()
    assert await fill(js) < 0.5, "a quarter, and what came between two looks"
    kept = (await js.stream_info(REQUESTS)).state.messages
    assert kept == stored, "what was taken stays, and is answered"
    await js.publish(submit("green", "ana"), b"x" * 8_000)

    with pytest.raises(Busy):
        await store(nats, [Outgoing(cancel("green", "ana"), b"x" * LARGE, {})], give_up_s=5)

    await js.purge_stream(REQUESTS)
    await RequestSizeLimit(js).turn()
    assert await flood(js, 3) == 3, "there is room again"


async def test_provision_leaves_it_alone(nats: BusConnection) -> None:
    js = nats.jetstream()
    await flood(js, 27)
    await RequestSizeLimit(js).turn()
    narrowed = (await js.stream_info(REQUESTS)).config.max_msg_size
    await provision(js, ["main"], scale=0.02)
    assert (await js.stream_info(REQUESTS)).config.max_msg_size == narrowed == SIZE_STEPS[1][1]
