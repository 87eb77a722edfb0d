"""Against thrash: a job runs its minimum before it gives way, and neither it nor the pool gives way too often. The planner does
not plan it, the writer does not take it, the checker finds it."""

import json
from random import Random
from typing import Any

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.verify import Checker
from libs.core.scheduling import preemption
from libs.core.scheduling.preemption_guard import PreemptionGuard
from libs.core.state import snapshot
from libs.core.state.formats import OWN_UNCOUNTED
from schemas import inbox, ledger
from schemas.queues import JobPreemptionRate, PoolPreemptionRate, PreemptionLimits, Queue
from services.preemption.planner import PreemptionPlanner
from tests.core.builders import World, job, node

S = 1_000_000
SERVING = {"priority": 100, "preempts": True}


def pool(nodes: int = 1, queues: tuple[Queue, ...] = (), **limits: Any) -> World:
    w = World(*(node(f"n{i}") for i in range(nodes)))  # eight devices each
    w.send(inbox.ApplyQueues(version=1, queues=queues, preemption=PreemptionLimits(**limits), user="olga"))
    return w


def runs(w: World, name: str, devices: int = 8, **more: Any) -> str:
    started = w.submit(job(name, devices, **more))
    w.started(started)
    return started


def planned(w: World) -> list[inbox.PreemptionPlanned]:
    return preemption.plans(w.decider.state, w.now_us, len(w.records))


def answer(w: World, *plans: inbox.PreemptionPlanned) -> list[str]:
    return [getattr(event, "reason", event.kind) for event in w.send(*plans) if event.kind == "plan.declined"]


def found_without(w: World, **limits: Any) -> list[str]:
    """What the checker finds in the world's ledger had these limits been applied."""
    checker = Checker()
    for seq, record in enumerate(w.records, 1):
        events = tuple(
            event.model_copy(update={"preemption": PreemptionLimits(**limits)})
            if isinstance(event, ledger.QueuesApplied)
            else event
            for event in record.events
        )
        checker.step(seq, record.model_copy(update={"events": events}), valid=True)
    return checker.finish().violations


def test_a_job_runs_its_minimum_before_it_gives_way_to_a_higher_class() -> None:
    w = pool(min_run_s=300)
    runs(w, "young")
    w.submit(job("serve", 8, **SERVING))
    assert planned(w) == []
    w.send(after_us=299 * S)
    assert planned(w) == []
    w.send(after_us=1 * S)
    (plan,) = planned(w)
    assert answer(w, plan) == []
    w.check()
    assert any("its minimum is 301 s" in found for found in found_without(w, min_run_s=301))


def test_the_minimum_of_a_queue_stands_before_that_of_the_pool() -> None:
    queues = (Queue(name="lab", min_run_s=0), Queue(name="research", parent="lab"), Queue(name="blue"))
    w = pool(2, queues, min_run_s=300)
    runs(w, "patient", team="research")
    runs(w, "young", team="blue")
    w.submit(job("serve", 8, **SERVING))
    (plan,) = planned(w)
    assert [w.decider.state.jobs[victim].team for victim in plan.victims] == ["research"]


def test_a_job_that_does_not_come_to_run_is_spared_from_its_grant_on() -> None:
    w = pool(min_run_s=60)
    w.submit(job("never starts", 8))
    w.submit(job("serve", 8, **SERVING))
    assert planned(w) == []
    w.send(after_us=61 * S)
    assert len(planned(w)) == 1


def test_on_what_was_borrowed_it_runs_the_reclaim_grace_at_most() -> None:
    queues = (Queue(name="research", guaranteed={"*": 8000}), Queue(name="blue"))
    w = pool(1, queues, min_run_s=3600, reclaim_grace_s=30)
    runs(w, "lent", team="blue")
    w.submit(job("mine", 8, team="research"))
    assert planned(w) == []
    w.send(after_us=30 * S)
    (plan,) = planned(w)
    assert answer(w, plan) == []
    w.check()
    assert any("its minimum is 40 s" in found for found in found_without(w, min_run_s=3600, reclaim_grace_s=40))


def test_a_class_that_may_preempt_takes_back_what_its_minimum_would_spare() -> None:
    queues = (Queue(name="research", guaranteed={"*": 8000}), Queue(name="blue"))
    w = pool(1, queues, min_run_s=3600)
    runs(w, "lent", team="blue")
    w.submit(job("serve", 8, team="research", **SERVING))
    (plan,) = planned(w)
    assert plan.reason.startswith("reclaim")
    assert answer(w, plan) == []
    w.check()


def test_a_job_gives_way_only_so_often() -> None:
    w = pool(per_job=JobPreemptionRate(most=2, within_s=600))
    victim = runs(w, "victim")
    for turn in range(2):
        serve = w.submit(job(f"serve {turn}", 8, team="blue", **SERVING))
        (plan,) = planned(w)
        w.send(plan)
        w.released(victim, exit_code=143, own_exit=False)
        w.started(serve)
        w.released(serve)
        w.started(victim)
    last = w.submit(job("serve last", 8, team="blue", **SERVING))
    assert planned(w) == []
    assert answer(w, plan.model_copy(update={"plan_id": "p", "beneficiary": last})) == ["victim-spared"]
    told = found_without(w, per_job=JobPreemptionRate(most=1, within_s=600))
    assert any("more than 1 times" in found for found in told)
    w.send(after_us=600 * S)
    (plan,) = planned(w)
    assert answer(w, plan) == []
    w.check()


def test_so_many_of_a_pool_give_way_within_a_time_and_a_wide_plan_goes_alone() -> None:
    w = pool(3, per_pool=PoolPreemptionRate(most=2, within_s=600))
    for number in range(24):
        runs(w, f"small {number}", 1)
    w.submit(job("wide", 8, team="blue", **SERVING))
    (plan,) = planned(w)
    assert len(plan.victims) == 8  # more than two, and nobody gave way lately
    assert answer(w, plan) == []
    second = w.submit(job("one more", 1, team="blue", **SERVING))
    assert planned(w) == []
    other = next(j.id for j in w.decider.state.jobs.values() if j.current is not None and j.id not in plan.victims)
    claimed = w.decider.state.jobs[other].current.claims[0].device  # type: ignore[union-attr]
    forced = plan.model_copy(
        update={"plan_id": "p", "beneficiary": second, "victims": (other,), "devices": (claimed,), "costs_device_s": ()}
    )
    assert answer(w, forced) == ["too-many"]
    w.send(after_us=600 * S)
    (plan,) = planned(w)
    assert answer(w, plan) == []
    w.check()
    told = found_without(w, per_pool=PoolPreemptionRate(most=2, within_s=700))
    assert any("more than 2 within 700 s" in found for found in told)


def test_a_planner_looks_again_when_nobody_need_be_spared_any_more() -> None:
    w = pool(min_run_s=60)
    runs(w, "young")
    w.submit(job("serve", 8, **SERVING))
    planner = PreemptionPlanner()
    for seq, record in enumerate(w.records, 1):
        planner.apply(record, seq)
    assert planner.plans(len(w.records)) == []
    w.send(after_us=61 * S)  # nothing happens but that time passes
    planner.apply(w.records[-1], len(w.records))
    assert len(planner.plans(len(w.records))) == 1


def test_who_gives_way_lately_is_in_a_snapshot() -> None:
    w = pool(per_job=JobPreemptionRate(most=1, within_s=600))
    victim = runs(w, "victim")
    w.submit(job("serve", 8, team="blue", **SERVING))
    (plan,) = planned(w)
    w.send(plan)
    w.check()
    state = PreemptionPlanner.load(PreemptionPlanner(w.decider.state).dump()).state
    assert state.jobs[victim].preempted_us == (w.now_us,)
    assert state.preempted.within(w.now_us, 1) == 1


def test_explain_names_the_limit_that_a_job_waits_for() -> None:
    w = pool(min_run_s=300)
    runs(w, "young")
    serve = w.submit(job("serve", 8, **SERVING))
    told = explain(w.decider.state, w.decider.state.jobs[serve], Reasons(w.decider.state))
    assert told.reason == "spared"
    assert "min_run" in told.text
    assert "300 s are left" in told.text or "299 s are left" in told.text
    w.send(after_us=300 * S)
    told = explain(w.decider.state, w.decider.state.jobs[serve], Reasons(w.decider.state))
    assert told.reason == "busy"


@pytest.mark.parametrize("allowed", [OWN_UNCOUNTED, OWN_UNCOUNTED - 1])
def test_what_a_team_does_to_its_own_jobs_keeps_no_other_team_from_making_others_give_way(allowed: int) -> None:
    """Seen: 601 small jobs of one team gave way to one of its own, and for ten minutes nobody gave way to another team's
    serving."""
    w = World(node("n0", 2), allowed=allowed)
    limits = PreemptionLimits(per_pool=PoolPreemptionRate(most=2, within_s=600))
    w.send(inbox.ApplyQueues(version=1, queues=(), preemption=limits, user="olga"))
    small = [runs(w, f"small {number}", 1, share_milli=300, team="blue") for number in range(3)]
    runs(w, "other", 1, team="green")
    w.submit(job("large", 1, team="blue", **SERVING))
    (plan,) = planned(w)
    attempt = w.decider.state.jobs[small[0]].current
    assert attempt is not None
    own = {"victims": tuple(small), "devices": (attempt.claims[0].device,), "costs_device_s": ()}
    assert answer(w, plan.model_copy(update=own)) == []
    w.submit(job("serve", 1, team="red", **SERVING))
    if allowed < OWN_UNCOUNTED:
        assert planned(w) == []  # checkers of before count these as well
    else:
        (plan,) = planned(w)
        assert answer(w, plan) == []
    w.check()


@pytest.mark.parametrize("allowed", [OWN_UNCOUNTED, OWN_UNCOUNTED - 1])
def test_a_team_does_not_spare_its_job_by_making_it_give_way(allowed: int) -> None:
    """Seen: after six times within eleven seconds its experiment gave way to no other team's serving for an hour."""
    w = World(node("n0"), allowed=allowed)
    limits = PreemptionLimits(per_job=JobPreemptionRate(most=2, within_s=3600))
    w.send(inbox.ApplyQueues(version=1, queues=(), preemption=limits, user="olga"))
    victim = runs(w, "experiment", team="blue")
    for turn in range(2):
        higher = w.submit(job(f"own {turn}", 8, team="blue", **SERVING))
        (plan,) = planned(w)
        w.send(plan)
        w.released(victim, exit_code=143, own_exit=False)
        w.started(higher)
        w.released(higher)
        w.started(victim)
    w.submit(job("serve", 8, team="red", **SERVING))
    if allowed < OWN_UNCOUNTED:
        assert planned(w) == []
    else:
        (plan,) = planned(w)
        assert answer(w, plan) == []
    w.check()
    state = PreemptionPlanner.load(PreemptionPlanner(w.decider.state).dump()).state
    assert state.jobs[victim].counted_us == w.decider.state.jobs[victim].counted_us


def test_a_team_that_uses_the_rate_of_the_pool_leaves_a_part_of_it_to_others() -> None:
    """Seen: a team made others' experiments give way to jobs that it cancelled at once, until another team's serving waited."""
    w = pool(8, per_pool=PoolPreemptionRate(most=20, within_s=600))
    for number in range(64):
        runs(w, f"small {number}", 1, team=f"other{number % 5}")

    def gives_way(team: str, name: str, devices: int = 1) -> int:
        """How many give way to a job that is cancelled then."""
        one = w.submit(job(name, devices, team=team, **SERVING))
        plans = planned(w)
        for plan in plans:
            assert answer(w, plan) == []
        w.send(inbox.CancelRequested(job_id=one, team=team, reason="in vain"))
        return sum(len(plan.victims) for plan in plans)

    assert gives_way("red", "first", 4) == 4
    assert sum(gives_way("red", f"again {n}", 2) for n in range(12)) == 14, "a tenth of 20 stays for others"
    waits = w.submit(job("waits", 1, team="red", **SERVING))
    assert planned(w) == []
    state = w.decider.state
    told = explain(state, state.jobs[waits], Reasons(state))
    assert told.reason == "spared"
    assert "of which it leaves 2 to other teams" in told.text
    assert gives_way("blue", "theirs") == 1, "also behind one that may not"
    assert gives_way("blue", "more") == 1
    assert gives_way("blue", "and more") == 0
    w.send(after_us=600 * S)
    assert len(planned(w)) == 1
    w.check()
    loaded = PreemptionPlanner.load(PreemptionPlanner(w.decider.state).dump()).state
    assert loaded.preempted.for_team("red", w.now_us, 700 * S) == 18


def test_a_team_whose_own_jobs_are_too_many_at_once_keeps_nobody_else_from_making_others_give_way() -> None:
    """Seen: a team had more small jobs on a device than may give way, and asked for the whole device. As long as anybody had
    given way lately its job waited, and nobody gave way to jobs of other teams behind it."""
    w = World(node("n0", 1, model="A100"), node("n1", 4))
    limits = PreemptionLimits(per_pool=PoolPreemptionRate(most=4, within_s=600))
    w.send(inbox.ApplyQueues(version=1, queues=(), preemption=limits, user="olga"))
    runs(w, "serves already", 1, types=("H100",), team="red", **SERVING)
    for number in range(6):
        runs(w, f"small {number}", 1, types=("A100",), share_milli=150, team="blue")
    for number in range(3):
        runs(w, f"other {number}", 1, types=("H100",), team="green")
    w.submit(job("first", 1, types=("H100",), team="yellow", **SERVING))
    (plan,) = planned(w)
    assert answer(w, plan) == []
    wide = w.submit(job("wide", 1, types=("A100",), team="blue", **SERVING))
    assert planned(w) == []
    w.submit(job("behind it", 1, types=("H100",), team="blue", **SERVING))
    serve = w.submit(job("serve", 1, types=("H100",), team="red", **SERVING))
    (plan,) = planned(w)
    assert plan.beneficiary == serve
    assert answer(w, plan) == []
    w.send(after_us=600 * S)
    (plan,) = planned(w)
    assert plan.beneficiary == wide
    assert len(plan.victims) == 6
    assert answer(w, plan) == []
    w.check()


def test_a_plan_with_too_many_of_others_is_not_put_off_by_smaller_ones_behind_it() -> None:
    w = pool(2, per_pool=PoolPreemptionRate(most=4, within_s=600))
    for number in range(16):
        runs(w, f"other {number}", 1, team=f"green{number % 2}")
    w.submit(job("first", 1, team="yellow", **SERVING))
    (plan,) = planned(w)
    assert answer(w, plan) == []
    wide = w.submit(job("wide", 4, team="blue", **SERVING))
    behind = w.submit(job("serve", 1, team="red", **SERVING))
    assert planned(w) == []
    state = w.decider.state
    told = explain(state, state.jobs[behind], Reasons(state))
    assert told.reason == "spared"
    assert "too many did lately for a job before it, which goes first: 1 jobs gave way within 600 s" in told.text
    w.send(after_us=600 * S)
    assert wide in {plan.beneficiary for plan in planned(w)}


@pytest.mark.parametrize("seed", range(100))
def test_the_time_that_is_told_is_when_so_many_may_give_way(seed: int) -> None:
    """Seen: with 12 that gave way for others at first and 8 for the team later, 11 more were said to be possible when the 12
    are forgotten; but then the team leaves a tenth to others."""
    random, w = Random(seed), pool(per_pool=PoolPreemptionRate(most=(1, 5, 10, 20)[seed % 4], within_s=600))
    state, team = w.decider.state, "red"
    for _ in range(random.randint(1, 6)):
        w.now_us += random.randint(0, 200) * S
        for whose in random.choices(("red", "blue"), k=random.randint(1, 8)):
            state.preempted.note(w.now_us, whose)
    for victims in range(1, 25):
        guard = PreemptionGuard(state, w.now_us)
        if guard.together(victims, team):
            continue
        until_us = guard.together_from_us(victims, team)
        assert PreemptionGuard(state, until_us).together(victims, team)
        assert not PreemptionGuard(state, until_us - 1).together(victims, team)


def test_a_state_that_the_release_before_saved_is_still_its_fold() -> None:
    w = pool()
    runs(w, "victim", team="blue")
    w.submit(job("serve", 8, team="red", **SERVING))
    (plan,) = planned(w)
    assert answer(w, plan) == []
    now = list(snapshot.dump(w.decider.state))
    header = json.loads(now[0][1:])
    assert header["preempted_for"] == [[w.now_us, "red", 1]]
    of_before = {name: value for name, value in header.items() if name != "preempted_for"}
    assert snapshot.unlike([b"H" + json.dumps(of_before).encode(), *now[1:]], now) == ""
    assert snapshot.load([b"H" + json.dumps(of_before).encode(), *now[1:]]).state.preempted.within(w.now_us, S) == 1
    lie = header | {"preempted_for": [[w.now_us, "green", 1]]}
    assert snapshot.unlike([b"H" + json.dumps(lie).encode(), *now[1:]], now) == "in preempted_for"
