"""Boosts: a job comes before its class for a time, within its team's budget. The writer refuses more, the checker finds it."""

from typing import Any

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.audit.lines import AuditLines
from libs.core.projections.verify import Checker
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.state import snapshot
from libs.ledger.inputs import read_input
from libs.ledger.tail import Stored
from schemas import inbox, ledger, subjects
from schemas.catalog import TYPE_OF
from schemas.queues import BoostBudget, Queue
from tests.core.builders import World, job, node

S = 1_000_000
HOUR = 3600


def boost(of: str, priority: int = 200, for_s: float = HOUR, **more: Any) -> inbox.BoostJob:
    return inbox.BoostJob(job_id=of, priority=priority, for_s=for_s, reason="a deadline", user="olga", **more)


def full(*teams: str, order: str | None = None) -> World:
    """One full node, and a job of each team that waits, in their order."""
    w = World(node("n0"))
    if order is not None:
        w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="research"),), order=order))
    w.started(w.submit(job("runs", 8)))
    for number, team in enumerate(teams):
        w.submit(job(f"waits {number}", 8, team=team, priority=100, submitted_us=1 + number))
    return w


def waiting(w: World) -> list[str]:
    return [key.team for key in sorted(w.decider.state.queues, key=lambda key: -key.priority)]


def refusal(w: World, said: inbox.BoostJob) -> str:
    (event,) = w.send(said)
    assert isinstance(event, ledger.InputRejected)
    w.check()
    return event.reason


def one(w: World, name: str) -> str:
    return next(found.id for found in w.decider.state.jobs.values() if found.spec.name == name)


@pytest.mark.parametrize("order", [None, "fifo", "least-attained", "shortest-remaining"])
def test_a_boosted_job_comes_before_its_class_until_its_time_is_over(order: str | None) -> None:
    w = full("research", "blue", order=order)
    second = one(w, "waits 1")
    (event,) = w.send(boost(second))
    assert isinstance(event, ledger.JobBoosted)
    assert (event.priority, event.until_us, event.user) == (200, w.now_us + HOUR * S, "olga")
    assert waiting(w) == ["blue", "research"]
    assert (
        "boosted above its class until"
        in explain(w.decider.state, w.decider.state.jobs[second], Reasons(w.decider.state)).text
    )
    w.released(one(w, "runs"))
    assert w.state_of(second) == "granted"
    w.send(after_us=HOUR * S)
    assert w.decider.state.jobs[second].priority == 100
    assert w.decider.state.boosted == {}
    w.check()


def test_a_boost_that_is_over_acts_no_more_in_the_very_decision_that_comes_then() -> None:
    w = full("research", "blue")
    runs, first, second = (one(w, name) for name in ("runs", "waits 0", "waits 1"))
    w.send(boost(second, for_s=60))
    w.send(after_us=59 * S)
    (ended, *_) = w.send(
        inbox.NodeObserved(
            node="n0", incarnation=1, observations=(inbox.Released(job_id=runs, attempt=1, exit_code=0, own_exit=True),)
        ),
        after_us=1 * S,
    )
    assert isinstance(ended, ledger.BoostEnded)
    assert w.state_of(first) == "granted"
    assert w.state_of(second) == "queued"
    w.check()


def test_what_it_may_do_stays_as_its_class_says() -> None:
    w = full("research")
    w.send(boost(one(w, "waits 0"), priority=1000))
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []  # its class may not preempt


def test_a_running_job_that_is_boosted_gives_way_to_its_own_rank_no_more() -> None:
    w = World(node("n0"))
    w.started(runs := w.submit(job("runs", 8, priority=100)))
    w.send(boost(runs, priority=300))
    w.submit(job("serve", 8, priority=300, preempts=True))
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    w.send(after_us=HOUR * S)
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    assert w.state_of(runs) == "preempting"
    w.check()


def test_jobs_exchange_with_those_of_the_class_that_they_are_of_now() -> None:
    w = full("research", order="shortest-remaining")
    runs, waits = one(w, "runs"), one(w, "waits 0")
    served, jobs = w.decider.turns.served, w.decider.state.jobs

    def peers(of: str) -> int:
        return int(served.peers[served.slots[of]])

    assert peers(runs) != peers(waits)
    w.send(boost(runs, jobs[waits].priority))
    assert peers(runs) == peers(waits) == served.peers_of(jobs[runs])
    w.send(after_us=HOUR * S)
    assert peers(runs) != peers(waits)
    assert peers(runs) == served.peers_of(jobs[runs])


def test_the_budget_of_a_team_is_refused_with_field_value_and_fix_when_it_is_spent() -> None:
    w = full("research", "blue")
    mine, others = one(w, "waits 0"), one(w, "waits 1")
    queues = (
        Queue(name="lab", boosts=BoostBudget(most=2, within_s=DAY, longest_s=HOUR)),
        Queue(name="research", parent="lab"),
    )
    w.send(inbox.ApplyQueues(version=1, queues=queues))
    assert "for = 3601 s: a boost of team research is 3600 s at the most" in refusal(w, boost(mine, for_s=HOUR + 1))
    assert "priority = 100: the job's class experiment has 100; name a class above it" in refusal(w, boost(mine, 100))
    for _ in range(2):
        w.send(boost(mine, for_s=60))
    told = refusal(w, boost(mine, for_s=60))
    assert "boosts.most = 2: team research has had as many within 86400 s; wait 86400 s" in told
    assert "raise boosts.most of its queue" in told
    w.send(boost(others, for_s=DAY))  # of a team without a queue: the default
    assert w.decider.state.jobs[others].priority == 200
    w.send(after_us=DAY * S)
    w.send(boost(mine, for_s=60))
    assert w.decider.state.jobs[mine].priority == 200
    w.check()


DAY = 24 * HOUR


def test_an_operator_ends_a_boost() -> None:
    w = full("research")
    mine = one(w, "waits 0")
    assert "it is not boosted" in refusal(w, boost(mine, for_s=0))
    w.send(boost(mine))
    (event,) = w.send(boost(mine, for_s=0))
    assert (event.kind, event.priority, event.user) == ("job.boost-ended", 100, "olga")
    assert w.decider.state.boosted == {}
    assert "no such job" in refusal(w, boost("job-" + "1" * 32))
    w.check()


def test_a_boost_of_less_than_a_microsecond_ends_as_well() -> None:
    w = full("research")
    first, second = w.send(boost(one(w, "waits 0"), for_s=1e-7)), w.send()
    assert [event.kind for event in (*first, *second)] == ["job.boosted", "job.boost-ended"]
    w.check()


def test_a_boost_is_in_a_snapshot_and_ends_there_too() -> None:
    w = full("research", "blue", order="least-attained")
    second = one(w, "waits 1")
    w.send(boost(second))
    w.check()
    loaded = Decider.load(w.decider.dump())
    assert list(snapshot.dump(loaded.state)) == list(snapshot.dump(w.decider.state))
    events = loaded.decide([], w.now_us + HOUR * S)
    assert [event.kind for event in events] == ["job.boost-ended"]
    assert loaded.state.jobs[second].queue.priority == 100


def test_a_gang_that_was_boosted_is_promised_a_start_alike_by_who_goes_on_from_a_snapshot() -> None:
    """Seen: of a pool whose queues are not ordered by numbers a boosted job was known to the order after a restart alone; the
    promise too, once its queue came to be ordered so."""
    w = World(node("n0"))
    w.started(w.submit(job("runs", 8, team="blue", time_limit_s=600)))
    w.send(boost(w.submit(job("gang", 8, priority=100)), for_s=DAY))
    w.decider = Decider.load(w.decider.dump())
    told = [e for _ in range(2) for e in w.send(inbox.Tick(), after_us=S) if e.kind == "gang.promised"]
    assert len(told) == 1
    w.check()
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="research", order="shortest-remaining"),), user="olga"))
    w.check()


def lied(w: World, change: Any) -> list[str]:
    checker = Checker()
    for seq, record in enumerate(w.records, 1):
        events = tuple(made for event in record.events if (made := change(event)) is not None)
        checker.step(seq, record.model_copy(update={"events": events}), valid=True)
    return [found for found in checker.finish().violations if found.startswith("I20")]


def test_the_checker_finds_boosts_that_cannot_be() -> None:
    w = full("research")
    for _ in range(4):
        w.send(boost(one(w, "waits 0"), for_s=60))
    w.send(after_us=61 * S)
    assert lied(w, lambda e: e) == []

    def boosted(**update: Any) -> Any:
        return lambda e: e.model_copy(update=update) if isinstance(e, ledger.JobBoosted) else e

    assert "its class has 100" in lied(w, boosted(priority=100))[0]
    assert "are the most" in lied(w, boosted(until_us=10**15))[0]
    assert "and it is later" in lied(w, lambda e: None if isinstance(e, ledger.BoostEnded) else e)[0]
    assert "is not boosted" in lied(w, lambda e: None if isinstance(e, ledger.JobBoosted) else e)[0]
    ends = lambda e: e.model_copy(update={"priority": 7}) if isinstance(e, ledger.BoostEnded) else e  # noqa: E731
    assert "leaves it priority 7" in lied(w, ends)[0]
    fewer = inbox.ApplyQueues(version=1, queues=(Queue(name="research", boosts=BoostBudget(most=3)),))
    told = ledger.QueuesApplied(version=1, queues=fewer.queues)
    w.records[1] = w.records[1].model_copy(update={"events": (told, *w.records[1].events)})
    assert "has had 3 boosts" in lied(w, lambda e: e)[0]


def test_an_admin_raises_jobs_of_its_own_team_within_the_same_budget() -> None:
    w = full("research", "blue")
    own, other = one(w, "waits 0"), one(w, "waits 1")
    assert "no such job waits or runs" in refusal(w, boost(other, team="research"))
    (event,) = w.send(boost(own, team="research"))
    assert (event.team, event.user) == ("research", "olga")
    assert "no such job" in refusal(w, boost(own, for_s=0, team="blue"))
    (ended,) = w.send(boost(own, for_s=0, team="research"))
    assert (ended.team, ended.priority) == ("research", 100)
    for _ in range(3):
        w.send(boost(own))
    assert "boosts.most = 4: team research" in refusal(w, boost(own, team="research"))
    audit = AuditLines()
    lines = [line for seq, record in enumerate(w.records, 1) for line in audit.of(record, seq) if "boost" in line.kind]
    assert [(line.actor, line.kind) for line in lines[:2]] == [
        ("research.olga", "job.boost"), ("research.olga", "job.boost-end"),
    ]  # fmt: skip
    assert lines[2].actor == "operator.olga"
    w.check()
    for kind in (ledger.JobBoosted, ledger.BoostEnded):
        checker = Checker()
        for seq, record in enumerate(w.records, 1):
            told = tuple(e.model_copy(update={"team": "blue"}) if isinstance(e, kind) else e for e in record.events)
            checker.step(seq, record.model_copy(update={"events": told}), valid=True)
        assert any("I20" in one and "an admin of team blue" in one for one in checker.finish().violations)
    assert all(line.teams == ("research",) for line in lines)


@pytest.mark.parametrize(("team", "actor"), [(subjects.OPERATOR, "operator.ana"), ("research", "research.ana")])
def test_the_subject_says_whose_admin_it_is(team: str, actor: str) -> None:
    said = boost("job-" + "0" * 32, team="blue")
    stored = Stored(
        7, subjects.boost_job("main", "ana", team), {"ce-type": TYPE_OF[inbox.BoostJob], "ce-specversion": "1.0"},
        said.model_dump_json().encode(), 1,
    )  # fmt: skip
    read = read_input(stored, "main").message
    assert (read.team, read.user) == ("" if team == subjects.OPERATOR else team, "ana")
    w = World(node("n0"))
    w.send(read)
    rejected = w.records[-1].model_copy(
        update={"events": (w.records[-1].events[0].model_copy(update={"subject": stored.subject}),)}
    )
    (line,) = AuditLines().of(rejected, 2)
    assert (line.actor, line.kind, line.outcome) == (actor, "job.boost", "refused")
