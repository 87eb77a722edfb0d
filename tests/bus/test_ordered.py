"""A consumer without acknowledgements: what it hands over, what ends it, and what it leaves behind; on a real broker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from libs.bus.ordered import OrderedConsumer
from tests.kit.waiting import until
from tests.ledger.broker import Broker

STREAM = "NUMBERS"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)
    await made.start()
    yield made
    await made.kill()


class Reader:
    """Seven numbers are in the stream."""

    def __init__(self, nats: Client, after: int) -> None:
        self.taken: list[tuple[int, int]] = []  # sequence, and how many are behind it
        js = nats.jetstream()
        self.consumer = OrderedConsumer(
            js, STREAM, after, lambda told, message: self.taken.append((told.seq, told.pending)), lambda: None
        )


@pytest.fixture
async def nats(broker: Broker) -> AsyncIterator[Client]:
    connected = await broker.connect()
    js = connected.jetstream()
    await js.add_stream(name=STREAM, subjects=["number.*"])
    for n in range(7):
        await js.publish("number.even" if n % 2 else "number.odd", b"")
    yield connected
    await connected.close()


async def test_it_hands_over_what_is_behind_a_place_and_no_more_than_is_asked_for(nats: Client) -> None:
    reader = Reader(nats, after=2)
    assert await reader.consumer.open() == 5
    await reader.consumer.ask(4, held=1, max_bytes=10_000)
    await until(lambda: reader.taken == [(3, 4), (4, 3), (5, 2)])
    await reader.consumer.ask(4, held=3, max_bytes=10_000)
    assert reader.consumer._asked == 0, "there is room for one: less than half"
    await reader.consumer.ask(4, held=0, max_bytes=10_000)
    await until(lambda: [seq for seq, _ in reader.taken] == [3, 4, 5, 6, 7])
    assert not reader.consumer.broken
    await reader.consumer.close()


async def test_of_one_subject_alone(nats: Client) -> None:
    reader = Reader(nats, after=0)
    assert await reader.consumer.open(subject="number.even") == 3
    await reader.consumer.ask(10, held=0, max_bytes=10_000)
    await until(lambda: [seq for seq, _ in reader.taken] == [2, 4, 6])
    await reader.consumer.close()


async def test_a_delivery_that_is_lost_ends_it(nats: Client) -> None:
    reader = Reader(nats, after=0)
    await reader.consumer.open()
    reader.consumer._delivered = -1  # as if one had come between
    await reader.consumer.ask(10, held=0, max_bytes=10_000)
    await until(lambda: reader.consumer.broken == "delivery 0 was lost before 1")
    assert reader.taken == []
    await reader.consumer.close()


async def test_a_heartbeat_tells_of_the_last_delivery_if_that_is_lost(nats: Client) -> None:
    reader = Reader(nats, after=7)
    await reader.consumer.open()
    reader.consumer._delivered = -1
    await reader.consumer.ask(10, held=0, max_bytes=10_000)
    await until(lambda: reader.consumer.broken == "delivery 0 was lost")
    await reader.consumer.close()


async def test_one_that_is_closed_without_a_connection_is_not_subscribed_to_again(broker: Broker, nats: Client) -> None:
    """Seen: each team's lane that broke with the connection was left subscribed for as long as admission ran."""
    reader = Reader(nats, after=0)
    await reader.consumer.open()
    await broker.kill()
    await until(lambda: not nats.is_connected)
    await reader.consumer.close()
    await broker.start()
    await until(lambda: nats.is_connected)
    reader.consumer.check(0.0)
    assert reader.consumer.broken == "closed"
    assert reader.consumer._inbox not in {subscription.subject for subscription in nats._subs.values()}
