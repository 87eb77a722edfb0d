"""The first gang that waits is told when it starts; the time moves later only for a cause."""

from typing import Any

import pytest

from libs.core.scheduling.decider import Decider
from schemas import inbox
from schemas.jobs import PromiseCause
from schemas.ledger import GangPromised, JobGranted
from schemas.queues import Queue
from schemas.resources import Level, Role, Topology, TopologyPolicy
from services.placement.handlers import promise_errors_s
from tests.core.builders import World, job, node

S = 1_000_000


def full(order: str | None = None, limit_s: float = 600) -> World:
    w = World(node("n0"), node("n1"))
    if order:
        w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="research", order=order),)))
    for n in range(2):
        w.started(w.submit(job(f"runs{n}", 8, time_limit_s=limit_s * (n + 1))))
    return w


def tick(w: World, after_s: float = 1) -> list[GangPromised]:
    return [e for e in w.send(inbox.Tick(), after_us=int(after_s * S)) if isinstance(e, GangPromised)]


@pytest.mark.parametrize("order", [None, "fifo", "shortest-remaining", "least-attained"])
def test_the_first_gang_that_waits_is_told_once_when_it_starts(order: str | None) -> None:
    w = full(order)
    gang = w.submit(job("gang", 8))
    w.submit(job("behind", 8))
    (told,) = tick(w)
    assert told.job_id == gang
    assert told.promise.cause is None
    assert w.now_us < told.promise.p50_us <= told.promise.start_us
    if order in (None, "fifo"):
        assert told.promise.start_us == pytest.approx(w.now_us + (600 * 1.1 + 60) * S, abs=2 * S)
    assert tick(w) == []
    w.check()


def test_while_ledger_time_is_behind_nothing_is_promised() -> None:
    """A promise of an old time is late when it is told."""
    w = full()
    w.submit(job("gang", 8))
    assert w.send(inbox.Tick(), after_us=S, behind=True) == []
    (told,) = tick(w)
    assert told.promise.p50_us > w.now_us


def test_a_gang_of_two_nodes_is_told_as_well_and_a_single_device_is_not() -> None:
    w = full()
    w.submit(job("single", 1))
    gang = w.submit(job("wide", 16))
    (told,) = tick(w)
    assert told.job_id == gang
    assert told.promise.start_us == pytest.approx(w.now_us + (1200 * 1.1 + 60) * S, abs=2 * S)


def test_a_gang_of_whole_nodes_is_told_although_as_many_devices_are_free_here_and_there() -> None:
    w = World(*(node(f"n{n}") for n in range(6)))
    for n in range(6):
        w.started(w.submit(job(f"runs{n}", 5, time_limit_s=600 * (n + 1))))
    on_one = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
    gang = w.submit(job("wide", 16, roles=(Role(name="nodes", count=2, devices=8, topology=on_one),)))
    (told,) = tick(w)
    assert told.job_id == gang
    assert told.promise.p50_us == pytest.approx(w.now_us + 1200 * S, abs=2 * S), "the two nodes that are free first"


@pytest.mark.parametrize("stopped", [False, True])
def test_a_device_that_several_share_is_free_when_the_last_of_them_ends(stopped: bool) -> None:
    w = World(node("n0", 2))
    halves = [
        w.submit(job(f"half{n}", share_milli=500, time_limit_s=limit_s))
        for n, limit_s in enumerate((600, 1200, 300, 900))
    ]
    for half in halves:
        w.started(half)
    if stopped:  # no more than its grace
        w.send(inbox.CancelRequested(job_id=halves[1], team="research", reason="no more"))
    w.submit(job("gang", 2))
    (told,) = tick(w)
    assert told.promise.start_us == pytest.approx(w.now_us + ((900 if stopped else 1200) * 1.1 + 60) * S, abs=2 * S)
    w.check()


def test_each_team_and_class_has_its_own_first_gang() -> None:
    w = full()
    names = [w.submit(job("gang", 8, team=team)) for team in ("blue", "red")]
    names.append(w.submit(job("higher", 8, priority=5)))
    names.append(w.submit(job("lower", 8)))
    assert {one.job_id for one in tick(w)} == set(names)


def test_a_fault_moves_a_promise_and_says_so_and_nothing_else_does() -> None:
    w = full()
    w.submit(job("gang", 8))
    (first,) = tick(w)
    assert tick(w, 90) == []
    (soon,) = w.nodes_of(next(iter(w.decider.state.jobs)))
    w.send(inbox.NodeSilent(node=soon, incarnation=1, silent_s=6), after_us=S)
    (moved,) = tick(w)
    assert moved.promise.cause is PromiseCause.FAULT
    assert moved.promise.start_us > first.promise.start_us + 500 * S
    assert tick(w, 90) == [], "one fault moves it once"
    w.check()


def test_jobs_of_a_higher_class_move_it_when_they_take_its_place() -> None:
    w = full()
    w.submit(job("gang", 8))
    tick(w)
    w.send(inbox.Tick(), after_us=100 * S)
    urgent = w.submit(job("urgent", 8, priority=9, time_limit_s=5000))
    w.released(next(iter(w.decider.state.jobs)))
    w.started(urgent)
    (moved,) = tick(w)
    assert moved.promise.cause is PromiseCause.HIGHER_CLASS
    w.check()


def test_a_snapshot_and_a_reader_know_the_promise_and_its_error_is_told_once() -> None:
    w = full()
    gang = w.submit(job("gang", 8))
    (told,) = tick(w)
    for decider in (w.replica, Decider.load(list(w.decider.dump()))):
        assert decider.turns.book.of[gang].last == told.promise
    w.send(inbox.Tick(), after_us=100 * S)
    w.released(next(iter(w.decider.state.jobs)))
    assert any(isinstance(e, JobGranted) and e.job_id == gang for e in w.records[-1].events)
    (error_s,) = promise_errors_s(w.records[-1], w.decider)
    assert error_s == pytest.approx((w.now_us - told.promise.start_us) / 1e6)
    assert error_s < 0, "kept"
    assert promise_errors_s(w.records[-1], w.decider) == []
    w.check()


def test_a_pool_where_nothing_ends_by_what_is_known_promises_by_what_is_learned() -> None:
    w = full(limit_s=0)
    w.submit(job("gang", 8))
    told: list[Any] = tick(w)
    assert len(told) == 1, "history of others, or at first what is imagined of it"


def test_a_gang_that_waits_for_something_else_than_ends_is_promised_nothing() -> None:
    w = World(node("n0"), node("n1"))
    for n in range(2):
        w.started(w.submit(job(f"part{n}", 5, time_limit_s=600)))
    w.submit(job("near", 6, required=Level.NODE))
    assert len(tick(w)) == 1, "what runs on one node has to end"
    w = full()
    w.send(inbox.QuotaChanged(team="blue", limit_milli=4000))
    w.submit(job("limited", 8, team="blue"))
    assert tick(w) == [], "its quota keeps it, whoever ends"
    w.check()
