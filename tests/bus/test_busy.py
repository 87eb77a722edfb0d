"""A full stream, or a service that is busy, never makes dead letters of good messages; and its sender is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.js.errors import APIError

from libs.bus import settle
from libs.bus.connect import close, connect
from libs.bus.dead import REASON, SEQ
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox, is_full
from libs.bus.settle import NoRoom, Received, dead_letter
from libs.bus.streams import provision
from libs.bus.table import DEAD_OF_A_SENDER
from schemas.subjects import DEAD, EVENTS, REQUESTS, cancel, dead, event
from tests.bus.test_settle import Consumer
from tests.kit.background import ServerInBackground
from tests.kit.waiting import stored, until


@pytest.fixture
async def consumer(own_server: ServerInBackground) -> AsyncIterator[Consumer]:
    nats = await connect(own_server.url, name="test")
    await provision(nats.jetstream(), ["p"], scale=0.001)  # the inbox: 1 MiB
    one = Consumer(own_server.url, nats)
    yield one
    await one.stop()
    await close(nats)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "PAUSES_S", (0.01,))
    monkeypatch.setattr(settle, "CRASH_DELIVERIES", 4)


async def fill(consumer: Consumer) -> None:
    """The inbox, until nothing goes in."""
    for size in (60_000, 100):
        while True:
            try:
                await consumer.js.publish("baton.in.clock.v1.tick.p", b"x" * size)
            except APIError as refused:
                if not is_full(refused):
                    raise
                break


async def delivered(consumer: Consumer, count: int) -> None:
    await until(lambda: min(map(len, consumer.deliveries.values()), default=0) >= count)


async def test_a_full_inbox_is_waited_for_however_long_and_whoever_waits(consumer: Consumer) -> None:
    await fill(consumer)
    await consumer.send("one", "two", "three")
    await consumer.start()
    await until(lambda: len(consumer.deliveries) == 3)
    await delivered(consumer, 10)  # each refusal was a delivery: 4 of them made it a dead letter
    assert await consumer.dead() == []
    await consumer.stop()
    await consumer.start()  # another process, which has put off nothing yet
    await delivered(consumer, 15)
    assert await consumer.dead() == []
    await consumer.js.purge_stream("INBOX-p")
    assert sorted(await consumer.done()) == ["one", "three", "two"]
    assert await consumer.dead() == []


async def test_only_deliveries_that_reached_a_decision_count(consumer: Consumer) -> None:
    """A bug's three tries begin after those that were refused for want of room."""
    await fill(consumer)
    await consumer.send("poison")
    await consumer.start()
    await delivered(consumer, 8)
    tried = len(consumer.deliveries["poison"])
    consumer.failures["poison"] = ZeroDivisionError("a bug")
    (letter,) = await until(consumer.dead)
    assert letter.headers[REASON].startswith("given up after 3 deliveries: ZeroDivisionError")
    assert len(consumer.deliveries["poison"]) >= tried + 3


async def test_so_many_wait_and_the_others_are_told(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "PARKED", 2)
    names = ["a", "b", "c", "d"]
    for name in names:
        answer = Outgoing(event("rejected", "research"), name.encode(), {"Nats-Msg-Id": f"busy-{name}"})
        consumer.failures[name] = NoRoom("no room", [answer])
    await consumer.send(*names)
    await consumer.start()
    told = await until(lambda: stored(consumer.js, EVENTS, event("rejected", "research")))
    await until(lambda: len(consumer.deliveries["a"]) > 5)
    told = await stored(consumer.js, EVENTS, event("rejected", "research"))
    assert sorted(message.data.decode() for message in told) == ["c", "d"]
    assert (len(consumer.deliveries["c"]), len(consumer.deliveries["d"])) == (1, 1)
    info = await consumer.js.consumer_info(REQUESTS, "admission")
    assert info.num_ack_pending == 2
    consumer.failures.clear()
    assert sorted(await consumer.done()) == ["a", "b"]
    assert await consumer.dead() == []


async def test_waiting_does_not_spin(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows with the deliveries, so a message that has waited long is tried every half a minute."""
    monkeypatch.setattr(settle, "PAUSES_S", (0.01, 0.01, 3600.0))
    consumer.failures["a"] = NoRoom("no room")
    await consumer.send("a")
    await consumer.start()
    await delivered(consumer, 3)
    await asyncio.sleep(0.3)
    assert consumer.deliveries["a"] == [1, 2, 3]


async def test_a_loud_sender_drops_its_own_dead_letters_only(consumer: Consumer) -> None:
    def letters(team: str, count: int) -> list[Outgoing]:
        said = [Received(cancel(team, "ana"), {}, b"{}", REQUESTS, seq, 0) for seq in range(1, count + 1)]
        return [dead_letter("admission", one, f"malformed, {team}") for one in said]

    await Outbox(consumer.js).publish_many(letters("quiet", 3))
    await Outbox(consumer.js).publish_many(letters("loud", DEAD_OF_A_SENDER + 40))
    assert [letter.subject for letter in await stored(consumer.js, DEAD, dead("admission", "quiet"))] == (
        ["baton.dead.admission.quiet"] * 3
    )
    loud = await stored(consumer.js, DEAD, dead("admission", "loud"))
    assert [int(letter.headers[SEQ]) for letter in loud] == list(range(41, DEAD_OF_A_SENDER + 41))


async def test_full_dead_letters_hold_nobody_up(consumer: Consumer) -> None:
    """A malformed message whose letter could not be stored came again for ever, and its sender's next ones with it."""
    for seq in range(40):  # of many senders: the whole stream is full
        await consumer.js.publish(dead("admission", f"team-{seq}"), b"x" * 60_000)
    await consumer.js.publish(cancel("research", "ana"), b"malformed")
    await consumer.send("after")
    await consumer.start()
    assert await consumer.done() == ["after"]
    letters = await stored(consumer.js, DEAD, dead("admission", "research"))
    assert [letter.data for letter in letters] == [b"malformed"]
