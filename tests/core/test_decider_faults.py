"""Errors of ours in a decision: one input or one job pays for them, the others are decided as if it had not been there."""

from typing import Any

import pytest

from libs.core.scheduling import cycle, decider
from libs.core.scheduling.decider import Decider, DecisionFailed
from libs.core.scheduling.reactions import requests
from schemas import ledger
from schemas.ids import job_id
from tests.core.builders import World, job, node

BAD = job_id("research", "bad")


@pytest.fixture
def world() -> World:
    return World(node("n1", 4))


def kinds(events: list[Any]) -> list[str]:
    return [event.kind for event in events]


def test_an_input_that_placement_fails_on_is_rejected_and_the_rest_of_the_batch_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(d: Any, m: Any) -> None:
        if m.job_id == BAD:
            raise ZeroDivisionError("bad")
        requests.job_admitted(d, m)

    monkeypatch.setitem(decider.react.__globals__["_REACTIONS"], type(job("bad")), fails)
    events = world.send(job("a"), job("bad"), job("b"))
    assert kinds(events) == ["job.queued", "input.rejected", "job.queued", "job.granted", "job.granted"]
    assert "ZeroDivisionError: bad" in events[1].reason
    (fault,) = world.decider.faults
    assert fault.inbox_seq == events[1].inbox_seq
    assert "in fails" in fault.stack
    world.send(job("c"))
    assert world.decider.faults == []


def test_an_input_that_has_changed_something_before_it_failed_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(d: Any, m: Any) -> None:
        requests.job_admitted(d, m)
        raise ZeroDivisionError("late")

    monkeypatch.setitem(decider.react.__globals__["_REACTIONS"], type(job("bad")), fails)
    with pytest.raises(DecisionFailed) as failed:
        world.send(job("bad"))
    assert failed.value.inbox_seq == world.decider.inbox_seq + 1


def test_a_job_that_cannot_be_planned_for_is_ended_and_the_others_are_granted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching = cycle._search

    def fails(state: Any, view: Any, one: Any, *rest: Any) -> Any:
        if one.id == BAD:
            raise ZeroDivisionError("bad")
        return searching(state, view, one, *rest)

    monkeypatch.setattr(cycle, "_search", fails)
    events = world.send(job("a", submitted_us=1), job("bad", 2, submitted_us=2), job("b", submitted_us=3))
    ended = [e for e in events if isinstance(e, ledger.JobFinished)]
    assert [(e.job_id, e.state) for e in ended] == [(BAD, "cancelled")]
    assert "ZeroDivisionError: bad" in ended[0].reason
    granted = [e.job_id for e in events if isinstance(e, ledger.JobGranted)]
    assert granted == [job_id("research", "a"), job_id("research", "b")]
    assert [fault.about for fault in world.decider.faults] == [BAD]


def test_an_error_that_is_no_jobs_fault_grants_nothing_this_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(cycle, "reserve_host_resources", lambda *_: 1 / 0)
        assert kinds(world.send(job("a"))) == ["job.queued"]
        assert [fault.about for fault in world.decider.faults] == ["the cycle"]
    assert kinds(world.send(job("b"))) == ["job.queued", "job.granted", "job.granted"]


def test_a_job_whose_grant_no_record_can_hold_is_ended_with_the_reason() -> None:
    world = World(*(node(f"n{n}", 8) for n in range(16)))
    world.decider = Decider(world.decider.state, largest_event=6000)
    events = world.send(job("large", 120), job("small", 8))
    assert sorted(kinds(events)) == ["job.finished", "job.granted", "job.queued", "job.queued"]
    (ended,) = [e for e in events if isinstance(e, ledger.JobFinished)]
    assert ended.job_id == job_id("research", "large")
    assert "the broker takes 6000: raise its max_payload" in ended.reason


def test_a_job_whose_grant_cannot_be_folded_is_ended_once_the_state_is_whole_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    condemned: dict[str, str] = {}
    world.decider = Decider(world.decider.state, condemned=condemned)
    planning = cycle.plan

    def fails(*given: Any) -> cycle.Plan:
        plan = planning(*given)
        return cycle.Plan([cycle.Grant(grant.job, plan.grants[0].claims) for grant in plan.grants], plan.waiting)

    both = job("a", submitted_us=1), job("bad", submitted_us=2)
    with monkeypatch.context() as broken:
        broken.setattr(cycle, "plan", fails)
        with pytest.raises(DecisionFailed) as failed:
            world.send(*both)
    assert failed.value.inbox_seq == 0, "no input is at fault"
    assert list(condemned) == [BAD]
    again = World(node("n1", 4))
    again.decider = Decider(again.decider.state, condemned=condemned)
    assert kinds(again.send(*both)) == ["job.queued", "job.queued", "job.finished", "job.granted"]
