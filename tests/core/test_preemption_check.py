"""Every way in which a plan may be stale: it is declined with its reason, and nothing else follows from it."""

import pytest

from libs.core.scheduling import preemption
from libs.core.scheduling.preemption import Accepted, Declined
from schemas import inbox
from schemas.ids import job_id
from schemas.ledger import PlanDeclineReason as Reason
from schemas.queues import PoolPreemptionRate, PreemptionLimits
from tests.core.builders import World, job, node

SERVING = {"priority": 100, "preempts": True}
GONE = job_id("research", "never seen")


def full_world() -> tuple[World, inbox.PreemptionPlanned]:
    """Two full nodes, and a plan for a job of eight."""
    w = World(node("n0"), node("n1"))
    for name in ("a", "b"):
        w.started(w.submit(job(name, 8)))
    w.submit(job("serve", 8, **SERVING))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    return w, plan


def stale(w: World, plan: inbox.PreemptionPlanned, reason: Reason) -> None:
    """Nothing but one `plan.declined` of this reason follows; the state is as it was."""
    jobs = {j.id: (j.state, j.current and j.current.cause) for j in w.decider.state.jobs.values()}
    (event,) = w.send(plan)
    assert (event.kind, event.plan_id, event.beneficiary) == ("plan.declined", plan.plan_id, plan.beneficiary)
    assert event.reason is reason
    assert event.text
    assert {j.id: (j.state, j.current and j.current.cause) for j in w.decider.state.jobs.values()} == jobs
    w.check()


def test_a_plan_that_holds_is_accepted_with_the_costs_that_it_was_made_with():
    w, plan = full_world()
    answer = preemption.check(w.decider.state, plan, w.now_us + 50_000_000)
    assert isinstance(answer, Accepted)
    assert [(v.job.id, v.cost_device_s) for v in answer.victims] == [(plan.victims[0], plan.costs_device_s[0])]
    preempting, held = w.send(plan)
    assert (preempting.kind, preempting.plan_id) == ("attempt.preempting", plan.plan_id)
    assert preempting.cost_device_s == plan.costs_device_s[0] == plan.cost_device_s
    assert (held.kind, held.plan_id, held.cost_device_s) == ("devices.held", plan.plan_id, plan.cost_device_s)
    attempt = w.decider.state.jobs[plan.victims[0]].current
    assert attempt is not None
    assert attempt.cost_device_s == plan.cost_device_s
    w.check()


def test_a_plan_that_does_not_tell_the_costs_of_its_victims_gets_those_of_now():
    w, plan = full_world()
    answer = preemption.check(w.decider.state, plan.model_copy(update={"costs_device_s": ()}), w.now_us + 50_000_000)
    assert isinstance(answer, Accepted)
    (victim,) = answer.victims
    assert victim.cost_device_s == preemption.cost_device_s(victim.job, w.now_us + 50_000_000) > plan.cost_device_s


def test_a_check_changes_nothing():
    w, plan = full_world()
    before = b"".join(bytes(part) for part in [repr(w.decider.state.jobs).encode()])
    preemption.check(w.decider.state, plan, w.now_us)
    assert repr(w.decider.state.jobs).encode() == before


def test_the_beneficiary_is_gone():
    w, plan = full_world()
    w.send(inbox.CancelRequested(job_id=plan.beneficiary, team="research", reason=""))
    stale(w, plan, Reason.BENEFICIARY_GONE)
    stale(w, plan.model_copy(update={"beneficiary": GONE}), Reason.BENEFICIARY_GONE)


def test_devices_are_held_already():
    w, plan = full_world()
    w.send(plan)
    stale(w, plan, Reason.ALREADY_HELD)


def test_the_beneficiary_may_not_preempt():
    w, plan = full_world()
    production = w.submit(job("production", 8, priority=50))
    stale(w, plan.model_copy(update={"beneficiary": production}), Reason.MAY_NOT_PREEMPT)


def test_a_victim_is_gone_or_gives_way_already():
    w, plan = full_world()
    stale(w, plan.model_copy(update={"victims": (GONE,)}), Reason.VICTIM_GONE)
    w.submit(job("serve-2", 8, **SERVING))
    w.send(plan)
    second = plan.model_copy(update={"plan_id": "2", "beneficiary": job_id("research", "serve-2")})
    stale(w, second, Reason.VICTIM_GONE)


def test_a_victim_is_not_of_a_lower_class():
    w, plan = full_world()
    w.released(plan.victims[0])
    assert w.state_of(plan.beneficiary) == "granted"
    second = w.submit(job("serve-2", 8, **SERVING))
    victims = (plan.beneficiary,)
    stale(w, plan.model_copy(update={"beneficiary": second, "victims": victims}), Reason.VICTIM_NOT_LOWER)


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (lambda d: (*d[:-1], "nowhere-gpu0"), Reason.NO_SUCH_DEVICE),
        (lambda d: d[:-1], Reason.BAD_SIZE),
        (lambda d: (*d[:-1], d[0]), Reason.BAD_SIZE),
        (lambda d: tuple(f"n{1 - int(name[1])}{name[2:]}" for name in d), Reason.DOES_NOT_FIT),
    ],
)
def test_the_planned_devices_do_not_do(devices, reason):
    w, plan = full_world()
    stale(w, plan.model_copy(update={"devices": devices(plan.devices)}), reason)


def test_the_team_would_have_more_than_its_limit():
    w, plan = full_world()
    w.send(inbox.QuotaChanged(team="research", limit_milli=15_999))
    stale(w, plan, Reason.OVER_LIMIT)


def test_what_a_victim_of_the_team_leaves_counts_once_against_its_limit():
    w, plan = full_world()
    w.send(inbox.QuotaChanged(team="research", limit_milli=16_000))
    assert isinstance(preemption.check(w.decider.state, plan, w.now_us), Accepted)


def test_a_victim_is_spared_or_too_many_gave_way_lately():
    w, plan = full_world()
    sparing = PreemptionLimits(min_run_s=60, per_pool=PoolPreemptionRate(most=1, within_s=3600))
    w.send(inbox.ApplyQueues(version=1, queues=(), preemption=sparing))
    stale(w, plan, Reason.VICTIM_SPARED)
    w.send(after_us=60_000_000)
    first, second = (w.submit(job(name, 8, team="blue", **SERVING)) for name in ("serve-1", "serve-2"))
    w.send(plan.model_copy(update={"beneficiary": first}))
    (other,) = {job_id("research", "a"), job_id("research", "b")} - {*plan.victims}
    stale(w, plan.model_copy(update={"beneficiary": second, "victims": (other,)}), Reason.TOO_MANY)


def test_every_reason_is_given_by_a_case_here():
    assert set(Reason) == {
        Reason.BENEFICIARY_GONE, Reason.ALREADY_HELD, Reason.MAY_NOT_PREEMPT, Reason.VICTIM_GONE,
        Reason.VICTIM_NOT_LOWER, Reason.NO_SUCH_DEVICE, Reason.BAD_SIZE, Reason.DOES_NOT_FIT, Reason.OVER_LIMIT,
        Reason.VICTIM_SPARED, Reason.TOO_MANY,
    }  # fmt: skip
    assert isinstance(preemption.check(World().decider.state, full_world()[1], 1), Declined)
