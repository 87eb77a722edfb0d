"""What a broker does as services rely on it. Each is run against a real nats-server and against the simulated one."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy, StreamConfig
from nats.js.errors import APIError, KeyNotFoundError, NoStreamResponseError, NotFoundError, ObjectNotFoundError

from libs.bus.cursors import Cursors
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox, is_subject_full
from libs.ledger.append import AppendOutcome, append
from libs.ledger.chain import GENESIS
from libs.ledger.reader import LedgerReader
from libs.ledger.snapshots import SnapshotStore, pack
from libs.ledger.tail import Tail
from schemas.subjects import ledger, segment

Behaviour = Callable[[Any, str], Awaitable[None]]
BEHAVIOURS: list[Behaviour] = []
"""Each gets a connection, and a pool whose streams are provisioned."""


def behaviour(run: Behaviour) -> Behaviour:
    BEHAVIOURS.append(run)
    return run


@behaviour
async def a_request_is_answered_and_silence_is_told_at_once(net: Any, pool: str) -> None:
    async def answer(message: Any) -> None:
        await message.respond(b"yes to " + message.data)

    await net.subscribe(f"ask.{pool}", cb=answer)
    assert (await net.request(f"ask.{pool}", b"this", timeout=5)).data == b"yes to this"
    with pytest.raises(NoRespondersError):
        await net.request(f"nobody.{pool}", b"", timeout=5)


@behaviour
async def of_a_queue_one_hears_and_of_others_everybody(net: Any, pool: str) -> None:
    heard: list[str] = []
    for name, queue in (("a", ""), ("b", ""), ("q1", "q"), ("q2", "q")):

        async def hear(_: Any, name: str = name) -> None:
            heard.append(name[0])

        await net.subscribe(f"news.{pool}.*", queue, cb=hear)
    await net.flush()
    await net.flush()
    await net.publish(f"news.{pool}.now", b"x")
    await _until(lambda: len(heard) == 3)
    assert sorted(heard) == ["a", "b", "q"]


@behaviour
async def an_id_is_stored_once(net: Any, pool: str) -> None:
    js = net.jetstream()
    first = await js.publish(f"baton.in.clock.v1.tick.{pool}", b"1", headers={"Nats-Msg-Id": f"{pool}-1"})
    again = await js.publish(f"baton.in.clock.v1.tick.{pool}", b"1", headers={"Nats-Msg-Id": f"{pool}-1"})
    assert (first.seq, bool(first.duplicate)) == (1, False)
    assert (again.seq, bool(again.duplicate)) == (1, True)


@behaviour
async def a_batch_is_stored_whole_or_refused(net: Any, pool: str) -> None:
    js = net.jetstream()
    items = [Outgoing(f"baton.in.clock.v1.tick.{pool}", b"%d" % n, {"Nats-Msg-Id": f"{pool}-b{n}"}) for n in range(20)]
    outbox = Outbox(js, batches=True)
    first = await outbox.publish_many(items[:10])
    assert [ack.seq for ack in first] == list(range(1, 11))
    assert "Nats-Batch-Id" in (await js.get_msg(f"INBOX-{pool}", 10)).headers
    both = await outbox.publish_many(items)  # refused as one, because ten are there; so one by one
    assert [(ack.seq, bool(ack.duplicate)) for ack in both] == [(n, n <= 10) for n in range(1, 21)]
    await net.publish(items[0].subject, b"half", headers={"Nats-Batch-Id": "half", "Nats-Batch-Sequence": "1"})
    assert (await outbox.publish(items[0])).duplicate, "asked last: the half was heard before"
    assert (await js.stream_info(f"INBOX-{pool}")).state.messages == 20


@behaviour
async def what_no_stream_takes_is_refused(net: Any, pool: str) -> None:
    with pytest.raises(NoStreamResponseError):
        await net.jetstream().publish(f"nothing.{pool}", b"", timeout=5)


@behaviour
async def an_append_is_at_its_place_or_not_at_all(net: Any, pool: str) -> None:
    js = net.jetstream()
    assert await append(js, ledger(pool), b"one", "h1", 0, 5) is AppendOutcome.COMMITTED
    assert await append(js, ledger(pool), b"two", "h2", 0, 5) is AppendOutcome.REFUSED
    assert await append(js, ledger(pool), b"two", "h2", 1, 5) is AppendOutcome.COMMITTED
    assert await append(js, ledger(pool), b"two", "h2", 1, 5) is AppendOutcome.REFUSED
    assert await append(js, ledger(pool), b"two", "h2", 2, 5) is AppendOutcome.UNCLEAR  # stored before
    assert (await js.stream_info(f"LEDGER-{pool}")).state.last_seq == 2
    assert (await js.get_msg(f"LEDGER-{pool}", seq=1)).data == b"one"
    with pytest.raises(NotFoundError):
        await js.get_msg(f"LEDGER-{pool}", seq=3)


@behaviour
async def a_subject_with_as_many_as_may_be_is_refused_and_others_are_not(net: Any, pool: str) -> None:
    js = net.jetstream()
    name = f"CROWDED-{pool}"
    config = StreamConfig(name=name, subjects=[f"crowded.{pool}.*"], discard=DiscardPolicy.NEW)
    await js.add_stream(config.evolve(max_msgs_per_subject=2, discard_new_per_subject=True, duplicate_window=120.0))
    for number in range(2):
        await js.publish(f"crowded.{pool}.a", b"", headers={"Nats-Msg-Id": str(number)})
    with pytest.raises(APIError) as error:
        await js.publish(f"crowded.{pool}.a", b"", headers={"Nats-Msg-Id": "2"})
    assert is_subject_full(error.value)
    assert (await js.publish(f"crowded.{pool}.a", b"", headers={"Nats-Msg-Id": "0"})).duplicate
    assert (await js.publish(f"crowded.{pool}.b", b"")).seq == 3
    await js.purge_stream(name, seq=2, subject=f"crowded.{pool}.a")
    assert not (await js.publish(f"crowded.{pool}.a", b"", headers={"Nats-Msg-Id": "2"})).duplicate
    assert (await js.stream_info(name)).state.messages == 3
    await js.delete_stream(name)


@behaviour
async def a_full_stream_refuses(net: Any, pool: str) -> None:
    js = net.jetstream()
    name = f"FULL-{pool}"
    await js.add_stream(StreamConfig(name=name, subjects=[f"full.{pool}"], max_msgs=1, discard=DiscardPolicy.NEW))
    await js.publish(f"full.{pool}", b"1")
    with pytest.raises(APIError) as error:
        await js.publish(f"full.{pool}", b"2")
    assert error.value.err_code == 10077
    await js.purge_stream(name)
    assert (await js.publish(f"full.{pool}", b"3")).seq == 2
    await js.delete_stream(name)
    with pytest.raises(NotFoundError):
        await js.stream_info(name)


@behaviour
async def a_ledger_can_be_neither_purged_nor_deleted_from(net: Any, pool: str) -> None:
    js = net.jetstream()
    await append(js, ledger(pool), b"one", "h1", 0, 5)
    with pytest.raises(APIError):
        await js.purge_stream(f"LEDGER-{pool}")
    with pytest.raises(APIError):
        await js.delete_msg(f"LEDGER-{pool}", 1)


@behaviour
async def a_sealed_stream_stays_sealed(net: Any, pool: str) -> None:
    """Whoever changes a configuration that it read before the seal is refused."""
    js = net.jetstream()
    before = (await js.stream_info(f"LEDGER-{pool}")).config
    await js.update_stream(before.evolve(subjects=[segment("sealed", pool, 1)], sealed=True))
    with pytest.raises(APIError, match="unseal"):
        await js.update_stream(before.evolve(metadata={"asked": "1"}))
    assert (await js.stream_info(f"LEDGER-{pool}")).config.sealed


@behaviour
async def a_tail_reads_in_order_and_waits_for_more(net: Any, pool: str) -> None:
    js = net.jetstream()
    subject = f"baton.in.clock.v1.tick.{pool}"
    for number in range(5):
        await js.publish(subject, b"%d" % number)
    tail = Tail(js, f"INBOX-{pool}", 2, may_expire=True)
    found = await tail.messages(10, 5)
    while len(found) < 3:
        found += await tail.messages(10, 5)
    assert [(s.seq, s.payload, s.subject) for s in found] == [(n + 1, b"%d" % n, subject) for n in (2, 3, 4)]
    assert await tail.messages(10, 0.05) == []
    await js.publish(subject, b"5")
    assert [s.seq for s in await tail.messages(10, 5)] == [6]
    await tail.close()


@behaviour
async def a_reader_judges_what_it_reads(net: Any, pool: str) -> None:
    js = net.jetstream()
    await append(js, ledger(pool), b"no record", "h1", 0, 5)
    reader = LedgerReader(js, pool)
    entries = await reader.next(10, 5)
    assert [(e.seq, e.valid) for e in entries] == [(1, False)]
    assert (reader.head, reader.position) == (GENESIS, 1)
    await reader.close()


@behaviour
async def what_is_not_acknowledged_comes_again(net: Any, pool: str) -> None:
    js = net.jetstream()
    stream = f"WORK-{pool}"
    await js.add_stream(StreamConfig(name=stream, subjects=[f"work.{pool}"]))
    config = ConsumerConfig(durable_name="d", name="d", ack_policy=AckPolicy.EXPLICIT, ack_wait=1.0, max_ack_pending=10)
    await js.add_consumer(stream, config)
    for number in range(3):
        await js.publish(f"work.{pool}", b"%d" % number)
    inbox = net.new_inbox()
    sub = await net.subscribe(inbox)
    await net.publish(
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.d",
        json.dumps({"batch": 9, "expires": 8_000_000_000}).encode(),
        reply=inbox,
    )
    first = [await sub.next_msg(timeout=5) for _ in range(3)]
    await first[0].ack()
    await first[1].term()
    again = await sub.next_msg(timeout=8)
    assert (again.data, again.metadata.num_delivered) == (b"2", 2)
    await again.nak()
    third = await sub.next_msg(timeout=8)
    assert (third.data, third.metadata.num_delivered) == (b"2", 3)
    await third.ack()
    info = None
    for _ in range(100):
        info = await js.consumer_info(stream, "d")
        if info.num_ack_pending == 0:
            break
        await asyncio.sleep(0.02)
    assert info is not None
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    await js.delete_stream(stream)


@behaviour
async def who_asks_gets_messages_in_turns(net: Any, pool: str) -> None:
    js = net.jetstream()
    stream = f"TURNS-{pool}"
    await js.add_stream(StreamConfig(name=stream, subjects=[f"turns.{pool}"]))
    await js.add_consumer(stream, ConsumerConfig(durable_name="d", name="d", ack_policy=AckPolicy.EXPLICIT))
    subs = []
    for _ in range(2):
        inbox = net.new_inbox()
        subs.append(await net.subscribe(inbox))
        body = json.dumps({"batch": 2, "expires": 8_000_000_000}).encode()
        await net.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.d", body, reply=inbox)
    await net.flush()
    await _until_waiting(js, stream, 2)
    for number in range(4):
        await js.publish(f"turns.{pool}", b"%d" % number)
    got = [[(await sub.next_msg(timeout=5)).data for _ in range(2)] for sub in subs]
    assert got == [[b"0", b"2"], [b"1", b"3"]]
    await js.delete_stream(stream)


async def _until_waiting(js: Any, stream: str, requests: int) -> None:
    async with asyncio.timeout(10):
        while (await js.consumer_info(stream, "d")).num_waiting < requests:
            await asyncio.sleep(0.01)


@behaviour
async def a_request_for_messages_ends_with_a_status(net: Any, pool: str) -> None:
    js = net.jetstream()
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=1, ack_policy=AckPolicy.NONE, mem_storage=True,
        inactive_threshold=30,
    )  # fmt: skip
    made = await js.add_consumer(f"INBOX-{pool}", config)
    inbox = net.new_inbox()
    sub = await net.subscribe(inbox)
    body = {"batch": 5, "expires": 1_000_000_000, "idle_heartbeat": 400_000_000}
    subject = f"$JS.API.CONSUMER.MSG.NEXT.INBOX-{pool}.{made.name}"
    await net.publish(subject, json.dumps(body).encode(), reply=inbox)
    statuses = []
    while "408" not in statuses:
        message = await sub.next_msg(timeout=5)
        statuses.append((message.headers or {})["Status"])
        if statuses[-1] == "100":
            assert message.headers["Nats-Last-Consumer"] == "0"
    assert statuses[0] == "100"
    assert message.headers["Nats-Pending-Messages"] == "5"


@behaviour
async def cursors_and_snapshots_are_kept(net: Any, pool: str) -> None:
    js = net.jetstream()
    cursors = Cursors(js)
    assert await cursors.load(f"c-{pool}") is None
    await cursors.save(f"c-{pool}", {"seq": 1})
    await cursors.save(f"c-{pool}", {"seq": 2})
    assert await cursors.load(f"c-{pool}") == {"seq": 2}
    with pytest.raises(KeyNotFoundError):
        await (await js.key_value("baton-cursors")).get(f"none-{pool}")
    store = SnapshotStore(js, pool)
    for text in (b"old", b"new"):
        await store.put("state", 1, GENESIS, 0, await pack([text]))
    found = await store.load("state", 1, list)
    assert found is not None
    assert found.value in ([b"old"], [b"new"])
    await store.forget("state", 1)
    assert await store.load("state", 1, list) is None
    with pytest.raises(ObjectNotFoundError):
        await (await js.object_store("baton-snapshots")).get_info(f"none-{pool}")


@behaviour
async def messages_are_found_by_subject_without_a_consumer(net: Any, pool: str) -> None:
    js = net.jetstream()
    for number in range(4):
        await js.publish(f"baton.in.clock.v1.{'tick' if number % 2 else 'tock'}.{pool}", b"%d" % number)
    inbox = net.new_inbox()
    sub = await net.subscribe(inbox)
    body = {"batch": 1, "seq": 1, "next_by_subj": f"baton.in.clock.v1.tick.{pool}"}
    await net.publish(f"$JS.API.DIRECT.GET.INBOX-{pool}", json.dumps(body).encode(), reply=inbox)
    found, end = await sub.next_msg(timeout=5), await sub.next_msg(timeout=5)
    assert (found.data, found.headers["Nats-Sequence"]) == (b"1", "2")
    assert (end.headers["Status"], end.headers["Nats-Num-Pending"]) == ("204", "1")


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)
