"""A cycle that looks only at what something may have helped grants what one that looks at everything would."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.core.scheduling import cycle, preemption
from libs.core.scheduling.backlog import Backlog
from libs.core.scheduling.changes import NOTED, Changes
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.order import Shares, rank
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import OrderRule, Precedence
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas import inbox, ledger
from schemas.resources import Position
from tests.core.builders import World, job, node
from tests.core.crowds import Crowd, steps


def compare_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every cycle is held against one that looks at everything. (A decider goes on after an error of a cycle, so a
    difference must not be one that it catches.)"""
    plan = cycle.plan

    def both(state: State, t_us: int, policy: Policy = Policy(), backlog: Backlog | None = None) -> cycle.Plan:
        kept = [] if backlog is None else [state.jobs[one] for one in backlog.reserved if one in state.jobs]
        everything = plan(state, t_us, policy)
        changed = plan(state, t_us, policy, backlog)
        ours, theirs = ([(g.job.id, g.claims) for g in found.grants] for found in (changed, everything))
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
        if same < len(theirs) and comes_before(state, t_us, policy, everything.grants[: same + 1], kept):
            return changed
        if ours != theirs or changed.complete != everything.complete:
            pytest.fail(f"granted {ours} (all: {changed.complete}), and not {theirs} (all: {everything.complete})")
        if changed.complete and changed.waiting.keys() != everything.waiting.keys():
            pytest.fail(f"{changed.waiting.keys() ^ everything.waiting.keys()} wait in one of the two")
        return changed

    monkeypatch.setattr(cycle, "plan", both)


def comes_before(state: State, t_us: int, policy: Policy, grants: list[cycle.Grant], kept: list[Job]) -> bool:
    """Whether what teams hold, these grants included, has brought the last of them before one of `kept`, for whom the last
    cycle kept something: that frees nothing, and is not looked at in each cycle."""
    shares = Shares(state, policy)
    for grant in grants[:-1]:
        rows = state.fleet.rows_of(grant.claims)
        shares.got(grant.job.queue, {kind: n * grant.job.shape.milli for kind, n in state.fleet.kinds(rows).items()})
        if grant.job.id in state.holds:
            shares.gave(grant.job.queue, state.kept(grant.job.id))
    here = rank(grants[-1].job, shares, t_us, policy)
    return any(here < rank(one, shares, t_us, policy) for one in kept)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(life=steps, capped=st.booleans(), order=st.sampled_from([None, "shortest-remaining"]))
def test_looking_only_at_what_changed_grants_the_same(life: list[Any], capped: bool, order: str | None) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        compare_with_everything(monkeypatch)
        crowd = Crowd(capped=capped)
        crowd.send(inbox.ApplyQueues(version=1, queues=(), order=order))
        for step in life:
            crowd.play(step)
        crowd.world.check()


@pytest.fixture
def searched(monkeypatch) -> Callable[[], list[str]]:
    """Model and size of the requests that cycles looked a place for since it was last asked: `H100 2`."""
    find, found = cycle.find, []

    def counted(view, shape, *args):
        found.append(f"{'/'.join(shape.types) or 'any'} {shape.devices}")
        return find(view, shape, *args)

    def asked() -> list[str]:
        result = sorted(found)
        found.clear()
        return result

    monkeypatch.setattr(cycle, "find", counted)
    return asked


def crowded(policy: Policy = Policy()) -> World:
    """Two full nodes of different models, and five queues that wait: two for each model, one for either."""
    w = World()
    w.decider = Decider(policy=policy)
    w.send(*(inbox.NodeRegistered(incarnation=1, inventory=n, lease_s=10) for n in (node("h"), node("a", model="A10"))))
    for model in ("H100", "A10"):
        for i in range(8):
            w.started(w.submit(job(f"{model}-{i}", types=(model,))))
        w.submit(job(f"two-{model}", 2, types=(model,)))
        w.submit(job(f"three-{model}", 3, types=(model,)))
    w.submit(job("any", 2))
    return w


def running(w: World, model: str) -> str:
    return next(j.id for j in w.decider.state.jobs.values() if j.current is not None and model in j.shape.types)


def test_what_frees_nothing_looks_for_nothing(searched, monkeypatch):
    w = crowded()
    searched()
    monkeypatch.setattr(cycle.View, "of", lambda *_: pytest.fail("no view is needed"))
    w.checkpointed(running(w, "H100"), 3)
    assert searched() == []
    assert len(w.decider.plan.waiting) == 5, "why they wait is still known"


def test_a_device_that_is_freed_costs_a_search_for_each_queue_that_could_use_it(searched):
    w = crowded()
    w.released(running(w, "H100"))
    searched()
    w.released(running(w, "A10"))
    assert searched() == ["A10 2", "any 2"], "of three there are not enough, of whatever model"


def test_a_device_that_is_freed_costs_no_search_for_gangs_that_are_wider_than_all_that_is_free(searched):
    """Seen: 784 kinds of gangs of one team, each as wide as the pool, made each start of another team's job wait 78 ms."""
    w = World(node("n0"), node("n1"))
    stays, ends = w.submit(job("stays")), w.submit(job("ends"))
    w.started(stays)
    w.started(ends)
    w.send(*(job(f"wide-{n}", 16, types=("H100",), memory_gib=1 + n) for n in range(20)))
    searched()
    w.released(ends)
    assert searched() == []
    w.released(stays)
    assert searched()[0] == "H100 16", "now there are enough"


def test_what_is_learned_of_ended_jobs_costs_no_search_of_its_own(searched):
    """With the fourth job that ended all that waits has another number: that frees nothing for who wants another model."""
    turns = Precedence(OrderRule.SHORTEST_REMAINING)
    w = crowded(Policy(precedence=turns))
    numbers = [turns.number(one, w.now_us) for one in w.decider.state.jobs]
    for _ in range(4):
        searched()
        w.released(running(w, "H100"))
        assert searched() == [], "one device is too few for all that wait"
        blocker = w.submit(job(f"blocks {w.now_us}", types=("H100",)))
        w.started(blocker)
    assert numbers != [turns.number(one, w.now_us) for one in w.decider.state.jobs]


def test_who_is_first_by_what_was_learned_is_looked_at(searched):
    turns = Precedence(OrderRule.SHORTEST_REMAINING)
    w = crowded(Policy(precedence=turns))
    later = w.decider.state.jobs[w.submit(job("later", 2, types=("H100",)))]
    first = next(turns.turn(later.queue))
    assert first != later.id
    turns.served.attained_s[turns.served.slots[first]] = 1e6
    turns._relearn(w.now_us)
    searched()
    w.send(inbox.Tick())
    assert searched() == ["H100 2"]
    w.send(inbox.Tick())
    assert searched() == []


def test_a_job_behind_one_that_does_not_fit_costs_no_search(searched):
    w = crowded()
    searched()
    w.submit(job("two more", 2, types=("H100",), submitted_us=9))
    assert searched() == []
    w.submit(job("older", 2, types=("H100",), submitted_us=0))
    assert searched() == ["H100 2"]


def test_a_limit_that_is_raised_helps_its_team(searched):
    w = crowded()
    w.send(inbox.QuotaChanged(team="vision", limit_milli=1000))
    w.submit(job("limited", 2, team="vision"))
    searched()
    w.send(inbox.QuotaChanged(team="vision", limit_milli=2000))
    assert searched() == ["any 2"]


def test_a_decider_from_a_snapshot_looks_at_everything_once(searched):
    w = crowded()
    w.decider = Decider.load(w.decider.dump())
    searched()
    w.send(inbox.Tick())
    assert len(searched()) == 5
    w.send(inbox.Tick())
    assert searched() == []


def test_after_a_record_of_another_writer_everything_is_looked_at(searched):
    w = crowded()
    searched()
    w.replica.decide([], w.now_us)
    assert len(searched()) == 5


def test_nothing_waits_untried_for_ever(searched):
    """Also if no rule says that anything has changed, it is looked at again after a while."""
    w = crowded(Policy(reserve_after_us=1 << 60, reconsider_after_us=1_000_000_000))
    searched()
    w.send(inbox.Tick(), after_us=990_000_000)
    assert searched() == []
    w.send(inbox.Tick(), after_us=20_000_000)
    assert len(searched()) == 5


def test_a_cycle_that_stops_at_its_bound_says_so_and_goes_on_with_the_next_input(searched):
    w = World()
    w.decider = Decider(policy=Policy(claims_per_cycle=8))
    w.send(*(inbox.NodeRegistered(incarnation=1, inventory=node(f"n{i}"), lease_s=10) for i in range(4)))
    w.send(*(job(f"j{i}", 4, team=f"team-{i}") for i in range(5)))
    complete = [w.decider.plan.complete]
    for _ in range(2):
        w.send(inbox.Tick())
        complete.append(w.decider.plan.complete)
    assert complete == [False, False, True]
    assert w.decider.state.queues == {}
    searched()
    w.send(inbox.Tick())
    assert searched() == []


def test_devices_that_a_gang_keeps_no_more_help_those_behind_it(searched):
    """Nothing is freed when a gang that waits is cancelled, but what was kept for it is open."""
    w = World(node("n0", 8))
    w.started(w.submit(job("busy", 6)))
    gang = w.submit(job("gang", 8, team="big"))
    w.send(inbox.Tick(), after_us=61_000_000)
    small = w.submit(job("small", 1))
    assert w.state_of(small) == "queued"
    w.send(inbox.CancelRequested(job_id=gang, team="big", reason=""))
    assert w.state_of(small) == "granted"


def test_every_kind_of_event_says_whom_it_may_help():
    assert set(get_args(get_args(ledger.LedgerEvent)[0])) == NOTED.keys()


def test_a_kind_of_event_that_is_not_known_may_help_everybody():
    class Unheard:
        kind = "moon.rose"

    changes = Changes()
    changes.note(State(), Unheard())
    assert changes.anything


def test_what_a_gang_kept_until_it_had_no_room_below_its_limit_is_granted_by_the_next_cycle(monkeypatch):
    """As by one that looks at everything: within a cycle nothing is taken back of what was kept."""
    compare_with_everything(monkeypatch)
    w = World(node("n0", 8), node("one", 1, model="A10"))
    w.started(w.submit(job("stays", 4, types=("H100",))))
    w.send(inbox.QuotaChanged(team="vision", limit_milli=2500))
    five = w.submit(job("five", 5, team="vision", types=("H100",), submitted_us=2))
    three = w.submit(job("three", 3, team="vision", types=("H100",), submitted_us=3))
    w.send(inbox.Tick(), after_us=61_000_000)
    w.send(inbox.QuotaChanged(team="vision", limit_milli=5000))
    assert {w.state_of(five), w.state_of(three)} == {"queued"}, "what is free is kept for five"
    assert w.state_of(w.submit(job("one", team="vision", types=("A10",), submitted_us=4))) == "granted"
    assert {w.state_of(five), w.state_of(three)} == {"queued"}, "five was kept it before it was over its limit"
    w.send(inbox.Tick())
    assert (w.state_of(five), w.state_of(three)) == ("queued", "granted")
    w.check()


def test_the_rest_of_a_device_that_was_held_for_a_share_is_open_in_the_same_decision(monkeypatch):
    """Seen: it was with the next one."""
    compare_with_everything(monkeypatch)
    w = World(node("n0", 1))
    victim = w.submit(job("victim"))
    w.started(victim)
    urgent = w.submit(job("urgent", share_milli=300, priority=100, preempts=True, submitted_us=2))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    low = w.submit(job("low", team="vision", share_milli=500, submitted_us=3))
    assert w.state_of(low) == "queued"
    w.released(victim, exit_code=143, own_exit=False)
    assert (w.state_of(urgent), w.state_of(low)) == ("granted", "granted")
    w.check()


def test_a_held_device_that_is_freed_is_granted_though_the_next_of_the_queue_has_no_room_below_its_limit():
    """Seen: it stood idle for up to five minutes, and nobody but the job for which others had stopped could have it."""
    w = World(node("n0", 1))
    victim = w.submit(job("victim", team="green"))
    w.started(victim)
    w.send(inbox.QuotaChanged(team="red", limit_milli=1000))
    first, second = (w.submit(job(name, team="red", priority=100, preempts=True)) for name in ("first", "second"))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records), policy=w.decider.policy)
    w.send(plan)
    assert list(w.decider.state.holds) == [first]
    w.released(victim, exit_code=143, own_exit=False)
    assert (w.state_of(first), w.state_of(second)) == ("granted", "queued")
    w.check()


@pytest.mark.parametrize("again", [{"rack_power_w": 0}, {"position": Position(leaf="elsewhere")}])
def test_a_node_that_comes_back_without_its_limit_leaves_power_to_others_of_its_leaf(monkeypatch, again):
    """Seen: who waited for it was looked at five minutes later."""
    compare_with_everything(monkeypatch)
    full = node("n0", 2, model="A10")
    drawn = [device.model_copy(update={"power_limit_w": 500}) for device in full.devices]
    limits = full.model_copy(update={"devices": tuple(drawn), "rack_power_w": 400})
    w = World(
        limits,
        node("n1", 1).model_copy(
            update={"devices": tuple(d.model_copy(update={"power_limit_w": 500}) for d in node("n1", 1).devices)}
        ),
    )
    waits = w.submit(job("waits", types=("H100",)))
    assert w.state_of(waits) == "queued"
    w.send(inbox.NodeRegistered(incarnation=2, inventory=limits.model_copy(update=again), lease_s=10))
    assert w.state_of(waits) == "granted"
    w.check()
