"""Reclaim: what a queue borrowed goes back to whom it is guaranteed, and to nobody else; the writer and the checker agree."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.cli.queuesfile import read_tree
from libs.core.projections.verify import Checker
from libs.core.scheduling import preemption
from schemas import inbox, ledger
from schemas.queues import Queue
from schemas.resources import Level
from tests.core.builders import World, job, node

EXPERIMENT, PRODUCTION = 100, 200
ROOT = Path(__file__).parents[2]


def queue(name: str, parent: str = "", guaranteed: int = 0, **more: Any) -> Queue:
    return Queue(name=name, parent=parent, guaranteed={"*": guaranteed * 1000} if guaranteed else {}, **more)


def pool(*queues: Queue, nodes: int = 1) -> World:
    w = World(*(node(f"n{i}") for i in range(nodes)))  # eight devices each
    w.send(inbox.ApplyQueues(version=1, queues=queues, reason="begin", user="olga"))
    return w


def runs(w: World, name: str, devices: int, team: str, priority: int = EXPERIMENT) -> str:
    started = w.submit(job(name, devices, team=team, priority=priority))
    assert w.state_of(started) == "granted"
    w.started(started)
    return started


def elastic(name: str, most: int, least: int, team: str) -> inbox.JobAdmitted:
    asked = job(name, most, team=team, priority=EXPERIMENT)
    resources = asked.spec.resources.model_copy(update={"min_devices": least})
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"resources": resources})})


def violations(w: World, applied: ledger.LedgerRecord, *queues: Queue) -> list[str]:
    """What the checker finds in the world's ledger with other queues in place of those that were applied."""
    checker = Checker()
    for seq, record in enumerate(w.records, 1):
        if record is applied:
            events = tuple(
                event.model_copy(update={"queues": queues}) if isinstance(event, ledger.QueuesApplied) else event
                for event in record.events
            )
            checker.step(seq, record.model_copy(update={"events": events}), valid=True)
        else:
            checker.step(seq, record, valid=True)
    return [found for found in checker.finish().violations if found.startswith("I11")]


def planned(w: World) -> list[inbox.PreemptionPlanned]:
    return preemption.plans(w.decider.state, w.now_us, len(w.records))


def carried_out(w: World) -> list[inbox.PreemptionPlanned]:
    """Sends what is planned, all at once as preemption does; every plan is accepted, and the checker has nothing against it.

    One by one, a cycle between two may grant what the first no longer keeps for its gang, and the second is made anew.
    """
    made = planned(w)
    if made:
        events = w.send(*made)
        held = [event.plan_id for event in events if event.kind == "devices.held"]
        assert held == [plan.plan_id for plan in made], events
    assert w.checker.finish().violations == []
    return made


def test_the_example_of_the_documentation() -> None:
    """That of docs/queues.md."""
    queues = read_tree((ROOT / "deploy" / "queues.yaml").read_text()).queues
    w = pool(*queues.values(), nodes=12)
    lent = [runs(w, f"language{n}", 4, "language") for n in range(16)]
    for number in range(8):
        runs(w, f"product{number}", 4, "product")
    w.submit(job("asks", 20, team="vision", priority=EXPERIMENT, required=Level.POOL))
    (plan,) = carried_out(w)
    assert set(plan.victims) < set(lent)
    assert len(plan.victims) == 5


def test_what_was_borrowed_is_taken_back_and_no_more() -> None:
    w = pool(queue("a", guaranteed=4), queue("b", guaranteed=4))
    lent = [runs(w, f"lent{i}", 2, "b") for i in range(4)]
    waits = w.submit(job("back", 4, team="a", priority=EXPERIMENT))
    (plan,) = carried_out(w)
    assert plan.beneficiary == waits
    assert len(plan.victims) == 2
    assert set(plan.victims) < set(lent)
    assert plan.reason == "reclaim: queue a is within its guarantee"
    more = w.submit(job("more", 1, team="a", priority=EXPERIMENT))
    assert planned(w) == [], "a has its guarantee, b is left with its own"
    for victim in plan.victims:
        w.released(victim)
    assert w.state_of(waits) == "granted"
    assert w.state_of(more) == "queued"
    assert planned(w) == [], "nobody takes back what was taken back"


def test_a_gang_astride_its_guarantee_gives_way_as_a_whole() -> None:
    w = pool(queue("a", guaranteed=4), queue("b", guaranteed=4))
    gang = runs(w, "gang", 8, "b")
    w.submit(job("back", 4, team="a", priority=EXPERIMENT))
    assert [plan.victims for plan in carried_out(w)] == [(gang,)]


def test_a_higher_class_lends_nothing_back_and_the_own_team_never_does() -> None:
    w = pool(queue("a", guaranteed=8), queue("b"))
    runs(w, "urgent", 4, "b", PRODUCTION)
    runs(w, "own", 4, "a")
    w.submit(job("back", 2, team="a", priority=EXPERIMENT))
    assert planned(w) == []


def test_who_would_be_beyond_its_guarantee_takes_nothing_back() -> None:
    w = pool(queue("a", guaranteed=4), queue("b"))
    runs(w, "lent", 8, "b")
    w.submit(job("large", 5, team="a", priority=EXPERIMENT))
    assert planned(w) == []
    w.submit(elastic("elastic", 6, 4, "a"))
    (plan,) = carried_out(w)
    assert len(plan.devices) == 4, "it gets what its guarantee allows"


def test_siblings_give_back_where_their_paths_part() -> None:
    """The queue above is full to its guarantee; what one child borrowed of the other it gives back all the same."""
    w = pool(queue("lab", guaranteed=8), queue("x", "lab", 4), queue("y", "lab", 4), queue("z"))
    lent = runs(w, "lent", 8, "y")
    w.submit(job("back", 4, team="x", priority=EXPERIMENT))
    w.submit(job("none", 1, team="z", priority=EXPERIMENT))
    assert [plan.victims for plan in carried_out(w)] == [(lent,)]


def test_another_branch_gives_only_what_its_own_top_borrowed() -> None:
    w = pool(queue("lab", guaranteed=6), queue("x", "lab"), queue("other", guaranteed=2))
    runs(w, "within what its lab has", 6, "x")
    runs(w, "own", 2, "other")
    w.submit(job("back", 1, team="other", priority=EXPERIMENT))
    assert planned(w) == []


def test_a_queue_whose_lab_is_full_takes_back_within_the_lab_alone() -> None:
    w = pool(queue("lab", guaranteed=4), queue("x", "lab", 4), queue("y", "lab"), queue("z"))
    lent = runs(w, "lent", 4, "y")
    w.now_us += 100_000_000  # longer, so it would cost more
    runs(w, "of no lab", 4, "z")
    w.submit(job("back", 2, team="x", priority=EXPERIMENT))
    assert [plan.victims for plan in carried_out(w)] == [(lent,)]


def test_what_is_being_given_back_counts_as_given() -> None:
    """Guarantees beyond the pool: the first come take what is lent, and then nothing is."""
    w = pool(queue("a", guaranteed=8), queue("b", guaranteed=6))
    for number in range(4):
        runs(w, f"lent{number}", 2, "b")
    for name in ("one", "two"):
        w.submit(job(name, 2, team="a", priority=EXPERIMENT))
    (plan,) = carried_out(w)
    assert len(plan.victims) == 1
    assert planned(w) == [], "the victim still saves its work"


def test_a_plan_that_takes_what_is_guaranteed_is_declined_by_the_writer() -> None:
    w = pool(queue("a", guaranteed=4), queue("b", guaranteed=4))
    kept, lent = runs(w, "kept", 4, "b"), runs(w, "lent", 4, "b")
    w.submit(job("back", 4, team="a", priority=EXPERIMENT))
    (plan,) = planned(w)
    w.send(plan.model_copy(update={"victims": (kept, lent)}))
    (declined,) = w.records[-1].events
    assert isinstance(declined, ledger.PlanDeclined)
    assert declined.reason is ledger.PlanDeclineReason.VICTIM_NOT_LOWER


def test_a_class_that_preempts_takes_lower_ones_first_and_then_what_is_borrowed() -> None:
    w = pool(queue("a", guaranteed=8), queue("b"))
    low, lent = runs(w, "low", 4, "b"), runs(w, "lent", 4, "b", PRODUCTION)
    w.submit(job("first", 4, team="a", priority=PRODUCTION, preempts=True))
    assert [plan.victims for plan in carried_out(w)] == [(low,)]
    w.submit(job("second", 4, team="a", priority=PRODUCTION, preempts=True))
    assert [plan.victims for plan in carried_out(w)] == [(lent,)]


@pytest.mark.parametrize("guaranteed", [0, 3])
def test_the_checker_finds_a_reclaim_by_who_is_not_entitled(guaranteed: int) -> None:
    """The ledger says that one gives way to another; by the checker's books its queue is not within its guarantee."""
    w = pool(queue("a", guaranteed=4), queue("b", guaranteed=4))
    runs(w, "lent", 8, "b")
    w.submit(job("back", 4, team="a", priority=EXPERIMENT))
    (plan,) = planned(w)
    applied = next(r for r in w.records if any(e.kind == "queues.applied" for e in r.events))
    w.send(plan)
    assert violations(w, applied, queue("a", guaranteed=guaranteed), queue("b", guaranteed=4))
    assert violations(w, applied, queue("a", guaranteed=4), queue("b", guaranteed=8))
    assert not violations(w, applied, queue("a", guaranteed=4), queue("b", guaranteed=4))


def test_the_checker_finds_a_victim_too_many() -> None:
    w = pool(queue("a", guaranteed=4), queue("b", guaranteed=4))
    for number in range(4):
        runs(w, f"lent{number}", 2, "b")
    w.submit(job("back", 4, team="a", priority=EXPERIMENT))
    applied = next(r for r in w.records if any(e.kind == "queues.applied" for e in r.events))
    carried_out(w)
    assert len(violations(w, applied, queue("a", guaranteed=4), queue("b", guaranteed=6))) == 1
    assert not violations(w, applied, queue("a", guaranteed=4), queue("b", guaranteed=5))


@given(data=st.data())
@settings(max_examples=25)
def test_any_guarantee_can_be_had_at_any_time_and_nothing_goes_to_and_fro(data: st.DataObject) -> None:
    """Random jobs of one class fill the pool. Then each queue asks for what its guarantee still lacks, in single devices: it
    gets all of it, and when every queue has its own nobody takes anything from anybody."""
    teams = ["a", "b", "c"]
    parts = data.draw(st.tuples(*(st.integers(0, 5) for _ in teams)), label="guarantees")
    w = pool(*(queue(team, guaranteed=part) for team, part in zip(teams, parts, strict=True)), nodes=2)
    for number in range(data.draw(st.integers(1, 12))):
        w.submit(
            job(f"j{number}", data.draw(st.integers(1, 4)), team=data.draw(st.sampled_from(teams)), priority=EXPERIMENT)
        )
    for one in list(w.decider.state.jobs.values()):
        if one.state == "granted":
            w.started(one.id)
    for round_ in range(60):
        for team, part in zip(teams, parts, strict=True):
            if held(w, team) + waiting(w, team) < part:
                w.submit(job(f"more{round_}{team}", 1, team=team, priority=EXPERIMENT))
        made = carried_out(w)
        for plan in made:
            for victim in plan.victims:
                w.released(victim)
        for one in list(w.decider.state.jobs.values()):
            if one.state == "granted":
                w.started(one.id)
        if not made and all(held(w, team) >= part for team, part in zip(teams, parts, strict=True)):
            break
    else:
        pytest.fail("it does not come to rest")


def held(w: World, team: str) -> int:
    return sum(w.decider.state.committed(team).values()) // 1000


def waiting(w: World, team: str) -> int:
    return sum(
        len(queue) for key, queue in w.decider.state.queues.items() if key.team == team and key.shape.devices == 1
    )
