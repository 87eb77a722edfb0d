"""What is kept for a gang is open to jobs that end before the start that it was promised."""

import random
import re

import pytest

from libs.core.admission.priority_class import PriorityClass
from libs.core.billing.pricing import Prices
from libs.core.explain.dry_run import DryRunInputs
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.placement.answer import BlockReason
from libs.core.scheduling.decider import Decider
from libs.core.state.job import limit_class_of
from libs.core.state.team_claims import START_US
from schemas import inbox
from schemas.billing import Price, PriceBook
from schemas.explanations import PlanQuery, PlanReply, PlanVerdict
from schemas.jobs import PromiseCause
from schemas.ledger import GangPromised
from schemas.queues import Queue
from schemas.resources import Level
from services.queries.answers import Answers, AskedBy
from services.queries.replica import Latencies, Replica
from tests.core.builders import World, job, node

S = 1_000_000
DUE_S = 70


def submit(w: World, name: str, limit_s: float = 0, devices: int = 1, team: str = "green", **more: Level) -> str:
    """A job that runs at once, or waits."""
    one = w.submit(job(name, devices, team=team, time_limit_s=limit_s, submitted_us=w.now_us + 1, **more))
    if w.state_of(one) == "granted":
        w.started(one)
    return one


def comes(w: World, name: str, limit_s: float, devices: int = 1, team: str = "green") -> str:
    """What becomes of a job: `running` or `queued`. One that waits goes again, as the next of its queue stands behind it."""
    one = submit(w, name, limit_s, devices, team)
    state = w.state_of(one)
    if state == "queued":
        w.send(inbox.CancelRequested(job_id=one, team=team, reason="seen"))
    return state


def promised_us(w: World, gang: str) -> int:
    return w.decider.turns.book.of[gang].last.start_us


def tick(w: World, after_s: float = 1) -> list[object]:
    return w.send(inbox.Tick(), after_us=int(after_s * S))


@pytest.fixture
def waiting() -> tuple[World, str]:
    """Eight devices, of which six are free; two come back within the hour, and a gang waits for all eight."""
    w = World(node("n0"))
    submit(w, "hour", 3600, 2, "blue")
    gang = submit(w, "gang", 0, 8, "red")
    tick(w, DUE_S)
    return w, gang


def test_who_ends_before_the_promised_start_goes_before_and_nobody_else(waiting: tuple[World, str]) -> None:
    w, gang = waiting
    left_s = (promised_us(w, gang) - w.now_us) // S
    assert comes(w, "short", 600) == "running"
    assert comes(w, "long", left_s + 10) == "queued"
    assert comes(w, "for-ever", 0) == "queued"
    assert comes(w, "own", 600, team="red") == "running"
    assert comes(w, "long-own", left_s + 10, team="red") == "queued"
    assert comes(w, "longer", left_s + 10) == "queued", (
        "its own team's short job makes the gang's devices nobody else's"
    )
    w.check()


def test_a_job_without_a_limit_does_not_hold_up_one_of_its_team_that_ends_in_time(waiting: tuple[World, str]) -> None:
    w, _ = waiting
    long = submit(w, "for-ever", 0)
    assert w.state_of(submit(w, "day", 86_400)) == "queued"
    assert w.state_of(submit(w, "short", 600)) == "running"
    assert w.state_of(long) == "queued"
    w.check()


@pytest.mark.parametrize(
    ("limit_s", "found"), [(0, 0), (0.5, 1), (60, 1), (61, 2), (240, 2), (240.1, 3), (31_536_000, 11)]
)
def test_the_class_of_a_time_limit(limit_s: float, found: int) -> None:
    assert limit_class_of(limit_s) == found


def test_its_start_and_its_graces_count(waiting: tuple[World, str]) -> None:
    w, gang = waiting
    spec = job("any").spec
    assert spec.checkpoint is not None
    left_s = (promised_us(w, gang) - w.now_us - START_US) / S - spec.stop_grace_s - spec.checkpoint.grace_s
    assert comes(w, "late", left_s + 1) == "queued"
    assert comes(w, "in-time", left_s - 1) == "running"


def test_explain_tells_why_and_which_limit_would_help(waiting: tuple[World, str]) -> None:
    w, _ = waiting
    long, state = submit(w, "long", 7200, devices=2), w.decider.state
    wide = submit(w, "wide", 600, devices=7)
    reasons = Reasons(state, w.decider.policy)
    found = [reasons.of(state.jobs[one].queue) for one in (long, wide)]
    assert [why and why.reason for why in found] == [BlockReason.RESERVED, BlockReason.BUSY]
    told = explain(state, state.jobs[long], reasons)
    assert told.reason == "reserved"
    limit = re.fullmatch(r"set time_limit_s to (\d+)", told.suggestion)
    assert limit is not None
    assert 3000 < int(limit[1]) < 4000
    assert "time_limit_s" not in explain(state, state.jobs[wide], reasons).suggestion
    assert comes(w, "advised", int(limit[1]), devices=2) == "running"


def test_explain_advises_no_limit_where_none_helps() -> None:
    w = World(node("n0"))
    submit(w, "stays", 0, 2, "red")
    submit(w, "gang", 0, 8, "red")
    tick(w, DUE_S)
    behind, state = submit(w, "behind", 0, team="red"), w.decider.state
    w.decider.turns.book.of.clear()
    told = explain(state, state.jobs[behind], Reasons(state, w.decider.policy))
    assert (told.reason, "time_limit_s" in told.suggestion) == ("reserved", False)


def test_a_dry_run_says_what_becomes_of_the_job(waiting: tuple[World, str]) -> None:
    """Seen: queries asked without the promises of gangs, so that nothing which is kept for them was open to anybody."""
    w, gang = waiting
    replica = Replica(Decider())
    for seq, record in enumerate(w.records, 1):
        replica.apply(record, seq)
    prices = Prices(PriceBook(currency="EUR", prices=(Price(model="H100", micros_per_device_hour=1),)))
    alike = PriorityClass(name="experiment", priority=0, preempts=False, description="As all here.")
    inputs = DryRunInputs(prices, classes={alike.name: alike})
    answers = Answers("test", inputs, Latencies(1), now_us=lambda: w.now_us)

    def planned(limit_s: float) -> PlanReply:
        query = PlanQuery(job=job("any", time_limit_s=limit_s).spec)
        return answers.plan(replica, query, AskedBy("green", len(w.records)))

    left_s = (promised_us(w, gang) - w.now_us) // S
    assert planned(600).verdict is PlanVerdict.NOW
    assert planned(left_s + 10).verdict is not PlanVerdict.NOW
    assert planned(0).suggestion.startswith("set time_limit_s to ")
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="green", order="shortest-remaining"),), user="olga"))
    replica.apply(w.records[-1], len(w.records))
    assert planned(600).verdict is PlanVerdict.NOW, "with guarantees of nobody it stands before the gang, by its share"


def test_nobody_goes_before_a_gang_that_is_late(waiting: tuple[World, str]) -> None:
    w, gang = waiting
    w.send(after_us=promised_us(w, gang) - w.now_us + S)
    assert w.state_of(gang) == "queued"
    assert comes(w, "short", 1) == "queued"


def test_who_waits_goes_before_once_a_higher_class_has_moved_the_start(waiting: tuple[World, str]) -> None:
    w, gang = waiting
    waits = submit(w, "waits", (promised_us(w, gang) - w.now_us) / S)
    assert w.state_of(waits) == "queued"
    w.started(w.submit(job("higher", 2, team="blue", priority=100, time_limit_s=20_000)))
    moved = [event for _ in range(3) for event in tick(w, 61) if isinstance(event, GangPromised)]
    assert [event.promise.cause for event in moved] == [PromiseCause.HIGHER_CLASS]
    w.send()
    assert w.state_of(waits) == "granted"
    w.check()


def test_what_goes_before_does_not_move_what_is_kept() -> None:
    """Four devices of the first node are somebody's for ever, three of the second for an hour: the gang waits for the second,
    also when both are full of what goes before it."""
    w = World(node("n0"), node("n1"))
    submit(w, "for-ever", 0, 4, "blue")
    filler = submit(w, "filler", 0, 5, "blue")
    submit(w, "hour", 3600, 3, "blue")
    w.released(filler)
    gang = w.submit(job("gang", 8, team="red", required=Level.NODE, submitted_us=w.now_us))
    tick(w, DUE_S)
    kept = w.decider.state.reserved[gang]
    assert {device.partition("-")[0] for device in kept} == {"n1"}
    for n in range(9):
        assert w.state_of(submit(w, f"short{n}", 600)) == "running"
    tick(w)
    assert w.decider.state.reserved[gang] == kept
    w.check()


@pytest.mark.parametrize("seed", range(6))
def test_a_promise_is_kept_however_many_go_before(seed: int) -> None:
    """Jobs of all lengths come without end, of the gang's own team too; each runs to its limit, or ends before."""
    chance, w = random.Random(seed), World(node("n0", 4), node("n1", 4))
    ends_us: dict[str, int] = {}
    limits_s: dict[str, float] = {}

    def begin(one: str) -> None:
        w.started(one)
        ran_s = (limits_s[one] or 20_000) * (1 if chance.random() < 0.7 else chance.random())
        ends_us[one] = w.now_us + int(ran_s * S)

    def add(name: str, team: str, limit_s: float) -> None:
        devices = chance.choice((1, 1, 2))
        one = w.submit(job(name, devices, team=team, time_limit_s=limit_s, submitted_us=w.now_us + 1))
        limits_s[one] = limit_s

    def play(seconds: float) -> None:
        tick(w, seconds)
        for one in [one for one, end_us in ends_us.items() if end_us <= w.now_us]:
            del ends_us[one]
            w.released(one)
        for one in limits_s:
            if one in w.decider.state.jobs and w.state_of(one) == "granted":
                begin(one)

    for n in range(3):
        add(f"first{n}", "blue", chance.choice((200, 900, 3000)))
    play(1)
    gang = submit(w, "gang", 0, 8, "red")
    play(DUE_S)
    promise, went_before = promised_us(w, gang), 0
    while w.state_of(gang) == "queued" and w.now_us < promise + 60 * S:
        play(20)
        add(f"more{w.now_us}", chance.choice(("green", "green", "red")), chance.choice((5, 50, 400, 2000, 0)))
        went_before = w.decider.state.grants
    assert w.now_us <= promise + 25 * S
    assert went_before > 3
    w.check()
