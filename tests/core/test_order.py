"""One order: who the cycle considers first is first for explain, the dry run and preemption too."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings

from libs.core.explain.waiting import explain, jobs_ahead, queue_view
from libs.core.scheduling import cycle, preemption
from libs.core.state.fleet import Fleet
from libs.core.state.model import State
from schemas import inbox
from schemas.resources import WHOLE_MILLI
from tests.core.builders import World, job, node
from tests.core.crowds import Crowd, steps, uncapped


def played(life: list[Any]) -> Crowd:
    """The crowd after its life; more jobs come at the end, so that some wait, three of the highest class among them."""
    crowd = Crowd()
    for step in (*life, ("batch", len(life), 3), *(("submit", 49, size) for size in (2, 3, 4))):
        crowd.play(step)
    return crowd


def emptied(state: State) -> State:
    """The same jobs and shares on a fleet where everything is free and nobody is limited."""
    free = replace(state, fleet=deepcopy(state.fleet), quotas={})
    fleet: Fleet = free.fleet
    fleet.free_milli[:], fleet.free_mib[:] = WHOLE_MILLI, fleet.memory_mib
    fleet.free_cpu[:], fleet.free_host[:] = fleet.cpu_milli, fleet.host_mib
    return free


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(life=steps)
def test_the_first_of_the_cycle_is_the_first_of_explain_and_of_preemption(life: list[Any]) -> None:
    crowd = played(life)
    state, t_us, policy = crowd.state, crowd.state.t_us, uncapped(crowd.world.decider.policy)
    assume(state.queues)
    shown = queue_view(state, crowd.world.decider.plan, 5000, policy)
    first = state.jobs[shown[0].job_id]

    in_cycle = [grant.job.id for grant in cycle.plan(emptied(state), t_us, policy).grants]
    if first.id in in_cycle:  # else it would not fit on the nodes that are up
        assert in_cycle[0] == first.id

    assert explain(state, first, crowd.world.decider.plan, policy).ahead == 0
    assert [jobs_ahead(state, state.jobs[one.job_id], t_us, policy) for one in shown] == list(range(len(shown)))
    assert {one.job_id for one in shown} == {job_id for queue in state.queues.values() for job_id in queue}

    plans = preemption.plans(state, t_us, 1, policy=policy)
    if first.preempts and first.id not in state.holds and preemption.choice_for(state, first, t_us, policy):
        assert plans[0].beneficiary == first.id


def test_an_old_gang_comes_before_a_younger_job_of_a_team_that_holds_less():
    """Its reservation is due: explain, the queue and the cycle agree that it is first."""
    w = World(node("n0", 8))
    w.started(w.submit(job("busy", 8, team="big")))
    gang = w.submit(job("gang", 8, team="big", submitted_us=5))
    small = w.submit(job("small", 1, team="small", submitted_us=9))
    before = [one.job_id for one in queue_view(w.decider.state, w.decider.plan, 9)]
    assert before == [small, gang]
    w.send(inbox.Tick(), after_us=61_000_000)
    state, plan = w.decider.state, w.decider.plan
    assert [one.job_id for one in queue_view(state, plan, 9)] == [gang, small]
    assert [explain(state, state.jobs[one], plan).ahead for one in (gang, small)] == [0, 1]
    assert [g.job.id for g in cycle.plan(emptied(state), state.t_us).grants] == [gang]


def test_nobody_is_evicted_for_a_job_that_the_cycle_would_not_take_next():
    """Two teams wait for one place: the younger job's team holds less, so it is next, and victims give way to it alone."""
    w = World(node("n0", 8), node("n1", 8))
    urgent = {"priority": 100, "preempts": True}
    w.started(w.submit(job("rich has this", 8, team="rich", **urgent)))
    w.started(w.submit(job("victim", 8, team="poor")))
    w.submit(job("older", 8, team="rich", submitted_us=2, **urgent))
    younger = w.submit(job("younger", 8, team="fresh", submitted_us=3, **urgent))
    (plan,) = preemption.plans(w.decider.state, w.now_us, 1)
    assert plan.beneficiary == queue_view(w.decider.state, w.decider.plan, 1)[0].job_id == younger
