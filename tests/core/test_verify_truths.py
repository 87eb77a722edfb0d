"""Ledgers that look like lies and are none: the checker says nothing of them."""

from collections.abc import Iterator

import pytest

from libs.core.projections.verify import hosts, outcomes
from libs.core.scheduling import retry
from libs.core.scheduling.policy import Policy
from libs.core.state import usable
from libs.core.state.clock import LedgerClock
from libs.core.state.formats import FIRST
from schemas import inbox
from schemas import ledger as led
from schemas.clock import BootReading, ClockMark
from schemas.ids import job_id
from schemas.jobs import JobState
from tests.core.builders import World, job, node
from tests.core.lives import ON_A_CLOCK, begins_anew, records_of
from tests.core.test_verify_lies import report


def test_a_node_is_lost_whose_lease_was_shorter_than_its_jobs_class_allows() -> None:
    """It was taken for an end that came too early."""
    w = World(node("n0"))
    w.send(inbox.GranterClaimed(epoch=1, holder="a", term_s=5, max_lease_s=30))
    w.submit(job("long", 8).model_copy(update={"lease_s": 900}))
    w.started(job_id("research", "long"))
    w.send(inbox.NodeSilent(node="n0", incarnation=1, silent_s=16), after_us=22_000_000)
    w.send(inbox.NodeLost(node="n0", incarnation=1, silent_s=40), after_us=24_000_000)
    assert not w.nodes_of(job_id("research", "long"))
    w.check()


@pytest.mark.parametrize(("restored_s", "holds"), [(3600, True), (1, False)])
def test_the_lives_of_a_restored_ledger_end_before_a_tick_says_how_late_it_is(restored_s: int, holds: bool) -> None:
    """An input takes ledger time along by five seconds at the most; who granted leases was named just before the backup."""
    start_us, second = 1_800_000_000_000_000, 1_000_000
    w = World(node("n0"))
    w.submit(job("runs"))
    for epoch in (1, 2):
        w.send(inbox.GranterClaimed(epoch=epoch, holder=f"p{epoch}", term_s=10, max_lease_s=300))
    w.send(inbox.NodeLost(node="n0", incarnation=1, silent_s=900))
    records = []
    for record in w.records:
        late_s = restored_s if record is w.records[-1] else 0
        mark = ClockMark(t_us=start_us, wall_us=start_us, readings=())
        told = {"t_us": start_us + min(late_s, 5) * second, "wall_us": start_us + late_s * second, "clock": mark}
        records.append(record.model_copy(update=told))
    found = report(records).violations
    assert (found == []) is holds, found
    assert holds or "who granted them before may have renewed them since" in found[0]


@pytest.mark.parametrize("declared", [FIRST, None])
def test_while_older_readers_live_the_clock_jumps_untold(declared: int | None) -> None:
    """What they do not know is not written."""
    newer = ("lease.granter", "clock.jumped")

    def known(record: led.LedgerRecord) -> Iterator[led.LedgerEvent]:
        for e in record.events:
            if e.kind not in newer:
                yield e.model_copy(update={"failures": 0}) if isinstance(e, led.JobRequeued) else e

    records = [
        record.model_copy(update={"format": declared, "events": tuple(known(record))})
        for record in records_of(ON_A_CLOCK)
    ]
    assert report(records).ok


def test_a_jump_that_was_seen_just_before_the_last_older_reader_was_gone_is_not_told() -> None:
    """It came with a tick that led to no record; the next one was of the newer format (seed 6092)."""
    records = records_of(ON_A_CLOCK)
    at = next(n for n, record in enumerate(records) if any(e.kind == "clock.jumped" for e in record.events))
    newer = ("lease.granter", "clock.jumped")
    told = [
        record.model_copy(
            update={
                "format": FIRST if n < at else record.format,
                "events": tuple(e for e in record.events if n > at or e.kind not in newer),
            }
        )
        for n, record in enumerate(records)
    ]
    assert report(told).violations == []


@pytest.mark.parametrize(("set_by_s", "holds"), [(0, True), (-7200, False), (7200, False)])
def test_after_a_pause_of_everything_inputs_come_before_the_first_tick(set_by_s: int, holds: bool) -> None:
    """Each takes ledger time along by little, and shows what the wall clock shows; the tick behind them says how long it was.
    Found by stopping a pool for an hour: `ledger verify` called it a lie. A wall clock that nothing explains still is one."""
    second, start_us, pause_s = 1_000_000, 1_800_000_000_000_000, 3000
    clock, records = LedgerClock(), list[led.LedgerRecord]()
    for at_s, ticks in ((0, True), (1, True), (pause_s, False), (pause_s + 3, False), (pause_s + 6, True)):
        wall_us = start_us + at_s * second
        clock = clock.tick(wall_us, (BootReading(boot="b", at_us=at_s * second),))[0] if ticks else clock.input(wall_us)
        shown_us = wall_us + (0 if ticks else set_by_s * second)
        records.append(
            led.LedgerRecord(
                pool="main", prev_seq=0, prev_hash="", inbox_seq=len(records) + 1, t_us=clock.t_us, wall_us=shown_us,
                clock=clock.mark, format=2, writer="w", events=(),
            )
        )  # fmt: skip
    assert records[2].t_us < records[4].t_us - 2900 * second, "they were behind"
    found = report(records).violations
    assert (found == []) is holds, found


@pytest.mark.parametrize("declared", [FIRST, None])
def test_while_older_readers_live_lost_jobs_wait_for_nothing(declared: int | None) -> None:
    w = World(node("n0", 1), node("n1", 1), allowed=FIRST)
    unlucky = w.submit(job("unlucky"))
    for _ in range(9):
        begins_anew(w, w.nodes_of(unlucky)[0])
    assert w.state_of(unlucky) == "ended"
    assert report([record.model_copy(update={"format": declared}) for record in w.records]).violations == []


def test_losses_were_a_budget_once() -> None:
    """As 0.1.0 wrote it: nothing is told of losses, and the fourth ends the job."""
    w = World(node("n0", 1), node("n1", 1), allowed=FIRST)
    unlucky = w.submit(job("unlucky"))
    for _ in range(9):
        begins_anew(w, w.nodes_of(unlucky)[0])
    told, losses = [], 0
    for record in w.records:
        events = []
        for event in record.events:
            losses += event.kind == "job.requeued"
            if event.kind == "job.requeued":
                ends = led.JobFinished(job_id=unlucky, state=JobState.FAILED, reason="lost")
                events.append(event.model_copy(update={"losses": 0}) if losses <= 3 else ends)
            elif event.kind != "job.granted" or losses <= 3:
                events.append(event)
        told.append(record.model_copy(update={"events": tuple(events), "format": None}))
        if losses > 3:
            break
    assert report(told).violations == []
    declared = [record.model_copy(update={"format": FIRST}) for record in told]
    assert "was lost 1 times in a row, and it is told as 0" in str(report(declared).violations)


def test_the_checker_has_placements_figures_though_not_its_code() -> None:
    assert (usable.MOST_PARTS, Policy().claims_per_cycle) == (hosts.MOST_PARTS, hosts.MOST_AT_ONCE)
    checked = [outcomes.wait_s(losses) * 1_000_000 for losses in range(40)]
    assert checked == [retry.wait_us(losses) for losses in range(40)]


def full(monkeypatch: pytest.MonkeyPatch, *, placement: int, checker: int, at_once: int = 1024) -> World:
    """A node that is granted small jobs, one by one and many at once; placement has one bound, the checker another."""
    monkeypatch.setattr(usable, "MOST_PARTS", placement)
    monkeypatch.setattr(hosts, "MOST_PARTS", checker)
    monkeypatch.setattr(hosts, "MOST_AT_ONCE", at_once)
    w = World(node("n0", 2))
    first = [w.submit(small(str(i))) for i in range(3)]
    w.started(first[0])
    w.send(*(small(f"crowd{i}") for i in range(4)))
    w.released(first[0])
    w.submit(small("next"))
    return w


def small(name: str) -> inbox.JobAdmitted:
    return job(f"small{name}", share_milli=1, memory_gib=1)


def test_a_node_runs_as_many_parts_as_it_may_and_what_one_cycle_grants_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    w = full(monkeypatch, placement=5, checker=5)
    assert len(w.decider.state.on_node["n0"]) > 5
    w.check()


@pytest.mark.parametrize(("checker", "at_once", "about"), [(3, 1024, "part 4"), (5, 1, "part 7"), (6, 1024, "part 7")])
def test_a_node_that_is_full_is_granted_nothing(
    monkeypatch: pytest.MonkeyPatch, checker: int, at_once: int, about: str
) -> None:
    w = full(monkeypatch, placement=99, checker=checker, at_once=at_once)
    found, *_ = w.checker.finish().violations
    assert found.startswith("I1 at seq")
    assert about in found
    monkeypatch.setattr(hosts, "MOST_PARTS", checker)
    undeclared = report([record.model_copy(update={"format": None}) for record in w.records])
    assert undeclared.violations == [], "before records declared their format, there was no such bound"


@pytest.mark.parametrize("declared", [FIRST, None])
def test_while_older_readers_live_the_reason_says_that_a_node_was_declared_dead(declared: int | None) -> None:
    w = World(node("n0", 1), allowed=FIRST)
    kept = w.submit(job("kept").model_copy(update={"lease_s": 0}))
    w.started(kept)
    w.send(inbox.NodeDead(node="n0", fenced_by="power off", user="olga"))
    assert w.state_of(kept) == "queued"
    told = [record.model_copy(update={"format": declared}) for record in w.records]
    assert report(told).violations == []
    *before, last = told
    events = tuple(
        e.model_copy(update={"reason": "silent for an hour"}) if isinstance(e, led.DevicesFreed) else e
        for e in last.events
    )
    (broken,) = report([*before, last.model_copy(update={"events": events})]).violations
    assert "is kept, and silence of node n0 ends it" in broken
