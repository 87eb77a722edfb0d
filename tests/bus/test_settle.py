"""The one failure policy, against a real server: a bad message ends in DEAD with its reason and delays nobody."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

import pytest
from nats.aio.msg import Msg

from libs.bus import in_progress, settle
from libs.bus.broker import Broker, make_broker
from libs.bus.connect import BusConnection, close, connect
from libs.bus.cursors import Cursors
from libs.bus.dead import AT, ORIGIN, REASON, SEQ, STREAM, SUBJECT, TRUNCATED
from libs.bus.messages import Outgoing, decode_bare, outgoing
from libs.bus.outbox import MAX_PAYLOAD_BYTES, Outbox
from libs.bus.settle import BatchSize, Received, Transient, consume, dead_letter, replayed
from libs.bus.streams import provision
from schemas.inbox import CancelRequested
from schemas.requests import CancelJob
from schemas.subjects import DEAD, REQUESTS, cancel, dead, inbox
from tests.kit.background import ServerInBackground
from tests.kit.waiting import stored, until

JOB = "job-" + "0" * 32
OUT = inbox("job", "cancel-requested", "p")


class Consumer:
    """A consumer of cancel commands whose `decide` fails as the command's reason says."""

    def __init__(self, url: str, nats: BusConnection) -> None:
        self.url, self.nats, self.js = url, nats, nats.jetstream()
        self.deliveries: dict[str, list[int]] = defaultdict(list)
        self.failures: dict[str, BaseException] = {}
        self.healed_after: dict[str, int] = {}
        self.broker: Broker | None = None

    def decide(self, received: Received) -> list[Outgoing]:
        _, command = decode_bare(CancelJob, received.subject, received.headers, received.payload)
        what = command.reason
        self.deliveries[what].append(received.deliveries)
        if what in self.failures and len(self.deliveries[what]) <= self.healed_after.get(what, 10**9):
            raise self.failures[what]
        if what == "too-large":
            return [Outgoing(OUT, b"x" * (MAX_PAYLOAD_BYTES + 1), {})]
        if what == "nowhere":
            return [Outgoing("baton.in.job.v1.cancel-requested.nowhere", b"{}", {"Nats-Msg-Id": received.cause})]
        event = CancelRequested(job_id=command.job_id, team="research", reason=what)
        return [
            outgoing(
                event,
                subject=OUT,
                type="io.baton.job.cancel-requested.v1",
                source="/baton/p/admission",
                cause=received.cause,
            )
        ]

    async def start(self, outbox: Outbox | None = None, batch_size: BatchSize | None = None) -> None:
        self.broker = make_broker(self.url, "admission")
        box = outbox or Outbox(self.js)
        consume(
            self.broker,
            stream=REQUESTS,
            durable="admission",
            origin="admission",
            decide=self.decide,
            outbox=lambda: box,
            batch_size=batch_size,
        )
        await self.broker.start()

    async def stop(self) -> None:
        if self.broker is not None:
            await self.broker.stop()

    async def send(self, *reasons: str) -> None:
        for number, reason in enumerate(reasons):
            user = f"u{number % 20}"  # what waits of one is bounded
            await self.js.publish(
                cancel("research", user), CancelJob(job_id=JOB, reason=reason).model_dump_json().encode()
            )

    async def done(self) -> list[str]:
        """What came out, once nothing is left to be delivered or settled."""
        await until(self._idle)
        return [CancelRequested.model_validate_json(m.data).reason for m in await stored(self.js, "INBOX-p", OUT)]

    async def _idle(self) -> bool:
        info = await self.js.consumer_info(REQUESTS, "admission")
        return info.num_pending == 0 and info.num_ack_pending == 0

    async def dead(self) -> list[Msg]:
        return await stored(self.js, DEAD, dead("admission"))


@pytest.fixture
async def consumer(own_server: ServerInBackground) -> AsyncIterator[Consumer]:
    nats = await connect(own_server.url, name="test")
    await provision(nats.jetstream(), ["p"], scale=0.01)
    one = Consumer(own_server.url, nats)
    yield one
    await one.stop()
    await close(nats)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "PAUSES_S", (0.01,))


async def test_good_messages_are_decided_once_and_acknowledged(consumer: Consumer) -> None:
    names = [f"n{i}" for i in range(600)]
    await consumer.send(*names)
    await consumer.start()
    assert await consumer.done() == names
    assert set(map(tuple, consumer.deliveries.values())) == {(1,)}
    assert await consumer.dead() == []


async def test_a_batch_is_decided_in_portions_and_what_is_left_is_kept(consumer: Consumer) -> None:
    """What went in is settled while the rest of its batch waits."""
    names = [f"n{i}" for i in range(20)]
    more, asked = asyncio.Event(), []

    async def batch_size(left: Sequence[Msg]) -> int:
        asked.append(len(left))
        if len(asked) > 2:
            await more.wait()
        return min(3, len(left))

    await consumer.send(*names)
    await consumer.start(batch_size=batch_size)
    await until(lambda: len(asked) > 2)

    async def settled() -> bool:
        return (await consumer.js.consumer_info(REQUESTS, "admission")).num_ack_pending == len(names) - 6

    await until(settled)
    assert [
        CancelRequested.model_validate_json(m.data).reason for m in await stored(consumer.js, "INBOX-p", OUT)
    ] == names[:6]
    more.set()
    assert await consumer.done() == names
    assert set(map(tuple, consumer.deliveries.values())) == {(1,)}


async def test_a_process_that_stood_still_stores_nothing_of_what_another_may_decide_by_now(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 5162 of the simulation: it said yes to what another had refused meanwhile."""
    stood_s, really_s = [0.0], in_progress.clock.boot_s
    monkeypatch.setattr(in_progress.clock, "boot_s", lambda: really_s() + stood_s[0])
    decide = consumer.decide

    def after_a_while(received: Received) -> list[Outgoing]:
        out = decide(received)
        if consumer.deliveries["late"]:
            stood_s[0] = 20.0
        return out

    consumer.decide = after_a_while  # type: ignore[method-assign]
    await consumer.start()
    await consumer.send("early")
    assert await consumer.done() == ["early"]
    await consumer.send("late")
    await until(lambda: consumer.deliveries["late"])
    await asyncio.sleep(0.5)
    assert (await consumer.js.consumer_info(REQUESTS, "admission")).num_ack_pending == 1, "it is delivered again"
    assert await Cursors(consumer.js, "admission").load("excused-admission") == {"2": 1}, "it reached no decision"
    assert [CancelRequested.model_validate_json(m.data).reason for m in await stored(consumer.js, "INBOX-p", OUT)] == [
        "early"
    ]


async def test_a_process_that_stood_still_over_a_message_counts_its_delivery(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: one that takes longer than a delivery lasts was excused each time, and came again for ever with its batch."""
    stood_s, really_s = [0.0], in_progress.clock.boot_s
    monkeypatch.setattr(in_progress.clock, "boot_s", lambda: really_s() + stood_s[0])
    monkeypatch.setattr(settle, "_SLOW_S", 0.3)
    decide = consumer.decide

    def slow(received: Received) -> list[Outgoing]:
        began_s = time.thread_time()
        while b"slow" in received.payload and time.thread_time() - began_s < 0.6:
            stood_s[0] += 20.0
        return decide(received)

    consumer.decide = slow  # type: ignore[method-assign]
    await consumer.start()
    await consumer.send("slow", "beside it")
    await until(lambda: Cursors(consumer.js, "admission").load("excused-admission"))
    assert await Cursors(consumer.js, "admission").load("excused-admission") == {"2": 1}, "not the slow one"
    assert (await consumer.js.consumer_info(REQUESTS, "admission")).num_ack_pending == 2, "they are delivered again"


async def test_a_malformed_message_dies_with_its_reasons_and_the_next_is_unaffected(consumer: Consumer) -> None:
    await consumer.send("before")
    await consumer.js.publish(
        cancel("research", "ana"), b'{"job_id": "17"}', headers={"X-Trace": "abc", "Nats-Msg-Id": "m"}
    )
    await consumer.send("after")
    await consumer.start()
    assert await consumer.done() == ["before", "after"]
    (letter,) = await consumer.dead()
    assert letter.data == b'{"job_id": "17"}'
    assert letter.headers[SUBJECT] == cancel("research", "ana")
    assert (letter.headers[STREAM], letter.headers[SEQ], letter.headers[ORIGIN]) == (REQUESTS, "2", "admission")
    assert letter.headers[REASON].startswith("job_id = 17:")
    assert letter.headers["Baton-Orig-X-Trace"] == "abc"
    assert letter.headers[AT]


@pytest.mark.parametrize("error", [Transient("redis is away"), ConnectionError("refused"), TimeoutError()], ids=repr)
async def test_a_transient_failure_is_tried_again_after_the_others(consumer: Consumer, error: Exception) -> None:
    consumer.failures["shaky"] = error
    consumer.healed_after["shaky"] = 2
    await consumer.send("before", "shaky", "after")
    await consumer.start()
    assert await consumer.done() == ["before", "after", "shaky"]
    assert consumer.deliveries["shaky"] == [1, 2, 3]
    assert consumer.deliveries["after"] == [1]
    assert await consumer.dead() == []


@pytest.mark.usefixtures("impatient")
async def test_a_transient_failure_that_stays_is_exhausted(consumer: Consumer) -> None:
    consumer.failures["down"] = Transient("redis is away")
    await consumer.send("down", "after")
    await consumer.start()
    assert await consumer.done() == ["after"]
    assert consumer.deliveries["down"] == [1, 2, 3, 4, 5, 6]
    (letter,) = await consumer.dead()
    assert letter.headers[REASON] == "given up after 6 deliveries: Transient: redis is away"


@pytest.mark.usefixtures("impatient")
async def test_a_bug_is_tried_three_times_and_the_rest_of_its_batch_is_not(consumer: Consumer) -> None:
    consumer.failures["poison"] = ZeroDivisionError("a bug\nof two lines, in Zürich")
    names = [f"n{i}" for i in range(50)]
    await consumer.send(*names[:25], "poison", *names[25:])
    await consumer.start()
    assert await consumer.done() == names
    assert consumer.deliveries["poison"] == [1, 2, 3]
    assert all(consumer.deliveries[n] == [1] for n in names)
    (letter,) = await consumer.dead()
    assert letter.headers[REASON] == (
        "given up after 3 deliveries: ZeroDivisionError: a bug of two lines, in Z\\xfcrich"
    )


@pytest.mark.usefixtures("impatient")
async def test_an_output_that_cannot_be_sent_is_the_fault_of_its_message_alone(consumer: Consumer) -> None:
    await consumer.send("before", "too-large", "after")
    await consumer.start()
    assert sorted(await consumer.done()) == ["after", "before"]
    (letter,) = await consumer.dead()
    assert "TooLarge" in letter.headers[REASON]


@pytest.mark.usefixtures("impatient")
async def test_an_output_that_no_stream_takes_waits_alone(consumer: Consumer) -> None:
    await consumer.send("before", "nowhere", "after")
    await consumer.start(Outbox(consumer.js, ack_timeout_s=0.5, give_up_s=0.2))
    await until(lambda: len(consumer.deliveries["nowhere"]) >= 2)
    assert consumer.deliveries["before"] == consumer.deliveries["after"] == [1]
    assert await consumer.dead() == []
    await provision(consumer.js, ["nowhere"], scale=0.01)
    assert await consumer.done() == ["before", "after"]
    assert len(await stored(consumer.js, "INBOX-nowhere", "baton.in.job.v1.cancel-requested.nowhere")) == 1


async def test_a_message_that_kills_its_handler_is_not_tried_for_ever(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "CRASH_DELIVERIES", 2)
    await consumer.send("deadly")
    reader = await consumer.js.pull_subscribe_bind(consumer="admission", stream=REQUESTS)
    for _ in range(2):  # two processes that got it, and died
        (msg,) = await reader.fetch(1, timeout=30)
        await msg.nak()
    await consumer.start()
    assert await consumer.done() == []
    assert "deadly" not in consumer.deliveries
    (letter,) = await consumer.dead()
    assert letter.headers[REASON] == "delivered 3 times and never settled"


@pytest.mark.faults
async def test_nothing_is_lost_or_doubled_when_the_server_is_killed(
    consumer: Consumer, own_server: ServerInBackground
) -> None:
    names = [f"n{i}" for i in range(3_000)]
    items = [
        outgoing(
            CancelJob(job_id=JOB, reason=name),
            subject=cancel("research", f"u{number % 20}"),
            type="io.baton.job.cancel.v1",
            source="/test",
            cause=name,
        )
        for number, name in enumerate(names)
    ]
    await consumer.start()
    for part in range(3):
        await Outbox(consumer.js).publish_many(items[part * 1_000 : (part + 1) * 1_000])
        pid = await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.wait_replaced, pid)
        await until(lambda: consumer.nats.is_connected)
    out = await until(lambda: _all_out(consumer, len(names)))
    assert sorted(out) == sorted(names)
    assert await consumer.dead() == []


async def _all_out(consumer: Consumer, count: int) -> list[str]:
    try:
        out = await consumer.done()
    except Exception:
        return []
    return out if len(out) >= count else []


async def test_a_replayed_dead_letter_is_the_message_that_it_was(consumer: Consumer) -> None:
    consumer.failures["fixable"] = ValueError("a bug")
    headers = {"Nats-Msg-Id": "client-1", "X-Trace": "abc"}
    payload = CancelJob(job_id=JOB, reason="fixable").model_dump_json().encode()
    await consumer.js.publish(cancel("research", "ana"), payload, headers=headers)
    await consumer.start()
    assert await consumer.done() == []
    (letter,) = await consumer.dead()
    consumer.failures.clear()
    again = replayed(letter.headers, letter.data, attempt="1")
    assert again.headers == {"Nats-Msg-Id": again.headers["Nats-Msg-Id"], "X-Trace": "abc"}
    for _ in range(2):  # an operator who replays it twice replays it once
        await Outbox(consumer.js).publish_many([again])
    assert await consumer.done() == ["fixable"]


def test_dying_twice_leaves_one_letter_and_strange_headers_survive() -> None:
    received = Received("a.b", {"odd name:x": "v"}, b"{}", "REQUESTS", 7, 0)
    letters = [dead_letter("admission", received, "why") for _ in range(2)]
    assert letters[0].headers["Nats-Msg-Id"] == letters[1].headers["Nats-Msg-Id"]
    assert dead_letter("history", received, "why").headers["Nats-Msg-Id"] != letters[0].headers["Nats-Msg-Id"]
    assert "Baton-Orig-odd%20name%3Ax" in letters[0].headers
    assert replayed(letters[0].headers, b"{}", attempt="1").headers["odd name:x"] == "v"


@pytest.mark.parametrize(
    "name", ["Nats-Trace-Dest", "Nats-Trace-Dest ", "nats-rollup", " Nats-Expected-Stream", "Nats-TTL"]
)
def test_what_a_sender_told_the_broker_is_not_replayed(name: str) -> None:
    """The broker would carry it out with the rights of whoever replays."""
    letter = dead_letter("admission", Received("a.b", {name: "x", "X-Kept": "y"}, b"{}", "REQUESTS", 7, 0), "why")
    again = replayed(letter.headers, letter.payload, attempt="1")
    assert again.headers == {"Nats-Msg-Id": again.headers["Nats-Msg-Id"], "X-Kept": "y"}


def test_a_letter_that_is_too_large_is_cut_and_says_so() -> None:
    letter = dead_letter("admission", Received("a.b", {}, b"x" * 1_048_000, "REQUESTS", 7, 0), "why")
    assert len(letter.payload) <= MAX_PAYLOAD_BYTES
    assert letter.headers[TRUNCATED] == "1048000"
    with pytest.raises(ValueError, match="1048000"):
        replayed(letter.headers, letter.payload, attempt="1")
