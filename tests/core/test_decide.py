"""Each inbox message leads to what its docstring promises; repeated, late and impossible ones do no harm."""

import pytest

from libs.core.placement.context import context_of
from libs.core.state.snapshot import dump, load
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import Latency, RetryPolicy
from tests.core.builders import World, job, node


@pytest.fixture
def world():
    w = World(node("n0"), node("n1"), node("n2", leaf="leaf-1"), node("n3", leaf="leaf-1"))
    yield w
    w.check()


def kinds(events):
    return [e.kind for e in events]


def test_only_a_class_that_says_fast_skips_the_score():
    w = World(node("a"))
    preempting = w.submit(job("production", preempts=True))
    fast = w.submit(job("serving", preempts=True).model_copy(update={"latency": Latency.FAST}))
    told = [context_of(w.decider.state, w.decider.state.jobs[one], w.now_us).fast for one in (preempting, fast)]
    assert told == [False, True]
    reloaded = load(dump(w.decider.state)).state.jobs
    assert [reloaded[one].latency for one in (preempting, fast)] == [Latency.NORMAL, Latency.FAST]


def test_a_gang_of_sixteen_gets_two_whole_nodes_of_one_leaf(world):
    gang = world.submit(job("gang", 16))
    assert set(world.nodes_of(gang)) in ({"n0", "n1"}, {"n2", "n3"})


def test_a_gang_that_does_not_fit_gets_nothing(world):
    world.submit(job("a", 20))
    gang = world.submit(job("b", 16))
    assert world.state_of(gang) == "queued"
    assert int(world.decider.state.fleet.free_milli.sum()) // 1000 >= 12


def test_while_ledger_time_is_behind_nothing_is_granted_and_the_next_tick_grants_it_all(world):
    """Seen: all stood still for 22 minutes; who got devices before the first tick was billed for them."""
    first, then = job("first", 8), job("then", 8)
    assert kinds(world.send(first, behind=True)) == ["job.queued"]
    assert kinds(world.send(then, behind=True)) == ["job.queued"]
    night_us = 22 * 60 * 1_000_000
    granted = world.send(inbox.Tick(), after_us=night_us)
    assert [e.job_id for e in granted if e.kind == "job.granted"] == [first.job_id, then.job_id]
    assert world.decider.state.jobs[first.job_id].current.granted_us > night_us


def test_the_same_submit_twice_is_one_job(world):
    first = job("once")
    assert kinds(world.send(first)) == ["job.queued", "job.granted"]
    assert world.send(first) == []


def test_a_client_key_with_another_body_is_refused(world):
    world.submit(job("once"))
    other = job("once").model_copy(update={"spec_hash": "another"})
    (event,) = world.send(other)
    assert event.kind == "input.rejected"
    assert "another body" in event.reason


def test_a_repeated_submit_after_the_end_is_still_the_same_job(world):
    first = job("once")
    done = world.submit(first)
    world.started(done)
    world.released(done)
    assert world.state_of(done) == "ended"
    assert world.send(first) == []


def test_a_job_runs_when_all_parts_run_and_succeeds_when_all_have_exited(world):
    gang = world.submit(job("gang", 16))
    first, second = world.nodes_of(gang)
    started = inbox.Started(job_id=gang, attempt=1)
    assert kinds(world.observe(first, started)) == ["attempt.starting"]
    assert world.observe(first, started) == []
    assert kinds(world.observe(second, started)) == ["attempt.running"]
    world.released(gang, nodes=[first])
    assert world.state_of(gang) == "running"
    world.released(gang, nodes=[second])
    assert world.decider.state.finished_by_state == {"succeeded": 1}


def test_one_failed_part_stops_the_gang_and_its_other_devices_stay_taken_until_released(world):
    gang = world.submit(job("gang", 16))
    world.started(gang)
    first, second = world.nodes_of(gang)
    world.released(gang, exit_code=1, nodes=[first])
    assert world.state_of(gang) == "stopping"
    assert len(world.decider.state.on_node[second]) == 1
    world.released(gang, exit_code=143, own_exit=False, nodes=[second])
    assert world.decider.state.finished_by_state == {"failed": 1}


def test_failures_are_retried_as_often_as_the_policy_says(world):
    flaky = world.submit(job("flaky", retry=RetryPolicy(on_failure=1)))
    world.released(flaky, exit_code=3)
    assert world.attempt(flaky) == 2
    world.released(flaky, exit_code=3)
    assert world.decider.state.finished_by_state == {"failed": 1}


def test_a_lost_node_frees_its_devices_stops_the_gang_elsewhere_and_requeues_it(world):
    gang = world.submit(job("gang", 16))
    world.started(gang)
    first, second = world.nodes_of(gang)
    events = world.send(inbox.NodeLost(node=first, incarnation=1, silent_s=30))
    assert kinds(events) == ["devices.freed", "attempt.stopping", "node.left"]
    world.released(gang, own_exit=False, exit_code=143, nodes=[second])
    assert world.attempt(gang) == 2
    assert first not in world.nodes_of(gang)


def test_a_new_incarnation_frees_what_the_old_one_held(world):
    gang = world.submit(job("gang", 8))
    (where,) = world.nodes_of(gang)
    events = world.send(inbox.NodeRegistered(incarnation=2, inventory=node(where), lease_s=10))
    assert kinds(events)[:2] == ["devices.freed", "attempt.stopping"]
    assert events[0].evidence == "new-incarnation"
    assert world.attempt(gang) == 2


def test_what_an_old_incarnation_saw_no_longer_counts(world):
    single = world.submit(job("single"))
    (where,) = world.nodes_of(single)
    (event,) = world.send(inbox.NodeObserved(node=where, incarnation=7, observations=()))
    assert "no longer counts" in event.reason


def test_a_device_of_another_node_is_refused(world):
    thief = node("n9").model_copy(update={"devices": node("n0").devices})
    (event,) = world.send(inbox.NodeRegistered(incarnation=1, inventory=thief, lease_s=10))
    assert "already belongs to node n0" in event.reason


def test_an_inventory_that_names_a_device_twice_is_refused(world):
    """The node would count it twice, and offer it twice."""
    twice = node("n9").model_copy(update={"devices": (*node("n9").devices, node("n9").devices[3])})
    (event,) = world.send(inbox.NodeRegistered(incarnation=1, inventory=twice, lease_s=10))
    assert event.reason == "node n9: its inventory names device n9-gpu3 twice; device ids are unique"


def test_cancel_of_a_waiting_job_ends_it_and_of_a_running_one_stops_it_first(world):
    running = world.submit(job("running", 32))
    waiting = world.submit(job("waiting"))
    cancel = inbox.CancelRequested(job_id=waiting, team="research", reason="no need")
    assert kinds(world.send(cancel)) == ["job.finished"]
    world.started(running)
    world.send(inbox.CancelRequested(job_id=running, team="research", reason="no need"))
    assert world.state_of(running) == "stopping"
    world.released(running, own_exit=False, exit_code=143)
    assert world.decider.state.finished_by_state == {"cancelled": 2}


def test_another_team_cannot_cancel(world):
    mine = world.submit(job("mine"))
    (event,) = world.send(inbox.CancelRequested(job_id=mine, team="rival", reason=""))
    assert event.kind == "input.rejected"
    assert world.state_of(mine) == "granted"


def test_a_quota_is_never_exceeded_and_blocks_only_its_team(world):
    world.send(inbox.QuotaChanged(team="research", limit_milli=4000))
    world.submit(job("a", 4))
    blocked = world.submit(job("b", 1))
    other = world.submit(job("c", 1, team="vision"))
    assert world.state_of(blocked) == "queued"
    assert world.state_of(other) == "granted"


def test_a_time_limit_ends_a_job(world):
    slow = world.submit(job("slow", time_limit_s=10))
    world.started(slow)
    world.send(inbox.Tick(), after_us=9_000_000)
    assert world.state_of(slow) == "running"
    world.send(inbox.Tick(), after_us=2_000_000)
    assert world.state_of(slow) == "stopping"


def test_a_refused_part_lets_the_job_try_again(world):
    single = world.submit(job("single"))
    (where,) = world.nodes_of(single)
    world.observe(where, inbox.Refused(job_id=single, attempt=1, reason="stale epoch"))
    assert world.attempt(single) == 2


def test_an_unreadable_message_is_recorded_and_the_next_is_decided(world):
    world.send(None, job("next"))
    assert world.state_of(job_id("research", "next")) == "granted"


def test_shares_of_one_device_stack_up_and_never_exceed_it(world):
    names = [world.submit(job(f"s{i}", share_milli=300)) for i in range(4)]
    devices = [world.decider.state.jobs[n].current.claims[0].device for n in names]
    assert len(set(devices[:3])) == 1
    assert devices[3] != devices[0]


def test_an_old_gang_is_not_starved_by_small_jobs():
    w = World(node("n0", 8), node("n1", 8))
    small = [w.submit(job(f"s{i}", 1, team="small")) for i in range(16)]
    gang = w.submit(job("gang", 16, team="big"))
    w.send(inbox.Tick(), after_us=61_000_000)
    late = [w.submit(job(f"late{i}", 1, team="small")) for i in range(16)]
    for name in small:
        w.released(name)
    assert w.state_of(gang) == "granted"
    assert {w.state_of(n) for n in late} == {"queued"}
    w.check()


def test_a_cycle_grants_no_more_than_a_message_of_the_bus_can_carry():
    from libs.core.scheduling.decider import Decider
    from libs.core.scheduling.policy import Policy

    w = World()
    w.decider = Decider(policy=Policy(claims_per_cycle=8))
    w.send(*(inbox.NodeRegistered(incarnation=1, inventory=node(f"n{i}"), lease_s=10) for i in range(4)))
    grants = [e for e in w.send(*(job(f"j{i}", 4) for i in range(5))) if e.kind == "job.granted"]
    assert len(grants) == 2
    rest = [e for _ in range(3) for e in w.send(inbox.Tick()) if e.kind == "job.granted"]
    assert len(rest) == 3
    wide = w.submit(job("wide", 12))
    assert w.state_of(wide) == "granted"
    w.check()


def test_a_node_that_leaves_in_good_order_costs_its_jobs_no_retry():
    w = World(node("n0"), node("n1"))
    single = w.submit(job("single", 8, retry=RetryPolicy(on_lost=0)))
    w.started(single)
    w.checkpointed(single, 7)
    (where,) = w.nodes_of(single)
    events = w.send(inbox.NodeLost(node=where, incarnation=1, silent_s=0, planned=True))
    assert kinds(events) == [
        "devices.freed", "attempt.stopping", "attempt.closed", "job.requeued", "node.left", "job.granted",
    ]  # fmt: skip
    assert (events[0].evidence, events[2].outcome) == ("node-left", "drained")
    assert w.nodes_of(single) != [where]
    assert w.decider.state.jobs[single].resume.step == 7
    w.check()


def test_nodes_that_leave_together_pass_their_jobs_on_to_none_of_them():
    w = World(node("n0"), node("n1"), node("n2"))
    single = w.submit(job("single", 8))
    w.send(*(inbox.NodeLost(node=f"n{i}", incarnation=1, silent_s=0, planned=True) for i in range(3)))
    assert w.state_of(single) == "queued"
    assert w.decider.state.jobs[single].attempts == 1
    w.check()
