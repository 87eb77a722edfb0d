"""Every message that `publish_many` returned for is stored, once, whatever happens to the server meanwhile."""

import asyncio
import gc
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.js.api import PubAck
from nats.js.errors import APIError

from libs.bus.batches import BATCH_ID
from libs.bus.cancel import cancel
from libs.bus.connect import BusConnection, close, connect
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import MAX_PAYLOAD_BYTES, NotStored, Outbox, TooLarge
from libs.bus.replies import Replies
from libs.bus.streams import provision
from schemas.inbox import Tick
from schemas.subjects import inbox
from tests.kit.background import ServerInBackground
from tests.kit.waiting import stored, until


def ticks(pool: str, numbers: range) -> list[Outgoing]:
    return [
        outgoing(
            Tick(),
            subject=inbox("clock", "tick", pool),
            type="io.baton.clock.tick.v1",
            source=f"/baton/{pool}/test",
            cause=f"{pool}:{n}",
        )
        for n in numbers
    ]


async def test_acknowledgements_are_in_the_order_of_the_items(nats: BusConnection, pool: str) -> None:
    items = ticks(pool, range(2_500))
    acks = await Outbox(nats.jetstream()).publish_many(items)
    messages = await stored(nats.jetstream(), f"INBOX-{pool}", inbox("clock", "tick", pool))
    assert [a.seq for a in acks] == list(range(1, 2_501))
    assert [m.headers["Nats-Msg-Id"] for m in messages] == [i.headers["Nats-Msg-Id"] for i in items]


async def test_so_many_are_under_way_that_the_broker_answers_between_them(
    nats: BusConnection, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []
    expect = Replies.expect

    def counted(self: Replies) -> "tuple[asyncio.Future[PubAck], str]":
        under_way.append(len(self._waiting))
        return expect(self)

    monkeypatch.setattr(Replies, "expect", counted)
    await Outbox(nats.jetstream()).publish_many(ticks(pool, range(500)))
    assert len(under_way) == 500
    assert 16 < max(under_way) < 64


async def test_publishing_again_stores_nothing_new(nats: BusConnection, pool: str) -> None:
    outbox = Outbox(nats.jetstream())
    first = await outbox.publish_many(ticks(pool, range(10)))
    again = await outbox.publish_many(ticks(pool, range(10)))
    assert [a.seq for a in again] == [a.seq for a in first]
    assert all(a.duplicate for a in again)


@pytest.mark.parametrize("batches", [False, True])
async def test_an_acknowledgement_that_comes_after_the_message_was_sent_again_counts(
    nats: BusConnection, pool: str, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    """By a broker that takes longer than a try waits none ever comes in time."""
    tries = 0
    find, arrived = Replies.of, Replies._arrived

    async def counted(connection: BusConnection) -> Replies:
        nonlocal tries
        tries += 1
        return await find(connection)

    waiting: list[asyncio.Task[None]] = []

    async def late(self: Replies, msg: Msg) -> None:
        async def after_the_next_try(of: int = tries) -> None:
            await until(lambda: tries > of)
            await arrived(self, msg)

        waiting.append(asyncio.create_task(after_the_next_try()))

    monkeypatch.setattr(Replies, "of", counted)
    monkeypatch.setattr(Replies, "_arrived", late)
    outbox = Outbox(nats.jetstream(), batches=batches, ack_timeout_s=0.2, give_up_s=5)
    acks = await outbox.publish_many(ticks(pool, range(20)))
    tries += 1  # for those that nobody waits for any more
    await asyncio.gather(*waiting)
    assert [ack.seq for ack in acks] == list(range(1, 21))
    assert not _waiting(nats)


async def test_what_is_under_way_is_sent_again_over_another_connection_only_or_after_a_while(
    nats: BusConnection, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that carries little would carry repeats alone."""
    tries, sent = 0, 0
    find, publish = Replies.of, nats.publish

    async def counted(connection: BusConnection) -> Replies:
        nonlocal tries
        tries += 1
        if tries == 3:
            assert sent == 5
            nats.stats["reconnects"] += 1
        return await find(connection)

    async def held(self: Replies, msg: Msg) -> None:
        pass

    async def send(subject: str, *args: Any, **options: Any) -> None:
        nonlocal sent
        sent += subject == inbox("clock", "tick", pool)
        await publish(subject, *args, **options)

    monkeypatch.setattr(Replies, "of", counted)
    monkeypatch.setattr(Replies, "_arrived", held)
    monkeypatch.setattr(nats, "publish", send)
    outbox = Outbox(nats.jetstream(), ack_timeout_s=0.1, give_up_s=600)
    monkeypatch.setattr(outbox, "_again_s", 6_000)
    publishing = asyncio.create_task(outbox.publish_many(ticks(pool, range(5))))
    await until(lambda: tries > 4)
    await cancel(publishing)
    assert sent == 10


async def test_nothing_to_publish_is_no_work(nats: BusConnection) -> None:
    assert await Outbox(nats.jetstream()).publish_many([]) == []


@pytest.mark.faults
async def test_each_is_stored_once_through_kills_of_the_server(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    outbox = Outbox(js, ack_timeout_s=1.0)
    rounds, size = 30, 200

    async def produce() -> int:
        count = 0
        for n in range(rounds):
            count += len(await outbox.publish_many(ticks("p", range(n * size, (n + 1) * size))))
            await asyncio.sleep(0)
        return count

    producing = asyncio.create_task(produce())
    for part in (0.1, 0.4, 0.7):
        goal = int(rounds * size * part)
        await until(lambda goal=goal: _stored_at_least(connection, goal))
        pid = await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.wait_replaced, pid)
    assert await producing == rounds * size
    ids = [m.headers["Nats-Msg-Id"] for m in await stored(js, "INBOX-p", inbox("clock", "tick", "p"))]
    assert len(ids) == rounds * size
    assert set(ids) == {i.headers["Nats-Msg-Id"] for i in ticks("p", range(rounds * size))}
    assert not _waiting(connection)
    await close(connection)


def _waiting(connection: BusConnection) -> int:
    """Acknowledgements that are still expected: none may be left behind by a call that has ended."""
    return len(Replies._all[connection]._waiting)


async def _stored_at_least(connection: BusConnection, count: int) -> bool:
    try:
        return (await connection.jetstream().stream_info("INBOX-p")).state.messages >= count
    except Exception:
        return False


async def test_a_subject_that_no_stream_takes_is_reported_with_its_position(nats: BusConnection, pool: str) -> None:
    items = ticks(pool, range(3))
    items.insert(1, Outgoing("baton.in.clock.v1.tick.nowhere", b"{}", {"Nats-Msg-Id": "x"}))
    with pytest.raises(NotStored, match="nowhere") as missed:
        await Outbox(nats.jetstream(), ack_timeout_s=0.5, give_up_s=0.2).publish_many(items)
    assert missed.value.unstored == (1,)
    assert not _waiting(nats)


async def test_a_message_that_is_too_large_is_refused_before_anything_is_sent(nats: BusConnection, pool: str) -> None:
    large = Outgoing(inbox("clock", "tick", pool), b"x" * (MAX_PAYLOAD_BYTES + 1), {})
    with pytest.raises(TooLarge, match="at most"):
        await Outbox(nats.jetstream()).publish_many([*ticks(pool, range(2)), large])
    assert (await nats.jetstream().stream_info(f"INBOX-{pool}")).state.messages == 0
    assert nats.is_connected


async def test_a_refusal_of_the_broker_is_raised(nats: BusConnection, pool: str) -> None:
    (item,) = ticks(pool, range(1))
    stale = Outgoing(item.subject, item.payload, {**item.headers, "Nats-Expected-Last-Sequence": "77"})
    with pytest.raises(APIError, match="wrong last sequence"):
        await Outbox(nats.jetstream()).publish_many([stale])


async def test_a_full_stream_refuses_and_keeps_what_it_has(nats: BusConnection, pool: str) -> None:
    js = nats.jetstream()
    info = await js.stream_info(f"INBOX-{pool}")
    await js.update_stream(info.config.evolve(max_bytes=20_000))
    with pytest.raises(APIError, match="maximum bytes exceeded"):
        await Outbox(js).publish_many(ticks(pool, range(500)))
    first = (await stored(js, f"INBOX-{pool}", inbox("clock", "tick", pool)))[0]
    assert first.headers["Nats-Msg-Id"] == ticks(pool, range(1))[0].headers["Nats-Msg-Id"]


async def test_a_cancelled_publisher_gives_everything_back(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    subject = "baton.in.clock.v1.tick.p"

    async def hear(_: Msg) -> None:
        """And say nothing: with nobody there the broker would, at once."""

    await connection.subscribe(subject, cb=hear)
    publishing = asyncio.create_task(
        Outbox(connection.jetstream(), ack_timeout_s=30).publish_many([Outgoing(subject, b"{}", {})])
    )
    await until(lambda: connection in Replies._all and _waiting(connection))
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert not _waiting(connection)
    await close(connection)


async def test_batches_are_stored_together_and_acknowledged_each(nats: BusConnection, pool: str) -> None:
    items = ticks(pool, range(600))
    acks = await Outbox(nats.jetstream(), batches=True).publish_many(items)
    assert [a.seq for a in acks] == list(range(1, 601))
    messages = await stored(nats.jetstream(), f"INBOX-{pool}", inbox("clock", "tick", pool))
    assert [m.headers["Nats-Msg-Id"] for m in messages] == [i.headers["Nats-Msg-Id"] for i in items]
    assert len({m.headers[BATCH_ID] for m in messages}) == 3, "of 256 messages, or what is left"
    assert not _waiting(nats)


async def test_what_is_refused_as_a_batch_goes_one_by_one(nats: BusConnection, pool: str) -> None:
    """Some of it is stored already; and a stream that allows no batches, as one of an earlier version."""
    outbox = Outbox(nats.jetstream(), batches=True)
    first = await outbox.publish_many(ticks(pool, range(20)))
    both = await outbox.publish_many(ticks(pool, range(10, 40)))
    assert [a.seq for a in both[:10]] == [a.seq for a in first[10:]]
    assert [bool(a.duplicate) for a in both] == [True] * 10 + [False] * 20
    js = nats.jetstream()
    config = (await js.stream_info(f"INBOX-{pool}")).config
    await js.update_stream(config.evolve(allow_atomic=False))
    for begin, each in ((100, outbox), (200, Outbox(js, batches=True))):  # one thinks it is allowed, the other asks
        acks = await each.publish_many(ticks(pool, range(begin, begin + 20)))
        assert len({a.seq for a in acks}) == 20
    await provision(js, [pool], scale=0.01)
    assert (await js.stream_info(f"INBOX-{pool}")).config.allow_atomic, "what stood in the table before is changed"


async def test_who_may_not_ask_what_a_stream_allows_learns_it_from_a_refusal(nats: BusConnection, pool: str) -> None:
    js = nats.jetstream()
    config = (await js.stream_info(f"INBOX-{pool}")).config
    await js.update_stream(config.evolve(allow_atomic=False))
    outbox = Outbox(js, batches=True, asks=False)
    await outbox.publish_many(ticks(pool, range(20)))
    await js.update_stream(config)
    await outbox.publish_many(ticks(pool, range(20, 40)))
    await Outbox(js, batches=True, asks=False).publish_many(ticks(pool, range(40, 60)))
    messages = await stored(js, f"INBOX-{pool}", inbox("clock", "tick", pool))
    assert [BATCH_ID in m.headers for m in messages] == [False] * 40 + [True] * 20


async def test_what_is_refused_once_nobody_waits_for_it_is_nobodys_error(nats: BusConnection, pool: str) -> None:
    js, told = nats.jetstream(), list[str]()
    await js.update_stream((await js.stream_info(f"INBOX-{pool}")).config.evolve(allow_atomic=False))
    asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about["message"]))
    for begin in range(0, 200, 20):
        publishing = asyncio.create_task(
            Outbox(js, batches=True, asks=False).publish_many(ticks(pool, range(begin, begin + 20)))
        )
        while nats not in Replies._all or not _waiting(nats):
            await asyncio.sleep(0)
        await asyncio.sleep(0.0001 * begin / 20)  # before the refusal, with it, after it
        await cancel(publishing)
        await nats.flush()
        del publishing
        gc.collect()
    assert told == []


async def test_a_broker_that_knows_no_batches_is_sent_each_message(own_server: ServerInBackground) -> None:
    """It stores what it gets, and acknowledges the last message alone, as one."""
    connection = await connect(own_server.url, name="test")
    asked = list[str]()

    async def former(message: Msg) -> None:
        if message.reply:
            asked.append(message.headers["Nats-Msg-Id"])
            await message.respond(b'{"stream": "INBOX-p", "seq": %d}' % len(asked))

    await connection.subscribe("baton.in.>", cb=former)
    items = ticks("p", range(20))
    acks = await Outbox(connection.jetstream(), batches=True, asks=False).publish_many(items)
    assert asked[1:] == [item.headers["Nats-Msg-Id"] for item in items]
    assert [ack.seq for ack in acks] == list(range(2, 22))
    await close(connection)


@pytest.mark.faults
async def test_a_batch_is_whole_or_not_there_after_a_kill(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.01)
    outbox = Outbox(js, ack_timeout_s=1.0, batches=True)
    producing = asyncio.create_task(outbox.publish_many(ticks("p", range(4_000))))
    await until(lambda: _stored_at_least(connection, 500))
    pid = await asyncio.to_thread(own_server.kill)
    await asyncio.to_thread(own_server.wait_replaced, pid)
    acks = await producing
    ids = [m.headers["Nats-Msg-Id"] for m in await stored(js, "INBOX-p", inbox("clock", "tick", "p"))]
    assert sorted(ids) == sorted(i.headers["Nats-Msg-Id"] for i in ticks("p", range(4_000)))
    assert len({a.seq for a in acks}) == 4_000
    await close(connection)
