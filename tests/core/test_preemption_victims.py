"""Whom a plan takes, against every set of victims that there is: the lowest class gives way, and cost decides within."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.gang import usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import View
from libs.core.scheduling import preemption
from libs.core.scheduling.preemption.cheapest import groups_of
from libs.core.scheduling.preemption.index import Candidates, Holdings, Possible
from libs.core.scheduling.reservation import Closed
from libs.core.state.job import Job
from schemas import inbox
from schemas.ids import job_id
from schemas.resources import Inventory, Level
from tests.core.builders import World, job, node

URGENT = {"priority": 100, "preempts": True}


def plan_of(w: World, **asked: object):
    """The one plan for an urgent job."""
    w.submit(job("urgent", **URGENT, **asked))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    return plan


def running(w: World, name: str, devices: int, priority: int) -> str:
    started = w.submit(job(name, devices, priority=priority))
    w.started(started)
    return started


def later(w: World, seconds: int) -> None:
    w.now_us += seconds * 1_000_000


def test_a_costly_experiment_gives_way_before_a_production_job_that_has_just_begun():
    w = World(node("n0"))
    experiment = running(w, "experiment", 4, priority=0)
    later(w, 100_000)
    running(w, "production", 4, priority=50)
    assert plan_of(w, devices=4).victims == (experiment,)


def test_many_experiments_give_way_before_one_production_job():
    w = World(node("n0"))
    running(w, "production", 4, priority=50)
    experiments = {running(w, f"experiment{i}", 1, priority=0) for i in range(4)}
    assert set(plan_of(w, devices=4).victims) == experiments


def test_experiments_on_a_wider_level_give_way_before_a_production_job_on_a_nearer_one():
    w = World(node("n0", 4), node("n1", 4))
    running(w, "production0", 2, priority=50)
    running(w, "production1", 2, priority=50)
    lower = {running(w, "experiment0", 2, priority=0), running(w, "experiment1", 2, priority=0)}
    assert {w.nodes_of(one)[0] for one in lower} == {"n1"}
    w.released(job_id("research", "experiment1"))
    w.released(job_id("research", "production1"))
    lower = {running(w, "experiment2", 2, priority=0), running(w, "experiment3", 2, priority=0)}
    assert {w.nodes_of(one)[0] for one in lower} == {"n0", "n1"}, "a node has at most one production job and one other"


def test_who_needs_more_victims_than_a_plan_names_waits_and_ends_no_planning():
    """Preemption ended at each start, as long as these jobs ran: 1,025 small jobs of anybody on two devices were enough."""
    w = World(node("n0", 2))
    for n in range(inbox.MOST_VICTIMS + 1):
        w.submit(job(f"small{n}", share_milli=1))
    w.submit(job("urgent", 2, **URGENT))
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    w.released(job_id("research", "small0"))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    assert len(plan.victims) == inbox.MOST_VICTIMS


def test_of_two_classes_that_must_give_way_the_higher_one_gives_as_little_as_it_can():
    w = World(node("n0"))
    cheap = running(w, "production small", 1, priority=50)
    running(w, "production large", 4, priority=50)
    experiments = {running(w, f"experiment{i}", 1, priority=0) for i in range(3)}
    assert set(plan_of(w, devices=4).victims) == {cheap, *experiments}


def test_within_a_class_the_nearest_level_comes_before_the_cost():
    w = World(node("n0", 4), node("n1", 4))
    whole = running(w, "whole", 4, priority=0)
    later(w, 10_000)
    for i in range(2):
        running(w, f"half{i}", 2, priority=0)
    halves = {job_id("research", "half0"), job_id("research", "half1")}
    assert set(plan_of(w, devices=4, required=Level.NODE).victims) == halves
    assert whole not in halves


def test_the_plan_tells_what_each_victim_costs():
    w = World(node("n0"))
    running(w, "long", 4, priority=0)
    later(w, 100)
    running(w, "short", 4, priority=0)
    plan = plan_of(w, devices=8)
    state = w.decider.state
    costs = tuple(preemption.cost_device_s(state.jobs[victim], w.now_us) for victim in plan.victims)
    assert plan.costs_device_s == pytest.approx(costs)
    assert plan.cost_device_s == pytest.approx(sum(costs))
    assert sorted(costs) == pytest.approx([4 * 30.0, 4 * 130.0], rel=0.01)


# ------------------------------------------------------------------------------------------------- against every choice

jobs = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 2, 3, 4]), st.sampled_from([0, 10, 50]), st.integers(0, 300)),
    min_size=1,
    max_size=6,
)
fleets = st.lists(st.tuples(st.integers(2, 4), st.sampled_from(["leaf-0", "leaf-1"])), min_size=1, max_size=3)
asks = st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([None, None, Level.NODE, Level.LEAF]))


def crowded(fleet: list[tuple[int, str]], wanted: list[tuple[int, int, int]], ask: tuple[int, Level | None]) -> World:
    w = World(*(node(f"n{i}", devices, leaf=leaf) for i, (devices, leaf) in enumerate(fleet)))
    for i, (devices, priority, pause_s) in enumerate(wanted):
        admitted = w.submit(job(f"low{i}", devices, priority=priority))
        if w.state_of(admitted) == "granted":
            w.started(admitted)
        later(w, pause_s)
    w.submit(job("urgent", ask[0], required=ask[1], **URGENT))
    return w


def subsets(victims: list[Job]) -> list[tuple[Job, ...]]:
    return list(chain.from_iterable(combinations(victims, n) for n in range(1, len(victims) + 1)))


class Every:
    """All sets of victims of a pool, and where the urgent job would fit without them."""

    def __init__(self, w: World) -> None:
        state = self.state = w.decider.state
        self.urgent = state.jobs[job_id("research", "urgent")]
        holdings = Holdings(state, w.now_us)
        self.lower = list(holdings.jobs.values())
        self.possible = usable(View.of(state.fleet), self.urgent.shape)
        self.index = preemption.VictimIndex(
            self.urgent, Candidates(holdings, self.lower), Possible(self.possible, Closed(~self.possible))
        )
        self.context = context_of(state, self.urgent, w.now_us)
        self.levels = allowed_levels(self.urgent.shape, self.context)

    def fits(self, victims: tuple[Job, ...], inside: np.ndarray) -> bool:
        view = preemption.would_be_free(self.state, list(victims))
        view.blocked |= ~inside
        return isinstance(find(view, self.urgent.shape, context=self.context), Placed)

    def groups(self, level: str) -> list[np.ndarray]:
        rows = np.flatnonzero(self.possible)
        codes = spans_at(self.state.fleet, level, rows, within=self.levels[-1])
        return groups_of(rows, codes, self.urgent.shape.least)

    def within(self, group: np.ndarray) -> list[tuple[Job, ...]]:
        """The sets of victims that hold something in `group` and make room there."""
        inside = np.zeros(len(self.possible), dtype=np.bool_)
        inside[group] = True
        there = self.index.frees(group)
        return [s for s in subsets([self.index.victims[v] for v in there]) if self.fits(s, inside)]


@settings(max_examples=120)
@given(fleets, jobs, asks)
def test_no_higher_class_and_no_wider_level_than_needed_and_the_cost_within_one_victim(fleet, wanted, ask):
    w = crowded(fleet, wanted, ask)
    every = Every(w)
    if every.urgent.current is not None:
        return
    made = preemption.plans(w.decider.state, w.now_us, len(w.records))
    enough = [s for s in subsets(every.lower) if every.fits(s, every.possible)]
    assert bool(made) == bool(enough)
    if not made:
        return
    (plan,) = made
    chosen = [w.decider.state.jobs[victim] for victim in plan.victims]
    highest = min(max(v.priority for v in s) for s in enough)
    assert max(v.priority for v in chosen) == highest, "a higher class gives way although lower ones alone would do"

    found: list[tuple[Job, ...]] = []
    nearest = ""
    for level in every.levels:
        found = [s for g in every.groups(level) for s in every.within(g) if max(v.priority for v in s) == highest]
        if found:
            nearest = level
            break
    rows = [w.decider.state.fleet.devices.find(device) for device in plan.devices]
    assert any(set(rows) <= set(group.tolist()) for group in every.groups(nearest)), f"wider than {nearest}"

    place = every.index.classes.index(highest)
    least = min(every.index.costs(s) for s in found)
    cost = every.index.costs(chosen)
    dearest = max(every.index.cost[v.id] for v in every.lower if v.priority == highest)
    assert cost >= least, "the brute force has missed a set"
    assert cost[place] <= least[place] + dearest
    if all(len(v.current.claims) == 1 for v in every.lower if v.current):
        assert cost == least, "of victims with one device each, greedy is exact"
    w.send(plan)
    assert w.state_of(plan.victims[0]) == "preempting"
    w.check()


@settings(max_examples=80)
@given(fleets, jobs, asks, st.sampled_from([1000, 1000, 500]))
def test_the_bound_of_a_group_is_below_all_that_makes_room_there(fleet, wanted, ask, share):
    w = crowded(fleet, wanted, ask)
    if share < 1000:
        w.submit(job("share", 1, share_milli=share, priority=0))
        w = crowded(fleet, [*wanted, (1, 0, 5)], (1, ask[1]))
    every = Every(w)
    if every.urgent.current is not None:
        return
    for level in every.levels:
        for group in every.groups(level):
            bound, found = every.index.bound(group), every.within(group)
            if bound is None:
                assert not found, "a group was left out that would do"
            for victims in found:
                assert bound is not None
                assert bound[0] <= every.index.costs(victims)


def with_processors(inventory: Inventory, cpus: int) -> Inventory:
    return inventory.model_copy(update={"cpus": cpus, "memory_mib": 100_000})


def needing(name: str, devices: int, cpu_milli: int, **asked: object) -> inbox.JobAdmitted:
    """A job that needs so many thousandths of a processor for each device."""
    made = job(name, devices, **asked)
    resources = made.spec.resources.model_copy(update={"cpu_milli": cpu_milli})
    return made.model_copy(update={"spec": made.spec.model_copy(update={"resources": resources})})


def test_processors_that_are_kept_for_one_beneficiary_are_not_counted_on_for_the_next():
    w = World(with_processors(node("small", 1), 2), with_processors(node("large", 6), 8))
    beside = w.submit(needing("beside", 1, 1000))
    w.started(beside)
    below = w.submit(needing("below", 4, 1000))
    w.started(below)
    assert (w.nodes_of(beside), w.nodes_of(below)) == (["small"], ["large"])
    w.submit(needing("first", 4, 2000, **URGENT))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    second = w.submit(needing("second", 1, 1000, **URGENT))
    assert w.state_of(second) == "queued", "large has a device left, and its processors are kept for the first"
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    assert (plan.beneficiary, plan.victims) == (second, (beside,))
