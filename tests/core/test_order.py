"""One order: who the cycle considers first is first for explain, the dry run and preemption too."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from libs.core.accelerators.kinds import GRAINS
from libs.core.explain.reasons import Reasons, open_view
from libs.core.explain.waiting import explain, queue_view
from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.scheduling import cycle, preemption
from libs.core.scheduling.order import Order, Share, front, share_of
from libs.core.scheduling.order.ahead import JobsAhead
from libs.core.scheduling.policy import Policy
from libs.core.state.fleet import Fleet
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas import inbox
from schemas.resources import WHOLE_MILLI, Level, Resources
from tests.core.builders import World, job, node
from tests.core.crowds import Crowd, steps, uncapped
from tests.core.test_limits import board, processors


def played(life: list[Any], lost: Iterable[int] = ()) -> Crowd:
    """The crowd after its life; more jobs come at the end, so that some wait, some of both highest classes among them. Then
    nodes are `lost`, so that jobs that ran wait again, and come first."""
    crowd = Crowd()
    more = ("batch", len(life), 3), *(("submit", 49, size) for size in (4, 4, 3, 3, 4, 4, 2))
    for step in (*life, *more, *(("lose", which, 0) for which in lost)):
        crowd.play(step)
    return crowd


def considered(state: State, t_us: int, policy: Policy) -> list[Job]:
    """The jobs that a cycle considers while none fits: it passes by those for which devices are held."""
    order, found = Order(state, t_us, policy), []
    while (one := order.next()) is not None:
        found.append(one)
        if one.id in state.holds:
            order.passed(one)
    return found


def emptied(state: State) -> State:
    """The same jobs and shares on a fleet where everything is free and nobody is limited."""
    free = replace(state, fleet=deepcopy(state.fleet), quotas={})
    fleet: Fleet = free.fleet
    fleet.free_milli[:], fleet.free_mib[:] = WHOLE_MILLI, fleet.memory_mib
    fleet.free_cpu[:], fleet.free_host[:] = fleet.cpu_milli, fleet.host_mib
    return free


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(life=steps, lost=st.sets(st.integers(0, 4), max_size=3))
def test_the_first_of_the_cycle_is_the_first_of_explain_and_of_preemption(life: list[Any], lost: set[int]) -> None:
    crowd = played(life, sorted(lost))
    state, t_us, policy = crowd.state, crowd.state.t_us, uncapped(crowd.world.decider.policy)
    assume(state.queues)
    listed = queue_view(state, Reasons(state, policy), 5000)
    shown = [one for one in listed if one.job_id not in state.backing_off]
    assert {one.job_id for one in listed[len(shown) :]} == state.backing_off.keys(), "they come last"
    first = state.jobs[shown[0].job_id]

    free = emptied(state)
    in_cycle = [grant.job.id for grant in cycle.plan(free, t_us, policy).grants]
    at_once = find(open_view(free, None), first.shape, context=context_of(free, first, t_us))
    if isinstance(at_once, Placed):  # else it would not fit on the nodes that are up, or only beside what is held now
        assert in_cycle[0] == first.id

    assert explain(state, first, Reasons(state, policy)).ahead == 0
    assert [JobsAhead(state, t_us, policy).count(state.jobs[one.job_id]) for one in shown] == list(range(len(shown)))
    assert {one.job_id for one in shown} == {job_id for queue in state.queues.values() for job_id in queue}

    plans = preemption.plans(state, t_us, 1, policy=policy)
    if first.preempts and first.id not in state.holds and preemption.choice_for(state, first, t_us, policy):
        assert plans[0].beneficiary == first.id
    walk = considered(state, t_us, policy)
    if plans and crowd.world.decider.plan.complete:  # else some fit, and shares change on the way
        assert plans[0].beneficiary in {one.id for one in walk}, "a cycle would not look at it"
        before = takewhile(lambda one: one.id != plans[0].beneficiary, walk)
        able = [one for one in before if one.preempts and one.id not in state.holds]
        assert not any(preemption.choice_for(state, one, t_us, policy) for one in able)


def test_an_old_gang_comes_before_a_younger_job_of_a_team_that_holds_less():
    """Its reservation is due: explain, the queue and the cycle agree that it is first."""
    w = World(node("n0", 8))
    w.started(w.submit(job("busy", 8, team="big")))
    gang = w.submit(job("gang", 8, team="big", submitted_us=5))
    small = w.submit(job("small", 1, team="small", submitted_us=9))
    before = [one.job_id for one in queue_view(w.decider.state, Reasons(w.decider.state), 9)]
    assert before == [small, gang]
    w.send(inbox.Tick(), after_us=61_000_000)
    state = w.decider.state
    assert [one.job_id for one in queue_view(state, Reasons(state), 9)] == [gang, small]
    assert [explain(state, state.jobs[one], Reasons(state)).ahead for one in (gang, small)] == [0, 1]
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
    assert plan.beneficiary == queue_view(w.decider.state, Reasons(w.decider.state), 1)[0].job_id == younger


def test_a_job_whose_devices_are_held_does_not_wait_behind_one_that_came_back_to_its_queue():
    """The older one wants the very devices that are held for the younger: both waited for ever (seed 7839)."""
    w = World(node("n0", 8), node("n1", 8))
    urgent = {"priority": 100, "preempts": True}
    w.started(older := w.submit(job("older", 8, submitted_us=1, **urgent)))
    w.started(victim := w.submit(job("victim", 8)))
    younger = w.submit(job("younger", 8, submitted_us=3, **urgent))
    w.send(*preemption.plans(w.decider.state, w.now_us, 1))
    assert younger in w.decider.state.holds
    w.send(inbox.NodeLost(node=w.nodes_of(older)[0], incarnation=1, silent_s=9.0))
    assert [one.id for one in front(w.decider.state, w.decider.state.jobs[older].queue)] == [younger, older]
    w.released(victim, exit_code=143, own_exit=False)
    assert (w.state_of(younger), w.state_of(older)) == ("granted", "queued")
    w.check()


def asking(name: str, team: str, submitted_us: int = 1, **resources: Any) -> inbox.JobAdmitted:
    admitted = job(name, team=team, submitted_us=submitted_us)
    return admitted.model_copy(update={"spec": admitted.spec.model_copy(update={"resources": Resources(**resources)})})


def test_six_slices_of_seven_are_less_than_a_board() -> None:
    w = World(board("m0", "1g.10gb", 6), node("n0", 1))
    for i in range(6):
        w.submit(asking(f"slice {i}", "slices", devices=1, mig_profile="1g.10gb"))
    w.submit(job("board", team="boards"))
    of_boards = w.submit(job("older", team="boards", submitted_us=2))
    of_slices = w.submit(job("younger", team="slices", submitted_us=3))
    assert [one.job_id for one in queue_view(w.decider.state, Reasons(w.decider.state), 9)] == [of_slices, of_boards]


def test_processors_count_only_between_teams_that_are_equal_otherwise() -> None:
    w = World(processors("c0", 3), node("n0", 1))
    for i in range(2):
        w.submit(asking(f"cpu {i}", "many", devices=1, types=("CPU",)))
    w.submit(asking("cpu", "few", devices=1, types=("CPU",)))
    w.submit(job("board", team="boards"))
    waiting = [
        w.submit(job("of boards", team="boards", submitted_us=2)),
        w.submit(job("of many", team="many", submitted_us=3)),
        w.submit(job("of few", team="few", submitted_us=4)),
    ]
    assert [one.job_id for one in queue_view(w.decider.state, Reasons(w.decider.state), 9)] == waiting[::-1]


def test_what_a_walk_grants_counts_at_once_and_exactly() -> None:
    w = World(board("m0", "1g.10gb", 6), node("n0", 2), processors("c0"))
    w.send(inbox.QuotaChanged(team="one", limit_milli=0, by_type={"CPU": 0}))
    asked = {
        w.submit(asking("slice", "one", 1, devices=1, mig_profile="1g.10gb")): "m0-mig0",
        w.submit(asking("share", "one", 2, devices=1, share_milli=250)): "n0-gpu0",
        w.submit(asking("cpu", "one", 3, devices=1, types=("CPU",))): "c0-cpu0",
    }
    state = w.decider.state
    order, held = Order(state, w.now_us, w.decider.policy), Share()
    while (waiting := order.next()) is not None:
        row = state.fleet.row(asked[waiting.id])
        order.granted(waiting, [row])
        held = held.plus(share_of({state.fleet.kind(row): waiting.shape.milli}))
        assert order.shares.of(waiting.queue) == held
    assert held == Share(GRAINS * 1000 // 7 + GRAINS * 250, 1000)


def test_what_a_cycle_keeps_for_a_gang_is_neither_free_to_a_beneficiary_behind_it_nor_made_free_for_it() -> None:
    """A gang that may not preempt keeps n0, where two devices are free. Who comes behind it does not fit, and the victim is
    sought where nothing is kept."""
    w = World(node("n0", 4), node("n1", 4))
    w.started(w.submit(job("blocker", 2, priority=400)))
    small = [w.submit(job(f"small {i}", 1)) for i in range(5)]
    for one in small:
        w.started(one)
    for one in [one for one in small if w.nodes_of(one) == ["n0"]]:
        w.released(one)
    gang = w.submit(job("gang", 4, priority=300, team="gang", required=Level.NODE))
    w.send(inbox.Tick(), after_us=61_000_000)
    w.submit(job("filler", 1, priority=100))
    serving = w.submit(job("serving", 1, priority=200, preempts=True, team="serving"))
    state = w.decider.state
    assert {gang, serving} <= {job_id for queue in state.queues.values() for job_id in queue}
    (planned,) = preemption.plans(state, w.now_us, 1)
    assert planned.beneficiary == serving
    assert [device.split("-")[0] for device in planned.devices] == ["n1"]
    assert explain(state, state.jobs[serving], Reasons(state)).reason != "next"


def test_a_job_that_has_to_wait_does_not_block_one_of_its_priority_to_which_others_give_way() -> None:
    """Two classes of one priority, of which one may preempt: same team, same shape, and the older job may not."""
    w = World(node("n0", 4))
    victim = w.submit(job("victim", 4))
    w.started(victim)
    older = w.submit(job("older", 4, priority=100, submitted_us=2))
    younger = w.submit(job("younger", 4, priority=100, preempts=True, submitted_us=3))
    (planned,) = preemption.plans(w.decider.state, w.now_us, 1)
    w.send(planned)
    w.released(victim)
    assert (w.state_of(older), w.state_of(younger)) == ("queued", "granted")


def test_a_beneficiary_does_not_take_what_is_reserved_for_a_gang_ahead_of_it() -> None:
    """It would start there at once, and its victim would have stopped for nothing."""
    w = World(node("n0", 4), node("n1", 4))
    w.started(w.submit(job("blocker", 2, priority=400)))
    small = [w.submit(job(f"small {i}", 1)) for i in range(6)]
    for one in small:
        w.started(one)
    for one in [one for one in small if w.nodes_of(one) == ["n0"]]:
        w.released(one)
    gang = w.submit(job("gang", 4, priority=300, team="gang", required=Level.NODE))
    w.send(inbox.Tick(), after_us=61_000_000)
    serving = w.submit(job("serving", 1, priority=200, preempts=True, team="serving"))
    (planned,) = preemption.plans(w.decider.state, w.now_us, 1)
    w.send(planned)
    assert (w.state_of(gang), w.state_of(serving)) == ("queued", "queued")
    (victim,) = planned.victims
    w.released(victim)
    assert w.nodes_of(serving) == ["n1"]


def test_no_gang_reserves_what_is_held_for_another_job() -> None:
    """Else neither could use it: it is held from the gang, and kept from the job."""
    w = World(node("n0", 4))
    w.started(w.submit(job("blocker", 3, priority=400)))
    victim = w.submit(job("victim", 1))
    w.started(victim)
    gang = w.submit(job("gang", 4, priority=300, team="gang", required=Level.NODE))
    serving = w.submit(job("serving", 1, priority=200, preempts=True, team="serving"))
    (planned,) = preemption.plans(w.decider.state, w.now_us, 1)
    w.send(planned)
    w.send(inbox.Tick(), after_us=61_000_000)
    w.released(victim)
    assert (w.state_of(gang), w.state_of(serving)) == ("queued", "granted")
