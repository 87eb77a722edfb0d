"""One writer: what it decides is committed once, whatever dies, and nothing that it is given stops it."""

import asyncio
from collections.abc import Sequence
from threading import Thread
from typing import Any, ClassVar

import pytest
from nats.errors import MaxPayloadError
from nats.errors import TimeoutError as NatsTimeout

from libs.bus import messages
from libs.bus.dead import STACK
from libs.bus.decaying_count import DecayingCount
from libs.bus.outbox import Outbox
from libs.core.state import catching_up, clock
from libs.core.state.formats import FIRST, NEWEST
from libs.ledger import batches, timing
from libs.ledger import writer as writer_module
from libs.ledger.chain import GENESIS, UnknownRecord
from libs.ledger.inputs import InboxItem
from libs.ledger.writer import LedgerWriter
from schemas import inbox
from schemas.clock import BootReading, MeasuredBy
from schemas.ledger import LedgerRecord
from schemas.prices import ClosedPeriod
from schemas.subjects import DEAD, ledger
from tests.kit.waiting import until
from tests.ledger.toy import DEVICES, Toy, admitted, cancelled, job
from tests.ledger.world import POOL, World, input_message


class Interposed:
    """A JetStream context whose ledger publishes go through `append(publish)`; all else as it was."""

    def __init__(self, js: Any, append: Any) -> None:
        self._inner = js
        self._append = append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def publish(self, subject: str, payload: bytes, **options: Any) -> Any:
        if subject != ledger(POOL):
            return await self._inner.publish(subject, payload, **options)
        return await self._append(lambda: self._inner.publish(subject, payload, **options))


class Silent:
    """A JetStream context that is told nothing of what a stream holds now, until it is `told`."""

    def __init__(self, js: Any, told: asyncio.Event) -> None:
        self._inner = js
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _api_request(self, subject: str, *args: Any, **options: Any) -> Any:
        if not self._told.is_set():
            raise TimeoutError
        return await self._inner._api_request(subject, *args, **options)


async def test_inputs_are_decided_in_order_and_once(world: World) -> None:
    writer = world.writer("w1")
    world.start(writer)
    await world.put(*(admitted(n) for n in range(20)))
    await world.decided(writer)
    await world.put(cancelled(0), admitted(0), cancelled(0))
    await world.decided(writer)
    toy = await world.folded()
    assert list(toy.seen) == [job(n) for n in range(20)]
    assert toy.finished == [job(0)]
    assert vars(toy) == vars(writer.decider) | {"inbox_seq": toy.inbox_seq, "t_us": toy.t_us, "record_ends": []}


async def test_that_a_team_is_resumed_is_decided_last_so_that_its_record_has_its_time(world: World) -> None:
    """Found by seed 42167 of operators: a request that was sent a tenth of a second after it was decided together with it, and
    refused as one of before."""
    suspend = inbox.SuspendTeam(team="research", reason="unpaid", user="olga")
    resume = inbox.ResumeTeam(team="research", reason="paid", user="olga")
    await world.put(suspend, admitted(0), resume, admitted(1))
    writer = world.writer("w1")
    world.start(writer)
    await world.decided(writer)
    assert [entry.record.inbox_seq for entry in await world.entries()][-2:] == [3, 4]


async def test_what_only_a_newer_version_observes_lays_nothing_aside(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: an older placement lost all that an agent of the next version reported."""
    writer = world.writer("w1")
    world.start(writer)
    message = input_message(inbox.NodeObserved(node="n0", incarnation=1, observations=()), "1")
    warmed = message.payload.replace(b'"observations":[]', b'"observations":[{"kind":"warmed"}]')
    assert warmed != message.payload
    for _ in range(2):
        await world.put_raw(message.subject, warmed, message.headers | {"Nats-Msg-Id": f"id-{world.inputs}"})
    await world.put(admitted(0))
    await world.decided(writer)
    assert (writer.counters.unknown_observations, writer.counters.rejected) == (2, 0)
    assert (await world.folded()).seen == {job(0): 1}
    assert len([said for said in caplog.messages if "(warmed): they are ignored" in said]) == 1


async def test_the_decision_time_is_the_brokers_and_never_runs_backwards(world: World) -> None:
    writer = world.writer("w1", batch=3)
    world.start(writer)
    await world.put(*(admitted(n) for n in range(10)))
    await world.decided(writer)
    entries = await world.entries()
    times = [e.record.t_us for e in entries]
    assert times == sorted(times)
    assert all(e.record.t_us <= e.time_us for e in entries)
    assert len(entries) >= 4
    assert entries[-1].record.inbox_seq == 10


async def test_after_an_outage_of_the_writer_nothing_is_granted_before_the_present_is_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: placement was away for a minute; jobs for which others had made room got devices a minute before they began."""
    monkeypatch.setattr(catching_up, "STEP_US", 100_000)
    first = world.writer("w1", batch=1)
    running = world.start(first)
    await world.put(*(admitted(n) for n in range(DEVICES)))
    await world.decided(first)
    await world.stop(running)
    await world.put(admitted(4), cancelled(0))
    await asyncio.sleep(0.2)
    await world.put(inbox.Tick(), admitted(5), cancelled(1))
    back = world.writer("w2", batch=1)
    world.start(back)
    await world.decided(back)
    records = [entry.record for entry in await world.entries()][DEVICES:]
    told = [(record.inbox_seq, event.kind) for record in records for event in record.events]
    assert told == [
        (5, "job.queued"),
        (6, "devices.freed"),
        (8, "job.queued"),
        (9, "devices.freed"),
        (9, "job.granted"),
        (9, "job.granted"),
    ]
    assert records[-1].t_us - records[1].t_us > 100_000, "not of the time at which the device was freed"
    assert back.counters.late == 4


async def test_inputs_of_a_long_time_are_decided_with_the_times_of_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: 256 inputs of an outage were one decision, of the last one's time; what the first ended was billed until then."""
    monkeypatch.setattr(writer_module, "_SPAN_US", 100_000)
    monkeypatch.setattr(batches, "_BUSY_EVENTS", 0)  # each waits for company
    await world.put(admitted(0))
    await asyncio.sleep(0.2)
    await world.put(*(inbox.Tick() for _ in range(3)), cancelled(0))
    await asyncio.sleep(0.2)
    await world.put(admitted(1))
    writer = world.writer("w1")
    world.start(writer)
    await world.decided(writer)
    records = [entry.record for entry in await world.entries()]
    assert [record.inbox_seq for record in records] == [1, 5, 6]
    assert records[1].t_us - records[0].t_us >= 200_000
    assert records[2].t_us - records[1].t_us >= 200_000


async def test_a_writer_that_was_frozen_asks_what_the_inbox_holds_before_it_grants(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads from its socket then was sent to it when nothing else waited."""
    monkeypatch.setattr(catching_up, "STEP_US", 100_000)
    writer = world.writer("w1", batch=1)
    world.start(writer)
    await world.put(admitted(0))
    await world.decided(writer)

    async def puts() -> None:
        nats = await world.broker.connect()
        for number, cause in ((1, "frozen 1"), (2, "frozen 2")):
            await Outbox(nats.jetstream()).publish_many([input_message(admitted(number), cause)])
            await asyncio.sleep(1.0)
        await nats.close()

    others = Thread(target=lambda: asyncio.run(puts()))
    others.start()
    others.join()  # nothing else runs in this loop meanwhile
    world.inputs += 2
    await world.decided(writer)
    records = [entry.record for entry in await world.entries()]
    told = [(record.inbox_seq, event.kind) for record in records for event in record.events]
    assert told[2:] == [(2, "job.queued"), (3, "job.queued"), (3, "job.granted"), (3, "job.granted")]


async def test_a_broker_that_does_not_say_what_the_inbox_holds_delays_grants_and_nothing_else(world: World) -> None:
    told = asyncio.Event()
    writer = world.writer("w1", Silent(world.js, told))  # type: ignore[arg-type]
    world.start(writer)
    await world.put(admitted(0))
    await world.decided(writer)
    assert [[event.kind for event in entry.record.events] for entry in await world.entries()] == [["job.queued"]]
    told.set()
    await world.put(inbox.Tick())
    await world.decided(writer)
    assert [event.kind for event in (await world.entries())[1].record.events] == ["job.granted"]


async def test_the_format_of_the_ledger_never_goes_back_whatever_a_successor_was_told(world: World) -> None:
    """A standby asks now and then what may be written, and may take over before it has heard."""
    first = world.writer("w1", snapshot_every=1, allowed=lambda: NEWEST)
    running = world.start(first)
    await world.put(admitted(0))
    await world.decided(first)
    await until(lambda: first.saves.saved > 0)
    await world.stop(running)
    late = world.writer("w2", allowed=lambda: FIRST)
    world.start(late)
    await world.put(admitted(1))
    await world.decided(late)
    assert late.format == NEWEST
    assert [entry.record.format for entry in await world.entries()] == [NEWEST, NEWEST]


async def test_a_jump_of_the_brokers_clock_is_told_and_moves_no_time_also_over_a_restart(world: World) -> None:
    """The broker's clock cannot be set here, so it is the boot clock that stands still: the same difference."""
    hour_us = 3600 * 10**6

    def tick(seconds: int) -> inbox.Tick:
        return inbox.Tick(readings=(BootReading(boot="boot-1", at_us=hour_us + seconds * 10**6),))

    writer = world.writer("w1", batch=1)
    task = world.start(writer)
    await world.put(tick(0), admitted(1))
    await world.decided(writer)
    await world.stop(task)
    again = world.writer("w2", batch=1)
    world.start(again)
    await world.put(tick(7200), admitted(2))
    await world.decided(again)
    records = [e.record for e in await world.entries()]
    (jump,) = [event for r in records for event in r.events if event.kind == "clock.jumped"]
    assert (jump.measured, jump.estimated) == (MeasuredBy.BOOT_TIME, False)
    assert jump.elapsed_us == 2 * hour_us
    assert again.counters.clock_jumps == 1
    assert again.decider.jumps == [jump], "who decides knows it, as who reads does"
    first, last = records[0], records[-1]
    assert abs(last.t_us - first.t_us - 2 * hour_us) < 60 * 10**6
    assert last.wall_us is not None
    assert last.wall_us - first.t_us < 60 * 10**6, "the calendar shows what the broker's clock does"


async def test_hooks_see_every_commit_in_order_and_first_of_all_the_refold(world: World) -> None:
    said: list[Any] = []

    async def committed(seq: int, record: LedgerRecord, decider: Toy) -> None:
        said.append((seq, record.inbox_seq == decider.inbox_seq))

    async def refolded(decider: Toy) -> None:
        said.append("refold")

    writer = world.writer("w1", batch=1, on_commit=[committed], on_refold=[refolded])
    world.start(writer)
    await world.put(*(admitted(n) for n in range(5)))
    await world.decided(writer)
    await asyncio.sleep(0)
    assert said == ["refold", *((seq, True) for seq in range(1, 6))]


async def test_few_inputs_are_decided_at_once_and_many_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_BUSY_EVENTS", 4)
    monkeypatch.setattr(batches, "_ENOUGH_BYTES", 1_000_000)
    writer = world.writer("w1", linger_ms=600_000, batch=16)
    writer._batches.recent_events = DecayingCount(1e-9)  # each is the first for long
    world.start(writer)
    for n in range(3):
        await world.put(admitted(n))
        await world.decided(writer)
    assert await world.ledger_last() == 3
    writer._batches.recent_events = DecayingCount(1e9)  # what came is still felt
    for n in range(3, 43):
        await world.put(admitted(n))
    while writer.counters.inputs < 3 + 16:
        await asyncio.sleep(0.01)
    assert writer.counters.commits <= 3 + 4 + 2, "four at the most before there are many"


async def test_large_inputs_wait_for_no_company(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_BUSY_EVENTS", 0)  # always busy
    writer = world.writer("w1", linger_ms=600_000)
    world.start(writer)
    await world.put(admitted(0, argument="x" * batches._ENOUGH_BYTES))
    await world.decided(writer)
    assert writer.counters.commits == 1


async def test_ticks_alone_write_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_MAX_SKIPPED", 30)
    writer = world.writer("w1", batch=10)
    world.start(writer)
    await world.put(*(inbox.Tick() for _ in range(25)))
    await world.decided(writer)
    assert await world.ledger_last() == 0
    assert writer.counters.skipped == 25
    await world.put(*(inbox.Tick() for _ in range(10)))
    await world.decided(writer)
    [entry] = await world.entries()
    assert entry.record.events == ()
    assert entry.record.inbox_seq >= 30


async def test_a_bad_message_is_rejected_copied_to_the_dead_letters_and_does_not_delay_the_next(world: World) -> None:
    writer = world.writer("w1")
    await world.put_raw("baton.in.job.v1.admitted.main", b"{", {"ce-type": "io.baton.job.admitted.v1"})
    await world.put_raw("baton.in.job.v1.unheard-of.main", b"{}")
    await world.put_raw("baton.in.node.v1.lost.main.n1", b'{"node": 7}', {"ce-type": "x", "ce-specversion": "1.0"})
    await world.put(admitted(1))
    world.start(writer)
    await world.decided(writer)
    toy = await world.folded()
    assert toy.rejected == [1, 2, 3]
    assert list(toy.seen) == [job(1)]
    dead = await world.js.get_msg(DEAD, seq=1)
    assert dead.subject == "baton.dead.placement.-"
    assert dead.data == b"{"
    assert (await world.js.stream_info(DEAD)).state.messages == 3


async def test_a_cancelled_writer_leaves_nothing_undecided_and_nothing_decided_twice(world: World) -> None:
    stored = asyncio.Event()

    async def never_answers(publish: Any) -> Any:
        await publish()
        stored.set()
        await asyncio.Event().wait()

    first = world.start(world.writer("w1", Interposed(world.js, never_answers)))  # type: ignore[arg-type]
    await world.put(admitted(1), admitted(2))
    await stored.wait()
    await world.stop(first)
    second = world.writer("w2")
    await world.put(admitted(3), cancelled(1))
    world.start(second)
    await world.decided(second)
    assert list((await world.folded()).seen) == [job(1), job(2), job(3)]


async def test_a_cancellation_that_a_request_swallows_still_ends_the_writer(world: World) -> None:
    """As `asyncio.wait_for` of Python 3.11 does when the answer comes in the same moment."""
    under_way = asyncio.Event()

    async def swallows(publish: Any) -> Any:
        under_way.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await publish()

    task = world.start(world.writer("w1", Interposed(world.js, swallows)))  # type: ignore[arg-type]
    await world.put(admitted(1))
    await under_way.wait()
    task.cancel()
    await asyncio.wait([task], timeout=20)
    assert task.cancelled()


async def test_an_append_whose_answer_is_lost_is_found_in_the_log(world: World) -> None:
    answers = iter([True, False, True, False, False, True])

    async def loses_some(publish: Any) -> Any:
        await publish()
        if not next(answers, True):
            raise TimeoutError
        raise ConnectionResetError

    writer = world.writer("w1", Interposed(world.js, loses_some), batch=1)  # type: ignore[arg-type]
    world.start(writer)
    await world.put(*(admitted(n) for n in range(6)))
    await world.decided(writer)
    assert len((await world.folded()).seen) == 6
    assert writer.counters.unclear == 6
    assert writer.counters.refused == 0


@pytest.mark.faults
async def test_kill_9_of_the_broker_again_and_again_loses_and_doubles_nothing(world: World) -> None:
    writer = world.writer("w1", batch=4, append_timeout_s=0.5)
    world.start(writer)

    async def feed() -> None:
        for n in range(0, 300, 5):
            await world.put(*(admitted(n + i) for i in range(5)))
            await world.put(cancelled(n))
            await asyncio.sleep(0.02)

    feeder = asyncio.create_task(feed())
    for _ in range(4):
        await asyncio.sleep(0.4)
        await world.broker.restart()
    await feeder
    world.inputs = await world.inbox_last()
    await world.decided(writer)
    toy = await world.folded()
    assert sorted(toy.seen) == sorted(job(n) for n in range(300))
    assert all(e.valid for e in await world.entries())


async def test_forged_records_are_void_for_all_and_do_not_block_the_writer(world: World) -> None:
    writer = world.writer("w1")
    world.start(writer)
    await world.put(admitted(1))
    await world.decided(writer)
    await world.append(GENESIS, inbox_seq=99)
    await world.js.publish(ledger(POOL), b"no record at all")
    await world.js.publish(ledger(POOL), b'{"v": 2, "prev_seq": 1, "prev_hash": "forged"}')
    await world.put(admitted(2))
    await world.decided(writer)
    entries = await world.entries()
    assert [e.valid for e in entries] == [True, False, False, False, True]
    assert list((await world.folded()).seen) == [job(1), job(2)]
    assert writer.counters.voids == 3


async def test_a_record_of_a_later_version_stops_the_writer(world: World) -> None:
    head = await world.append(GENESIS)
    link = f'"prev_seq": {head.seq}, "prev_hash": "{head.hash}"'
    await world.js.publish(ledger(POOL), f'{{"v": 2, {link}}}'.encode())
    with pytest.raises(UnknownRecord, match="record 2 of pool main"):
        await world.writer("w1").run()


async def test_a_record_that_grows_too_large_is_decided_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_RECORD_BYTES", 4000)
    await world.put(*(admitted(n) for n in range(40)))
    writer = world.writer("w1")
    world.start(writer)
    await world.decided(writer)
    entries = await world.entries()
    assert len(entries) > 4
    assert len((await world.folded()).seen) == 40


async def test_an_input_that_leads_to_more_than_the_broker_takes_is_rejected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looped: each time that the ledger was folded again, the same record was made."""
    monkeypatch.setattr(messages, "BESIDE_PAYLOAD_BYTES", world.clients[0].max_payload - 6000)
    await world.put(admitted(1), admitted(2, name="x" * 128, argument="y" * 4000), admitted(3))
    writer = world.writer("w1")
    world.start(writer)
    await world.decided(writer)
    toy = await world.folded()
    assert list(toy.seen) == [job(1), job(3)]
    assert toy.rejected == [2]
    letter = await world.letter()
    assert "the broker takes" in letter.headers[STACK]
    assert letter.data == input_message(admitted(2, name="x" * 128, argument="y" * 4000), "2").payload


async def test_a_hook_that_raises_ends_nothing(world: World) -> None:
    """Telling nodes was such a hook: a message larger than the broker takes put placement into a loop."""

    async def committed(seq: int, record: LedgerRecord, decider: Toy) -> None:
        raise MaxPayloadError

    async def refolded(decider: Toy) -> None:
        raise KeyError("n1")

    writer = world.writer("w1", batch=1, on_commit=[committed], on_refold=[refolded])
    world.start(writer)
    await world.put(*(admitted(n) for n in range(5)))
    await world.decided(writer)
    assert len((await world.folded()).seen) == 5
    assert writer.counters.hook_failures == 6
    assert writer.counters.refolds == 1


async def test_the_decider_is_told_that_ledger_time_is_behind_until_a_tick_has_made_it_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "STEP_US", 0)  # else there would have to be a pause
    monkeypatch.setattr(timing, "TICK_WAIT_S", 0.2)
    told, writer = telling(world)
    for message in (tick(1), admitted(1), admitted(2), tick(2), admitted(3)):
        await world.put(message)
        await world.decided(writer)
    assert told == [(1, False), (1, True), (1, True), (1, False), (1, True)]


def tick(at_us: int) -> inbox.Tick:
    return inbox.Tick(readings=(BootReading(boot="boot-1", at_us=at_us),))


def telling(world: World) -> tuple[list[tuple[int, bool]], LedgerWriter[Toy]]:
    """A writer, and what its decider is told: of how many inputs, and whether ledger time is behind."""
    told: list[tuple[int, bool]] = []

    class Told(Toy):
        def decide(
            self, inputs: Sequence[InboxItem], t_us: int, *, behind: bool = False, jumps: Sequence[Any] = ()
        ) -> list[Any]:
            told.append((len(inputs), behind))
            return super().decide(inputs, t_us, behind=behind)

    writer = LedgerWriter(world.js, POOL, Told, writer_id="w1")
    world.start(writer)
    return told, writer


@pytest.mark.parametrize("claims", [False, True], ids=["tick", "claim"])
async def test_what_comes_before_the_first_tick_after_a_pause_is_decided_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch, claims: bool
) -> None:
    """Else it would be of the time before the pause, or of the present, by which of the two came first."""
    monkeypatch.setattr(clock, "STEP_US", 0)
    monkeypatch.setattr(timing, "TICK_WAIT_S", 600.0)
    told, writer = telling(world)
    await world.put(tick(1))
    await world.decided(writer)
    await world.put(admitted(1))
    await asyncio.sleep(0.1)
    await world.put(admitted(2))
    await asyncio.sleep(0.1)
    assert told == [(1, False)]
    claim = inbox.GranterClaimed(epoch=1, holder="next", term_s=10, max_lease_s=300, readings=tick(2).readings)
    await world.put(claim if claims else tick(2))
    await world.decided(writer)
    assert told == [(1, False), (3, False)]
    await world.put(tick(3))
    await world.decided(writer)
    assert told[-1] == (1, False)


async def test_a_claim_of_the_right_to_tick_by_a_process_of_before_waits_for_no_tick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sends one before that is decided."""
    monkeypatch.setattr(clock, "STEP_US", 0)
    monkeypatch.setattr(timing, "TICK_WAIT_S", 600.0)
    told, writer = telling(world)
    await world.put(tick(1))
    await world.decided(writer)
    await world.put(inbox.GranterClaimed(epoch=1, holder="next", term_s=10, max_lease_s=300))
    await world.decided(writer)
    assert told == [(1, False), (1, True)]


class Flawed(Toy):
    """Falls over job 7, after it has changed its state; it says at which input, or does not."""

    named: ClassVar[bool] = True

    def decide(
        self, inputs: Sequence[InboxItem], t_us: int, *, behind: bool = False, jumps: Sequence[Any] = ()
    ) -> list[Any]:
        for item in inputs:
            if not item.error and isinstance(item.message, inbox.JobAdmitted) and item.message.job_id == job(7):
                self.waiting.append("torn")
                fault = ZeroDivisionError("seven")
                if self.named:
                    fault.inbox_seq = item.seq  # type: ignore[attr-defined]
                raise fault
        return super().decide(inputs, t_us, behind=behind)


class FlawedAndSilent(Flawed):
    named: ClassVar[bool] = False


@pytest.mark.parametrize("decider", [Flawed, FlawedAndSilent])
async def test_an_error_in_a_decision_rejects_the_input_at_fault_and_no_other(world: World, decider: type[Toy]) -> None:
    await world.put(*(admitted(n) for n in range(20)))
    writer = LedgerWriter(world.js, POOL, decider, writer_id="w1")
    world.start(writer)
    await world.decided(writer)
    toy = await world.folded()
    assert list(toy.seen) == [job(n) for n in range(20) if n != 7]
    assert toy.rejected == [8]
    assert "torn" not in writer.decider.waiting
    letter = await world.letter()
    assert "ZeroDivisionError: seven" in letter.headers[STACK]
    assert len(letter.headers[STACK]) < 8000


class Hopeless(Toy):
    def decide(
        self, inputs: Sequence[InboxItem], t_us: int, *, behind: bool = False, jumps: Sequence[Any] = ()
    ) -> list[Any]:
        raise ZeroDivisionError("always")


async def test_an_error_that_no_input_is_at_fault_for_is_loud_and_loses_no_input(world: World) -> None:
    await world.put(*(admitted(n) for n in range(4)))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(LedgerWriter(world.js, POOL, Hopeless, writer_id="w1").run(), 30)
    assert await world.ledger_last() == 0


async def test_a_seal_waits_for_a_broker_that_does_not_tell_its_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at while it is decided, and the writer went down with the question."""
    looks = writer_module.unknown_ledger
    away = iter([TimeoutError(), NatsTimeout()])

    async def unknown_ledger(*asked: Any) -> str:
        if error := next(away, None):
            raise error
        return await looks(*asked)

    monkeypatch.setattr(writer_module, "unknown_ledger", unknown_ledger)
    writer = world.writer("w1")
    running = world.start(writer)
    period = ClosedPeriod(from_us=0, to_us=1, upto_seq=9, head="a" * 64, rows="b" * 64, currency="USD")
    await world.put(admitted(0), inbox.ClosePeriod(period=period))
    await world.decided(writer)
    assert not running.done()
    assert next(away, None) is None, "it was asked again"
