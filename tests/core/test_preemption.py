"""Preemption takes whole gangs of a lower class, the cheapest that suffice, and only if the beneficiary then fits."""

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.history import advance
from libs.core.scheduling import preemption
from libs.core.scheduling.cycle import Policy
from schemas import inbox
from schemas.ids import job_id
from schemas.resources import Level
from tests.core.builders import World, job, node
from tests.core.lives import begins_anew

SERVING = {"priority": 100, "preempts": True}


def full_world():
    w = World(node("n0"), node("n1"))
    a = w.submit(job("cheap", 8))
    b = w.submit(job("dear", 8))
    w.started(a)
    w.started(b)
    return w, a, b


def plans(w):
    return preemption.plans(w.decider.state, w.now_us, len(w.records))


def test_the_gang_that_lost_least_work_gives_way():
    w, cheap, _ = full_world()
    w.send(inbox.Tick(), after_us=100_000_000)
    w.checkpointed(cheap, 5)
    w.submit(job("serve", 4, **SERVING))
    (plan,) = plans(w)
    assert plan.victims == (cheap,)
    assert len(plan.devices) == 4


def test_nobody_is_evicted_when_the_beneficiary_would_not_fit_anyway():
    w, _, _ = full_world()
    w.submit(job("serve", 16, required=Level.NODE, **SERVING))
    assert plans(w) == []


def test_equal_or_higher_classes_are_never_victims():
    w = World(node("n0"))
    w.started(w.submit(job("a", 8, priority=100)))
    w.submit(job("serve", 8, **SERVING))
    assert plans(w) == []


def test_a_class_that_may_not_preempt_waits():
    w, _, _ = full_world()
    w.submit(job("production", 8, priority=50))
    assert plans(w) == []


def test_no_more_victims_than_needed():
    w = World(node("n0"))
    for i in range(8):
        w.started(w.submit(job(f"small{i}", 1)))
    w.submit(job("serve", 3, **SERVING))
    (plan,) = plans(w)
    assert len(plan.victims) == 3


def test_of_many_victims_those_that_are_not_needed_stay():
    """More victims than the clean-up tries, half of them on devices of the other model: a gang is of one."""
    w = World(*(node(f"n{i}", 8, model=("H100", "A10")[i % 2]) for i in range(12)))
    ids = [w.submit(job(f"small{i}", 1)) for i in range(96)]
    for id_ in ids:
        w.started(id_)
    w.submit(job("serve", 40, **SERVING))
    (plan,) = plans(w)
    assert len(plan.victims) == 40
    w.send(plan)
    assert w.state_of(plan.victims[0]) == "preempting"
    w.check()


def test_two_beneficiaries_do_not_count_on_the_same_devices():
    w, _, _ = full_world()
    w.submit(job("serve-1", 8, **SERVING))
    w.submit(job("serve-2", 8, **SERVING))
    one, two = plans(w)
    assert not set(one.devices) & set(two.devices)
    assert not set(one.victims) & set(two.victims)


def test_a_plan_beyond_the_teams_quota_is_not_made():
    w, _, _ = full_world()
    w.send(inbox.QuotaChanged(team="serving", limit_milli=4000))
    w.submit(job("serve", 8, team="serving", **SERVING))
    assert plans(w) == []


def test_what_the_next_cycle_grants_counts_against_the_teams_quota():
    w = World(node("n0"), node("n1", 2))
    w.started(w.submit(job("low", 8)))
    w.send(inbox.QuotaChanged(team="serving", limit_milli=8000))
    w.decider.policy = Policy(claims_per_cycle=1)
    fits_now = job("small", 1, team="serving", submitted_us=2, **SERVING)
    w.send(job("first", 1, priority=200), fits_now, job("large", 8, team="serving", submitted_us=3, **SERVING))
    assert [w.state_of(job_id("serving", name)) for name in ("small", "large")] == ["queued", "queued"]
    assert plans(w) == []


def test_the_whole_story_checkpoint_yield_requeue_resume():
    w, _cheap, _dear = full_world()
    serve = w.submit(job("serve", 8, **SERVING))
    (plan,) = plans(w)
    victim = plan.victims[0]
    w.send(plan)
    assert w.state_of(victim) == "preempting"
    bystander = w.submit(job("bystander", 1, submitted_us=2))
    w.checkpointed(victim, 42)
    w.released(victim, exit_code=143, own_exit=False)
    assert w.state_of(serve) == "granted"
    assert w.state_of(victim) == "queued"
    assert w.state_of(bystander) == "queued"
    w.started(serve)
    w.released(serve)
    assert w.attempt(victim) == 2
    assert w.decider.state.jobs[victim].resume.step == 42
    w.check()


def test_held_devices_go_to_nobody_else_while_victims_save_their_work():
    w, _, _ = full_world()
    w.submit(job("serve", 8, **SERVING))
    (plan,) = plans(w)
    w.send(plan)
    other = w.submit(job("other", 1, priority=60))
    w.released(plan.victims[0], exit_code=143, own_exit=False)
    assert w.state_of(other) == "queued"
    w.check()


def test_a_job_gets_what_is_held_for_it_though_an_older_one_of_its_queue_came_back():
    """The older one ran when devices were held, and was lost. It stood before the younger in their queue and could not have
    these devices; the younger was not looked at: both waited for ever (the simulation, seed 7839)."""
    w = World(node("n0", 4), node("n1", 4), node("n2", 4))
    older = w.submit(job("older", 9, **SERVING))
    low = [w.submit(job(f"low{i}", 1)) for i in range(3)]
    for one in (older, *low):
        w.started(one)
    younger = w.submit(job("younger", 9, **SERVING).model_copy(update={"submitted_us": w.now_us}))
    shared = w.nodes_of(low[0])[0]
    lost, left = (name for name in w.nodes_of(older) if name != shared)
    begins_anew(w, lost)
    w.released(older, exit_code=143, own_exit=False, nodes=[left])
    (plan,) = plans(w)
    assert plan.beneficiary == younger
    w.send(plan)
    w.released(older, exit_code=143, own_exit=False, nodes=[shared])
    assert w.state_of(older) == "queued"
    w.released(plan.victims[0], exit_code=143, own_exit=False)
    assert w.state_of(younger) == "granted"
    w.started(younger)
    w.released(younger)
    for one in low:
        if w.state_of(one) == "granted":
            w.started(one)
    w.send(*plans(w))
    for victim in [one for one in low if w.state_of(one) == "preempting"]:
        w.released(victim, exit_code=143, own_exit=False)
    assert w.state_of(older) == "granted"
    w.check()


def test_a_stale_plan_is_declined_with_its_reason():
    w, _cheap, _ = full_world()
    w.submit(job("serve", 8, **SERVING))
    (plan,) = plans(w)
    w.released(plan.victims[0])
    (event,) = w.send(plan)
    assert event.kind == "plan.declined"
    assert (event.plan_id, event.beneficiary, event.reason) == (plan.plan_id, plan.beneficiary, "beneficiary-gone")
    assert "not waiting any more" in event.text
    w.check()


def test_what_giving_way_costs_is_told_to_both_sides_and_kept_in_the_jobs_story():
    w, _, _ = full_world()
    serve = w.submit(job("serve", 8, **SERVING))
    (plan,) = plans(w)
    w.send(plan)
    state, cost = w.decider.state, f"{plan.cost_device_s:,.0f} device-seconds"
    assert f"which costs them {cost}" in explain(state, state.jobs[serve], Reasons(state)).text
    assert f"giving way costs it {cost}" in explain(state, state.jobs[plan.victims[0]], Reasons(state)).text
    story = None
    for seq, record in enumerate(w.records, 1):
        events = [e for e in record.events if getattr(e, "job_id", "") == plan.victims[0]]
        story = advance(story, events, record.t_us, seq) if events else story
    assert story is not None
    assert story.document.attempts[-1].preemption_cost_device_s == plan.cost_device_s
    w.check()


def test_a_victim_that_finishes_by_itself_has_succeeded():
    w, _, _ = full_world()
    w.submit(job("serve", 8, **SERVING))
    (plan,) = plans(w)
    w.send(plan)
    w.released(plan.victims[0], exit_code=0, own_exit=True)
    assert w.decider.state.finished_by_state == {"succeeded": 1}
    w.check()


def test_a_hold_ends_with_its_cancelled_beneficiary():
    w, _, _ = full_world()
    serve = w.submit(job("serve", 8, **SERVING))
    w.send(*plans(w))
    w.send(inbox.CancelRequested(job_id=serve, team="research", reason=""))
    assert w.decider.state.holds == {}
    assert (w.decider.state.fleet.held == -1).all()
    assert job_id("research", "serve") in w.decider.state.finished
    w.check()
