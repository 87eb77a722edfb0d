"""A guarantee can be had while a queue above, or the team itself, is at its limit: others below that limit give way, and what
is kept meanwhile counts once. The planner, the ledger's writer and the checker agree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.projections.verify import Checker
from libs.core.scheduling import preemption
from libs.core.scheduling.limits import Tally
from schemas import inbox, ledger
from schemas.queues import Queue
from schemas.resources import Claim
from tests.core.builders import World, job, node
from tests.core.test_reclaim import EXPERIMENT, carried_out, planned, pool, queue, runs

LIMIT = {"*": 14_000}


def lab(*more: Queue, nodes: int = 2) -> World:
    """Vision is guaranteed 6, language 8, and both together may have 14 of the pool's 16."""
    above = queue("lab", guaranteed=14, limit=LIMIT)
    return pool(above, queue("vision", "lab", 6), queue("language", "lab", 8), *more, nodes=nodes)


def test_a_guarantee_comes_back_from_a_queue_that_is_full_to_its_limit() -> None:
    w = lab()
    lent = [runs(w, f"lent{i}", 2, "language") for i in range(7)]
    waits = w.submit(job("own", 6, team="vision", priority=EXPERIMENT))
    (plan,) = carried_out(w)
    assert plan.beneficiary == waits
    assert len(plan.victims) == 3, "two idle devices do not help: with them the lab would be above its limit"
    assert set(plan.victims) < set(lent)
    assert planned(w) == []
    for victim in plan.victims[:-1]:
        w.released(victim)
    assert w.state_of(waits) == "queued"
    w.released(plan.victims[-1])
    assert w.state_of(waits) == "granted"
    assert w.checker.finish().violations == []
    assert w.decider.state.used == {"language": {"H100": 8000}, "vision": {"H100": 6000}}


def test_those_below_the_limit_give_way_although_they_leave_no_usable_shape() -> None:
    """A gang of six needs a node; language has seven on each of two, and the third is idle."""
    w = lab(nodes=3)
    for number in range(2):
        for part in range(7):
            runs(w, f"lent{number}-{part}", 1, "language")
        if not number:
            filler = runs(w, "filler", 1, "other")
    assert {name for name, jobs in w.decider.state.on_node.items() if jobs} == {"n0", "n1"}
    waits = w.submit(job("own", 6, team="vision", priority=EXPERIMENT))
    (plan,) = carried_out(w)
    assert len(plan.victims) == 6
    assert filler not in plan.victims
    for victim in plan.victims:
        assert w.state_of(waits) == "queued", "until the last of them is gone the lab is at its limit"
        w.released(victim)
    assert w.state_of(waits) == "granted"
    assert w.checker.finish().violations == []


def test_a_team_at_its_own_limit_makes_its_experiments_give_way_to_its_serving() -> None:
    w = World(node("n0", 8))
    w.send(inbox.QuotaChanged(team="a", limit_milli=4000, by_type={}))
    own = runs(w, "own", 4, "a")
    serving = w.submit(job("serving", 2, team="a", priority=300, preempts=True))
    (plan,) = carried_out(w)
    assert plan.victims == (own,)
    w.released(own)
    assert w.state_of(serving) == "granted"
    assert w.decider.state.used == {"a": {"H100": 2000}}


def test_the_room_that_a_victim_will_leave_serves_only_whom_it_leaves_for() -> None:
    w = lab()
    runs(w, "wide", 8, "language")
    runs(w, "rest", 6, "language")
    first = w.submit(job("first", 6, team="vision", priority=EXPERIMENT))
    (plan,) = carried_out(w)
    second = w.submit(job("second", 1, team="language", priority=EXPERIMENT))
    assert w.state_of(second) == "queued"
    for victim in plan.victims:
        w.released(victim)
    assert w.state_of(first) == "granted"
    assert w.checker.finish().violations == []


def test_a_job_that_may_have_its_devices_elsewhere_waits_until_its_victims_are_gone() -> None:
    """What is kept for it is its own only when they have left: before, the lab would be above its limit."""
    w = lab()
    for number in range(7):
        runs(w, f"lent{number}", 2, "language")
    waits = w.submit(job("own", 2, team="vision", priority=EXPERIMENT))
    (plan,) = carried_out(w)
    tally = Tally(w.decider.state)
    assert tally.room(w.decider.state.jobs[waits]).request is None
    assert w.state_of(waits) == "queued", "two devices are idle"
    w.released(plan.victims[0])
    assert w.state_of(waits) == "granted"


@pytest.mark.parametrize("lie", ["nobody gave way", "somebody else's", "too early"])
def test_the_checker_finds_what_would_lift_the_queue_above_its_limit(lie: str) -> None:
    w = lab(queue("other"))
    lent = [runs(w, f"lent{i}", 2, "language") for i in range(7)]
    waits = w.submit(job("own", 2, team="vision", priority=EXPERIMENT))
    (plan,) = planned(w)
    w.send(plan)
    told = w.records[-1].events
    checker = Checker()
    for seq, record in enumerate(w.records, 1):
        events = record.events
        if events == told and lie == "nobody gave way":
            events = tuple(e for e in events if not isinstance(e, ledger.AttemptPreempting))
        if events == told and lie == "somebody else's":
            events = tuple(
                e.model_copy(update={"beneficiary": lent[-1]}) if isinstance(e, ledger.AttemptPreempting) else e
                for e in events
            )
        if events == told and lie == "too early":
            granted = ledger.JobGranted(job_id=waits, attempt=1, claims=_idle(w, 2), resume=None, span=None)
            events = (*events, ledger.HoldReleased(job_id=waits), granted)
        checker.step(seq, record.model_copy(update={"events": events}), valid=True)
    assert any(found.startswith("I7") and "queue lab" in found for found in checker.finish().violations)


def _idle(w: World, count: int) -> tuple[Claim, ...]:
    """Claims of devices that nobody holds."""
    fleet = w.decider.state.fleet
    free = [row for row in range(len(fleet.up)) if fleet.free_milli[row] == 1000][:count]
    return tuple(
        Claim(
            device=fleet.devices.names[row], node="n1", milli=1000, memory_mib=81_559, epoch=int(fleet.epoch[row]) + 1
        )
        for row in free
    )


@st.composite
def trees(draw: st.DrawFn) -> list[Queue]:
    """Two labs with two teams each, guarantees within limits within a pool of sixteen."""
    found: list[Queue] = []
    for above in ("x", "y"):
        given_to = [draw(st.integers(0, 4)) for _ in range(2)]
        total = sum(given_to)
        more = draw(st.integers(0, 4))
        limit = {"*": (total + more) * 1000} if draw(st.booleans()) else {}
        found.append(queue(above, "", total, limit=limit))
        for number, guaranteed in enumerate(given_to):
            own = draw(st.sampled_from([None, 0, 3]))
            bound = {} if own is None else {"*": (guaranteed + own) * 1000}
            found.append(queue(f"{above}{number}", above, guaranteed, limit=bound))
    return found


TEAMS = ("x0", "x1", "y0", "y1")


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.tuples(st.sampled_from(TEAMS), st.sampled_from([1, 1, 2, 4])), max_size=24), st.data())
def test_what_is_guaranteed_can_be_had(
    queues: list[Queue], borrowed: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Whatever runs, a team that asks for what it is guaranteed gets it, when those who give way have gone."""
    w = pool(*queues, nodes=2)
    for number, (team, devices) in enumerate(borrowed):
        w.submit(job(f"b{number}", devices, team=team, priority=EXPERIMENT))
    for one in list(w.decider.state.jobs.values()):
        if one.current is not None:
            w.started(one.id)
        else:
            w.send(inbox.CancelRequested(job_id=one.id, team=one.team, reason="too many"))
    guaranteed = {q.name: q.guaranteed.get("*", 0) // 1000 for q in queues}
    team = data.draw(st.sampled_from(TEAMS))
    holds = w.decider.state.used.get(team, {}).get("H100", 0) // 1000
    asked = [w.submit(job(f"own{i}", 1, team=team, priority=EXPERIMENT)) for i in range(guaranteed[team] - holds)]
    for _ in range(len(asked) + 1):
        for plan in planned(w):
            w.send(plan)
            assert isinstance(w.records[-1].events[-1], ledger.DevicesHeld), w.records[-1].events
        for one in list(w.decider.state.jobs.values()):
            if one.state == "preempting":
                w.released(one.id)
    waiting = [one for one in asked if w.state_of(one) != "granted"]
    assert waiting == []
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    assert w.checker.finish().violations == []
