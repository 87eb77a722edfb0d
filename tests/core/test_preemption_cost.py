"""What planning costs: it grows with what the pool holds, and not with it times who waits. Searches and questions are counted,
not timed."""

from typing import Any

import pytest

from libs.core.placement.find import find
from libs.core.scheduling import preemption
from libs.core.scheduling.order import in_turn
from libs.core.scheduling.preemption import index, victims
from libs.core.scheduling.preemption_guard import PreemptionGuard
from libs.core.scheduling.queues import Reclaim
from libs.core.state.job import Job
from schemas import inbox
from schemas.queues import PoolPreemptionRate, PreemptionLimits, Queue
from schemas.resources import Level, Topology, TopologyPolicy
from tests.core.builders import World, job, node

URGENT: dict[str, Any] = {"priority": 100, "preempts": True}


def plan_of(w: World, devices: int) -> inbox.PreemptionPlanned:
    """The one plan for an urgent job."""
    w.submit(job("urgent", devices, **URGENT))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    return plan


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each search of a place without some victims."""
    made: list[int] = []

    def counted(*args: Any, **kw: Any) -> Any:
        made.append(1)
        return find(*args, **kw)

    monkeypatch.setattr(index, "find", counted)
    return made


def runs(w: World, name: str, **more: Any) -> str:
    started = w.submit(job(name, **more))
    w.started(started)
    return started


def shared(nodes: int, devices: int, of_each: int) -> World:
    """A pool full of shares, so many of each device."""
    w = World(*(node(f"n{i}", devices) for i in range(nodes)))
    w.send(*(job(f"small{n}", share_milli=1000 // of_each) for n in range(nodes * devices * of_each)))
    return w


def test_of_groups_that_are_alike_few_are_searched(searches: list[int]) -> None:
    """One device of shares was 1.4 s of planning in a pool of 1,024 devices: the bound of each node was one share, though ten
    had to go, and so each was searched."""
    made = []
    for nodes in (2, 12):
        searches.clear()
        assert len(plan_of(shared(nodes, 2, 5), devices=1).victims) == 5
        made.append(len(searches))
    assert made[0] == made[1]


def test_for_who_needs_more_victims_than_a_plan_names_nobody_is_searched(searches: list[int]) -> None:
    """Its shares were searched for at each record, for nothing."""
    w = World(node("n0", 2))
    w.send(*(job(f"small{n}", share_milli=1) for n in range(inbox.MOST_VICTIMS + 1)))
    w.submit(job("urgent", 2, **URGENT))
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    assert len(searches) <= 2, "whether it fits without all of them, and which classes that takes"


def test_many_shapes_that_wait_in_vain_ask_together_whom_a_limit_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looked through all that runs anew, some 30 ms with ten thousand shares."""
    w = World(node("n0", 8), node("other", 1, model="H200"))
    w.submit(job("own", types=("H200",), **URGENT))
    w.send(*(job(f"low{n}", types=("H100",)) for n in range(8)))
    w.send(*(job(f"vain{n}", types=("H200",), share_milli=100 + n, **URGENT) for n in range(20)))
    asked: list[str] = []
    until_us = PreemptionGuard.until_us

    def counted(guard: PreemptionGuard, victim: Job, **kw: Any) -> int:
        asked.append(victim.id)
        return until_us(guard, victim, **kw)

    monkeypatch.setattr(PreemptionGuard, "until_us", counted)
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    assert sorted(asked) == sorted(set(asked))


def test_nobody_is_searched_for_while_nobody_more_may_give_way(searches: list[int]) -> None:
    limits = PreemptionLimits(per_pool=PoolPreemptionRate(most=1, within_s=600))
    w = World(node("n0", 2))
    w.send(inbox.ApplyQueues(version=1, queues=(), preemption=limits))
    low = [runs(w, f"low{n}", team="blue") for n in range(2)]
    w.send(plan_of(w, devices=1))
    w.submit(job("next", 1, **URGENT))
    searches.clear()
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    assert not searches
    assert {w.state_of(one) for one in low} == {"preempting", "running"}


def test_of_jobs_that_widen_later_only_those_that_may_be_planned_for_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A team's 100,000 gangs in one queue took 0.17 s after each record."""
    near = Topology(level=Level.NODE, policy=TopologyPolicy.PREFERRED, widen_after_s=100)
    w = World(node("n0", 2))
    w.submit(job("own", 2, **URGENT))
    for n in range(20):
        admitted = job(f"gang{n}", 2, submitted_us=2 + n, **URGENT)
        resources = admitted.spec.resources.model_copy(update={"topology": near})
        w.submit(admitted.model_copy(update={"spec": admitted.spec.model_copy(update={"resources": resources})}))
    state = w.decider.state
    (gangs,) = (list(queue) for queue in state.queues.values())
    seen: list[str] = []

    def noted(*args: Any) -> Any:
        for one in in_turn(*args):
            seen.append(one)
            yield one

    monkeypatch.setattr(victims, "in_turn", noted)
    widens = [state.jobs[one].queued_us + 100_000_000 for one in gangs]
    assert preemption.next_turn_us(state, w.now_us) == widens[0]
    assert seen == gangs[:1]
    seen.clear()
    w.now_us = widens[0]
    assert preemption.next_turn_us(state, w.now_us, passed={gangs[0]}) == widens[1], "the first has a plan"
    assert seen == gangs[:2]


def test_who_borrowed_is_not_asked_for_a_job_that_would_not_fit_without_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ten thousand shares that ran, each shape of a team that took nothing back cost 0.1 s, and 0.4 s with a half-life."""
    w = World(node("n0", 8), node("other", 1, model="H200"))
    queues = (Queue(name="evil", guaranteed={"*": 8_000}), Queue(name="research"))
    w.send(inbox.ApplyQueues(version=1, queues=queues, half_life_s=3600))
    w.submit(job("own", types=("H200",), team="evil"))
    w.send(*(job(f"low{n}", types=("H100",)) for n in range(8)))
    w.send(*(job(f"vain{n}", types=("H200",), share_milli=100 + n, team="evil") for n in range(5)))
    asked: list[str] = []
    for rule in ("lends", "evens"):
        monkeypatch.setattr(Reclaim, rule, lambda reclaim, victim, *more, **by_name: asked.append(victim.id))
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    assert asked == []
