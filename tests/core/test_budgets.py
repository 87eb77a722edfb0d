"""Budgets: what is held at a grant, captured at its end, carried over and topped up; what runs out."""

from pathlib import Path

import pytest

from libs.core.billing.budgets import period_of
from libs.core.explain.budgets import budgets_of
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.audit import AuditLines
from libs.core.projections.history import Feed
from libs.core.scheduling.preemption import PendingPlans
from libs.core.state.budgets import SCALE, Budgets
from libs.core.state.queue_tree import QueueTree
from schemas import inbox
from schemas.budgets import BudgetHold, BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget, WhenSpent
from schemas.jobs import TeamEvent
from schemas.ledger import (
    AttemptStopping,
    BudgetHoldsRenewed,
    BudgetPeriodBegan,
    BudgetReached,
    BudgetsApplied,
    InputRejected,
    JobGranted,
)
from schemas.prices import ListRate, RateBook
from schemas.queues import Queue
from schemas.resources import DeviceKind
from services.queries.metrics import BudgetMetrics
from tests.core.builders import World, job, node

HOUR_US = 3_600_000_000
HOUR = 1_000_000
"""A GPU-hour, or a unit of the currency, in millionths."""


def gpu_hours(hard: int | None = None, **more) -> SpendingBudget:
    about = {"team": "research", "unit": BudgetUnit.GPU_HOURS, "period": BudgetPeriod.MONTH, "hard": hard} | more
    return SpendingBudget(**about)


def apply(w: World, *budgets: SpendingBudget, version: int = 1, **more) -> list:
    return w.send(inbox.ApplyBudgets(budgets=BudgetSet(version=version, budgets=budgets, **more), user="olga"))


def tick(w: World, after_us: int) -> list:
    return w.send(inbox.Tick(), after_us=after_us)


def left(w: World, key: str) -> float:
    """What is available, in GPU-hours or money."""
    budgets = w.decider.state.budgets
    balance = budgets.balances[key]
    return budgets.available(balance, w.now_us) / balance.scale / 1e6


RESEARCH = "team:research:gpu-hours:month"


def test_a_grant_holds_its_whole_time_limit_and_its_end_captures_what_it_took():
    w = World(node("n0"))
    apply(w, gpu_hours(10 * HOUR))
    first = w.submit(job("first", 2, time_limit_s=4 * 3600))
    (granted,) = [e for r in w.records for e in r.events if isinstance(e, JobGranted)]
    assert granted.hold.until_us == w.now_us + 4 * HOUR_US
    assert left(w, RESEARCH) == 2
    w.started(first)
    tick(w, HOUR_US - 1000)
    w.released(first)
    spent = 2 * (w.records[-1].t_us - w.records[2].t_us)
    assert w.decider.state.budgets.balances[RESEARCH].captured == 7000 * spent
    assert w.decider.state.budgets.holds == {}
    w.check()


def test_the_worked_example_of_the_page_about_billing():
    w = World(node("n0"))
    apply(w, gpu_hours(10 * HOUR))
    balance = w.decider.state.budgets.balances[RESEARCH]
    available = []

    def note():
        available.append(w.decider.state.budgets.available(balance, w.now_us))

    note()
    gang = w.submit(job("gang", 2, time_limit_s=4 * 3600))
    begin_us = w.now_us
    note()
    w.send(job("other", 1, time_limit_s=4 * 3600), after_us=10_000_000)
    note()
    w.started(gang)
    tick(w, begin_us + HOUR_US - w.now_us - 1000)
    w.released(gang)
    note()
    text = (Path(__file__).parents[2] / "docs/billing.md").read_text()
    table = text.split("### Worked example: a hold")[1].split("\n\n")[2]
    told = [int(row.split("|")[3].replace(" ", "")) for row in table.splitlines()[2:]]
    assert available == [told[0], told[1], told[2], told[4]]
    assert told[3] == told[4] + 7000 * 4 * HOUR_US
    w.check()


def test_two_jobs_that_are_admitted_at_once_do_not_both_take_the_last_of_it():
    w = World(node("n0"))
    apply(w, gpu_hours(8 * HOUR))
    w.send(job("one", 1, time_limit_s=5 * 3600), job("two", 1, time_limit_s=5 * 3600))
    one, two = job("one").job_id, job("two").job_id
    assert (w.state_of(one), w.state_of(two)) == ("granted", "queued")
    w.started(one)
    assert w.state_of(two) == "queued"
    w.released(one)
    assert w.state_of(two) == "granted"
    w.check()


def test_explain_says_which_budget_is_short_and_the_smallest_change():
    w = World(node("n0"))
    apply(w, gpu_hours(8 * HOUR))
    waits = w.submit(job("waits", 4, time_limit_s=4 * 3600))
    state = w.decider.state
    told = explain(state, state.jobs[waits], Reasons(state))
    assert told.reason == "budget"
    assert told.text == "the budget of team research, gpu-hours a month, has 8 left, and the job needs 16 for 4 h"
    assert told.suggestion == "set time_limit_s to 7200"
    w.check()


def test_a_job_without_a_limit_holds_one_renewal_at_a_time_and_is_stopped_when_none_is_covered():
    w = World(node("n0"))
    apply(w, gpu_hours(2 * HOUR), renewal_s=1800)
    runs = w.submit(job("runs", 2))
    w.started(runs)
    assert left(w, RESEARCH) == 1
    assert any(isinstance(e, BudgetHoldsRenewed) for e in tick(w, HOUR_US // 2))
    assert left(w, RESEARCH) < 1e-4
    events = tick(w, HOUR_US // 2)
    assert [e.cause.value for e in events if isinstance(e, AttemptStopping)] == ["budget-spent"]
    assert [e.level for e in events if isinstance(e, BudgetReached)] == ["hard"]
    w.checkpointed(runs, 7)
    w.released(runs, exit_code=143, own_exit=False)
    assert w.state_of(runs) == "queued"
    w.send(inbox.TopUpBudget(budget=RESEARCH, amount=2 * HOUR, reason="a deadline", user="olga"))
    assert w.state_of(runs) == "granted"
    w.check()


def test_what_costs_nothing_is_covered_also_by_a_budget_that_is_overdrawn():
    cpu = node("n1", 1, model="CPU")
    own = tuple(one.model_copy(update={"kind": DeviceKind.CPU}) for one in cpu.devices)
    w = World(node("n0"), cpu.model_copy(update={"devices": own}))
    apply(w, gpu_hours(HOUR, when_spent=WhenSpent.CONTINUE), renewal_s=1800)
    w.started(w.submit(job("runs", 2)))
    for _ in range(3):
        tick(w, HOUR_US // 2)
    cpu = w.submit(job("cpu", 1, types=("CPU",)))
    assert w.state_of(cpu) == "granted"
    w.started(cpu)
    apply(w, gpu_hours(HOUR), version=2, renewal_s=1800)
    tick(w, HOUR_US)
    assert w.state_of(cpu) == "running"
    w.check()


def test_a_time_limit_of_less_than_a_microsecond_is_one():
    w = World(node("n0"))
    apply(w, gpu_hours(HOUR))
    w.submit(job("short", 1, time_limit_s=1e-9))
    tick(w, 1_000_000)
    w.check()


def test_a_limit_of_more_than_one_message_says_is_told():
    w = World(node("n0"))
    apply(w, gpu_hours(10**15, soft=10**15))
    w.send(inbox.TopUpBudget(budget=RESEARCH, amount=10**15, reason="more"))
    w.started(w.submit(job("runs", 1)))
    w.decider.state.budgets.balances[RESEARCH].captured += 3 * 10**15 * SCALE[BudgetUnit.GPU_HOURS]
    (told,) = [e for e in tick(w, 1_000_000) if isinstance(e, BudgetReached)]
    assert (told.level, told.limit) == ("hard", 2 * 10**15)


def test_a_budget_that_goes_on_when_it_is_spent_is_overdrawn_and_grants_nothing_more():
    w = World(node("n0"))
    apply(w, gpu_hours(HOUR, when_spent=WhenSpent.CONTINUE), renewal_s=1800)
    runs = w.submit(job("runs", 2))
    w.started(runs)
    for _ in range(3):
        assert any(isinstance(e, BudgetHoldsRenewed) for e in tick(w, HOUR_US // 2))
    assert left(w, RESEARCH) == pytest.approx(-3, abs=1e-3)
    waits = w.submit(job("waits", 1, time_limit_s=1))
    assert (w.state_of(runs), w.state_of(waits)) == ("running", "queued")
    w.check()


def test_a_soft_limit_warns_once_in_a_period():
    w = World(node("n0"))
    apply(w, gpu_hours(None, soft=HOUR, period=BudgetPeriod.DAY), renewal_s=1800)
    w.started(w.submit(job("runs", 2)))
    seen = [e for _ in range(100) for e in tick(w, HOUR_US // 2) if isinstance(e, BudgetReached)]
    assert [e.level for e in seen] == ["soft"] * 3
    assert len([e for r in w.records for e in r.events if isinstance(e, BudgetPeriodBegan)]) == 3
    w.check()


def test_teams_are_told_of_their_own_budgets_and_of_their_queues():
    w = World(node("n0"))
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="lab"), Queue(name="red", parent="lab"))))
    lab = SpendingBudget(queue="lab", unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.WEEK, soft=HOUR)
    apply(w, lab, gpu_hours(HOUR, team="red"), renewal_s=1800)
    w.started(w.submit(job("runs", 2, team="red")))
    feed, told = Feed(), []
    for _ in range(3):
        tick(w, HOUR_US // 2)
    for seq, record in enumerate(w.records, 1):
        told += [(e.team, e.what, e.reason) for e in feed.apply(record, seq) if isinstance(e, TeamEvent)]
    assert (
        "red",
        "budget-spent",
        "the budget of team red, gpu-hours a month: 1 are spent, and its hard limit is 1",
    ) in told
    assert (
        "lab",
        "budget-warning",
        "the budget of queue lab, gpu-hours a week: 1 are spent, and its soft limit is 1",
    ) in told
    assert sorted(team for team, what, _ in told if what == "budget-warning") == ["lab", "red"]
    w.check()


def test_large_amounts_are_told_to_the_last_digit_to_teams_and_to_auditors():
    """Seen: 1.23457e+06 were spent, and a budget was topped up by 1.23457e+06."""
    w = World(node("n0"))
    apply(w, gpu_hours(HOUR))
    w.send(inbox.TopUpBudget(budget=RESEARCH, amount=1_234_567_890_000, reason="a deadline", user="olga"))
    record = w.records[-1]
    (line,) = AuditLines().of(record, len(w.records))
    assert line.target == f"{RESEARCH} by 1234567.89"
    reached = BudgetReached(
        budget="team:red:money:month", level="soft", limit=1_200_000 * HOUR, spent=1_234_567_890_001, teams=("red",)
    )
    told = Feed().apply(record.model_copy(update={"events": (reached,)}), 1)
    assert [e.reason for e in told if isinstance(e, TeamEvent)] == [
        "the budget of team red, money a month: 1234567.890001 are spent, and its soft limit is 1200000"
    ]
    w.check()


def test_metrics_show_what_is_spent_and_left():
    w = World(node("n0"))
    apply(w, gpu_hours(2 * HOUR, soft=HOUR, when_spent=WhenSpent.CONTINUE), renewal_s=1800)
    w.started(w.submit(job("runs", 2)))
    for _ in range(3):
        tick(w, HOUR_US // 2)
    found = {m.name: m.samples[0].value for m in BudgetMetrics(lambda: (w.decider.state, w.now_us)).collect()}
    assert found["baton_budget_limit"] == 2
    assert found["baton_budget_spent"] == pytest.approx(3, abs=1e-3)
    assert found["baton_budget_available"] == pytest.approx(-2, abs=1e-3)
    assert found["baton_budget_soft_reached"] == 1


def test_what_a_period_leaves_is_carried_over_up_to_a_bound():
    day = "team:research:gpu-hours:day"
    w = World(node("n0"))
    apply(w, gpu_hours(10 * HOUR, carry_over=4 * HOUR, period=BudgetPeriod.DAY))
    tick(w, 24 * HOUR_US)
    assert left(w, day) == 14
    first = w.submit(job("first", 2, time_limit_s=6 * 3600))
    w.started(first)
    tick(w, 6 * HOUR_US)
    w.released(first)
    tick(w, 24 * HOUR_US)
    assert left(w, day) == pytest.approx(12, abs=1e-3)  # 14 - 12 = 2 were left
    w.check()


def test_use_is_of_the_period_in_which_it_was_also_when_the_pool_heard_of_it_late():
    w = World(node("n0"))
    apply(w, gpu_hours(100 * HOUR, period=BudgetPeriod.DAY))
    first = w.submit(job("first", 1, time_limit_s=40 * 3600))
    w.started(first)
    tick(w, 20 * HOUR_US)
    tick(w, 10 * HOUR_US)  # nobody decided anything for ten hours, over midnight
    began = [e for e in w.records[-1].events if isinstance(e, BudgetPeriodBegan)]
    assert began[0].at_us == 24 * HOUR_US
    balance = w.decider.state.budgets.balances["team:research:gpu-hours:day"]
    assert balance.spent(w.now_us) == 7000 * (w.now_us - 24 * HOUR_US)
    w.check()


def test_a_budget_of_a_queue_counts_all_teams_below_it():
    w = World(node("n0"))
    tree = (Queue(name="lab"), Queue(name="red", parent="lab"), Queue(name="blue", parent="lab"))
    w.send(inbox.ApplyQueues(version=1, queues=tree))
    apply(w, SpendingBudget(queue="lab", unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.WEEK, hard=3 * HOUR))
    red = w.submit(job("a", 2, team="red", time_limit_s=3600))
    blue = w.submit(job("b", 2, team="blue", time_limit_s=3600))
    other = w.submit(job("c", 2, team="green", time_limit_s=3600))
    assert [w.state_of(x) for x in (red, blue, other)] == ["granted", "queued", "granted"]
    w.started(red)
    w.released(red)
    assert w.state_of(blue) == "granted"
    w.check()


def test_money_is_held_at_the_price_of_the_moment():
    w = World(node("n0"))
    prices = (ListRate(device="H100", micros=3_000_000, from_us=0),)
    w.send(inbox.ApplyPrices(book=RateBook(version=1, currency="USD", prices=prices)))
    apply(w, gpu_hours(20 * HOUR, unit=BudgetUnit.MONEY))
    waits = w.submit(job("waits", 4, time_limit_s=2 * 3600))
    runs = w.submit(job("runs", 3, time_limit_s=2 * 3600))
    assert (w.state_of(waits), w.state_of(runs)) == ("queued", "granted")
    assert left(w, "team:research:money:month") == 2
    w.check()


def test_an_elastic_job_gets_as_many_devices_as_are_covered():
    w = World(node("n0"))
    apply(w, gpu_hours(5 * HOUR))
    admitted = job("some", 8, time_limit_s=3600)
    spec = admitted.spec.model_copy(update={"resources": admitted.spec.resources.model_copy(update={"min_devices": 1})})
    some = w.submit(admitted.model_copy(update={"spec": spec}))
    assert len(w.decider.state.jobs[some].current.claims) == 5
    w.check()


def test_budgets_that_are_applied_while_jobs_run_count_them_from_then_on():
    w = World(node("n0"))
    runs = w.submit(job("runs", 2))
    w.started(runs)
    tick(w, 5 * HOUR_US)
    apply(w, gpu_hours(2 * HOUR), renewal_s=1800)
    assert left(w, RESEARCH) == 1
    assert w.state_of(runs) == "running"
    apply(w, gpu_hours(0), version=2)
    assert w.state_of(runs) == "running"  # its hold is its own
    tick(w, HOUR_US // 2)
    assert w.state_of(runs) == "stopping"
    w.check()


@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        ((gpu_hours(1), gpu_hours(2)), "budgets.1.unit = team:research:gpu-hours:month: is there twice"),
        ((gpu_hours(1, queue="x"),), "budgets.0.queue = x: stands beside a team"),
        ((gpu_hours(1, team=None, queue="x"),), "budgets.0.queue = x: is no queue of the pool"),
        ((gpu_hours(1, team=None),), "budgets.0.team = : is not given, nor a queue"),
        ((gpu_hours(),), "budgets.0.hard = : is not given, nor soft"),
        ((gpu_hours(1, soft=2),), "budgets.0.soft = 2e-06: is above hard, 1e-06"),
        ((gpu_hours(soft=2, carry_over=3),), "budgets.0.carry_over = 3e-06: carries over what has no end"),
    ],
)
def test_wrong_budgets_are_refused_as_a_whole(budgets, said):
    w = World(node("n0"))
    events = apply(w, *budgets)
    assert not any(isinstance(e, BudgetsApplied) for e in events)
    (refused,) = [e for e in events if isinstance(e, InputRejected)]
    assert said in refused.reason
    w.check()


def test_an_unknown_time_zone_an_old_version_and_an_unknown_budget_are_refused():
    w = World(node("n0"))
    assert any("is no time zone" in e.reason for e in apply(w, gpu_hours(1), time_zone="Europe/Nowhere"))
    apply(w, gpu_hours(1), version=3)
    assert any("version 2 is not above 3" in e.reason for e in apply(w, gpu_hours(2), version=2))
    said = w.send(inbox.TopUpBudget(budget="team:vision:gpu-hours:month", amount=1, reason="more"))
    assert any("there is no budget team:vision:gpu-hours:month" in e.reason for e in said)
    w.check()


def test_periods_begin_by_the_calendar_of_their_zone():
    utc = lambda text: int(__import__("datetime").datetime.fromisoformat(text).timestamp()) * 1_000_000  # noqa: E731
    at = utc("2026-03-29T12:00:00+00:00")  # the day on which Berlin's clock is put forward
    assert period_of(BudgetPeriod.DAY, "Europe/Berlin", at) == (
        utc("2026-03-28T23:00:00+00:00"),
        utc("2026-03-29T22:00:00+00:00"),
    )
    assert period_of(BudgetPeriod.WEEK, "UTC", at) == (
        utc("2026-03-23T00:00:00+00:00"),
        utc("2026-03-30T00:00:00+00:00"),
    )
    assert period_of(BudgetPeriod.MONTH, "UTC", utc("2028-02-29T12:00:00+00:00")) == (
        utc("2028-02-01T00:00:00+00:00"),
        utc("2028-03-01T00:00:00+00:00"),
    )
    # Beirut leaves out midnight: the day begins at one.
    beirut = period_of(BudgetPeriod.DAY, "Asia/Beirut", utc("2026-03-29T12:00:00+00:00"))
    assert beirut == (utc("2026-03-28T22:00:00+00:00"), utc("2026-03-29T21:00:00+00:00"))


def test_a_millionth_is_a_whole_number_of_what_is_counted():
    assert SCALE[BudgetUnit.GPU_HOURS] == 7000 * 3600
    assert SCALE[BudgetUnit.MONEY] == 1000 * HOUR_US


def test_what_is_kept_for_a_job_that_its_budget_does_not_cover_any_more_is_let_go():
    """The checker took that for a lie (seed 20504 of the simulation)."""
    w = World(node("n0"), node("n1"))
    apply(w, gpu_hours(40 * HOUR))
    victim = w.submit(job("other", 8, team="vision"))
    w.started(victim)
    w.started(w.submit(job("spends", 8, time_limit_s=900)))
    waiting = w.submit(job("waits", 8, priority=200, preempts=True, time_limit_s=4 * 3600))
    devices = tuple(claim.device for claim in w.decider.state.jobs[victim].current.parts["n0"].claims)
    w.send(
        inbox.PreemptionPlanned(
            plan_id="p", base_seq=1, beneficiary=waiting, victims=(victim,), devices=devices, cost_device_s=0
        )
    )
    assert w.decider.state.holds == {waiting: devices}
    apply(w, gpu_hours(20 * HOUR), version=2)
    tick(w, 60_000_000)
    assert w.decider.state.holds == {}
    w.check()


def test_jobs_that_hold_of_budgets_are_counted_by_team_and_not_one_by_one(monkeypatch: pytest.MonkeyPatch):
    """With 1,000 budgets and 10,000 attempts each was asked of each: seconds, in the lane of all teams' heavy questions."""
    w = World(node("n0"))
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="lab"), Queue(name="vision", parent="lab"))))
    apply(w, *(gpu_hours(99 * HOUR, **of) for of in ({}, {"team": "vision"}, {"team": None, "queue": "lab"})))
    for n in range(3):
        w.submit(job(f"vision{n}", team="vision"))
    w.submit(job("research"))
    asked: list[str] = []
    covering = Budgets.covering
    monkeypatch.setattr(Budgets, "covering", lambda budgets, team: asked.append(team) or covering(budgets, team))
    told = budgets_of(w.decider.state, "operator", w.now_us)
    assert {one.budget.label.split(",")[0]: one.jobs for one in told.budgets} == {
        "queue lab": 3, "team research": 1, "team vision": 3,
    }  # fmt: skip
    assert asked.count("vision") <= 2


def test_what_has_ended_is_not_kept_until_its_time_limit_would_have_been_over():
    """Seen: a reader that nobody asks what is spent kept a line for each attempt that ever ran under a budget, and placement
    for as long as their time limits, which may be a year."""
    budgets = Budgets()
    about = BudgetSet(version=1, budgets=(gpu_hours(10**9 * HOUR),))
    budgets.apply(about, QueueTree(), [], 0)

    def opened(name: str, until_us: int) -> None:
        budgets.open(name, "research", [("H100", 1)], BudgetHold(until_us=until_us), 0)

    opened("first", 7_000)
    for n in range(5_000):
        opened(f"job{n}", 365 * 24 * HOUR_US)
        if n != 2_500:
            budgets.freed(f"job{n}", [], n)
        if n == 1_000:
            assert list(budgets.overdue(8_000)) == ["first"], "and is not forgotten"
    opened("last", 9_000)
    assert len(budgets._due) < 200
    assert list(budgets.overdue(8_000)) == ["first"]
    assert list(budgets.overdue(9_000)) == ["first", "last"]
    assert set(budgets.overdue(366 * 24 * HOUR_US)) == {"first", "last", "job2500"}


@pytest.mark.parametrize("comes", ["budget", "queue"])
def test_a_budget_of_money_that_comes_counts_also_what_runs_under_one_of_gpu_hours(comes: str):
    """The hold of such a job says no prices, and lasts for its whole time limit."""
    w = World(node("n0"))
    rate = ListRate(device="H100", micros=3_000_000, from_us=0)
    w.send(inbox.ApplyPrices(book=RateBook(version=1, currency="USD", prices=(rate,))))
    money = SpendingBudget(queue="lab", unit=BudgetUnit.MONEY, period=BudgetPeriod.MONTH, hard=20 * HOUR)
    lab = (Queue(name="lab"), Queue(name="research", parent="lab" if comes == "budget" else ""))
    w.send(inbox.ApplyQueues(version=1, queues=lab))
    apply(w, gpu_hours(1000 * HOUR), *([money] if comes == "queue" else []))
    runs = w.submit(job("runs", 2, time_limit_s=7 * 86_400))
    w.started(runs)
    tick(w, HOUR_US)
    if comes == "budget":
        apply(w, gpu_hours(1000 * HOUR), money, version=2)
    else:
        w.send(inbox.ApplyQueues(version=2, queues=(Queue(name="lab"), Queue(name="research", parent="lab"))))
    balance = w.decider.state.budgets.balances[money.key]
    since_us, spent_us = w.now_us, 7000 * 2 * (w.now_us - w.records[4].t_us)
    assert w.decider.state.budgets.balances[RESEARCH].captured == spent_us, "and nothing is lost of the other one"
    tick(w, HOUR_US)
    assert balance.spent(w.now_us) == 2 * 1000 * 3_000_000 * (w.now_us - since_us)
    while w.state_of(runs) == "running" and w.now_us < since_us + 10 * HOUR_US:
        tick(w, HOUR_US // 10)
    assert w.state_of(runs) == "stopping"
    assert balance.spent(w.now_us) / balance.scale / HOUR == pytest.approx(20, abs=1.5)
    w.check()


@pytest.mark.parametrize("days", [2, 40, 5 * 365])
def test_after_the_clock_was_ahead_the_present_period_goes_on_and_the_next_begins_at_its_time(days: int):
    """It stayed in the one to come: for five years nothing was given anew."""
    day_us = 24 * HOUR_US
    w = World(node("n0"))
    tick(w, 6 * HOUR_US)
    apply(w, gpu_hours(10 * HOUR, period=BudgetPeriod.DAY), gpu_hours(100 * HOUR, team="vision"))
    key = "team:research:gpu-hours:day"
    w.set_clock(days * day_us)
    tick(w, 1000)
    w.started(w.submit(job("runs", 2, time_limit_s=2 * 3600)))
    tick(w, HOUR_US)
    w.set_clock(-days * day_us)
    balances = w.decider.state.budgets.balances
    assert {name: balance.from_us for name, balance in balances.items()} == dict.fromkeys(balances, 0)
    assert left(w, key) == 6, "what was spent and held meanwhile stays"
    w.released(job("runs").job_id)
    assert left(w, key) == pytest.approx(8, abs=1e-4)
    tick(w, day_us)
    assert (balances[key].from_us, left(w, key)) == (day_us, 10)
    w.check()


def test_a_clock_that_is_set_back_by_moments_begins_no_period_twice():
    w = World(node("n0"))
    apply(w, gpu_hours(10 * HOUR, period=BudgetPeriod.DAY, carry_over=10 * HOUR))
    tick(w, 24 * HOUR_US)
    w.set_clock(-60_000_000)
    tick(w, HOUR_US)
    began = [e.from_us for record in w.records for e in record.events if isinstance(e, BudgetPeriodBegan)]
    assert began == [0, 24 * HOUR_US]
    w.check()


def test_who_waits_for_a_budget_of_money_is_granted_as_soon_as_prices_let_it():
    """It was looked at again after a minute or five, and its explanation said that it was granted with the next decision."""
    w = World(node("n0"))
    dear, cheap = (
        RateBook(version=version, currency="USD", prices=(ListRate(device="H100", micros=micros, from_us=0),))
        for version, micros in ((1, 30_000_000), (2, 3_000_000))
    )
    w.send(inbox.ApplyPrices(book=dear))
    apply(w, gpu_hours(20 * HOUR, unit=BudgetUnit.MONEY))
    waits = w.submit(job("waits", 1, time_limit_s=3600))
    planner = PendingPlans()
    planner.computed()
    assert (w.state_of(waits), planner.due(w.now_us)) == ("queued", False)
    w.send(inbox.ApplyPrices(book=cheap))
    planner.apply(w.records[-1])
    assert (w.state_of(waits), planner.due(w.now_us)) == ("granted", True)
    w.check()


def test_a_queue_whose_budget_there_is_does_not_go():
    """The budget counted nobody then, and what waited for it ran."""
    w = World(node("n0"))
    research = Queue(name="research")
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="lab"), Queue(name="research", parent="lab"))))
    lab = SpendingBudget(queue="lab", unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.MONTH, hard=HOUR)
    apply(w, lab)
    waits = w.submit(job("waits", 8, time_limit_s=3600))
    (refused,) = w.send(inbox.ApplyQueues(version=2, queues=(research,)))
    assert refused.reason.startswith(
        "queue lab goes, and the budget of queue lab, gpu-hours a month would count nobody"
    )
    assert (w.state_of(waits), "lab" in w.decider.state.tree) == ("queued", True)
    apply(w, version=2)
    w.send(inbox.ApplyQueues(version=2, queues=(research,)))
    assert (w.state_of(waits), "lab" in w.decider.state.tree) == ("granted", False)
    w.check()


def test_who_waits_for_a_budget_of_money_is_granted_soon_after_prices_are_others_by_the_calendar():
    w = World(node("n0"))
    cheap_us = 2 * HOUR_US
    dear = ListRate(device="H100", micros=30_000_000, from_us=0, to_us=cheap_us)
    cheap = ListRate(device="H100", micros=3_000_000, from_us=cheap_us)
    w.send(inbox.ApplyPrices(book=RateBook(version=1, currency="USD", prices=(dear, cheap))))
    apply(w, gpu_hours(20 * HOUR, unit=BudgetUnit.MONEY))
    tick(w, cheap_us - w.now_us - 61_000_000)
    waits = w.submit(job("waits", 1, time_limit_s=3600))
    while w.now_us < cheap_us:
        tick(w, 1_000_000)
    for _ in range(11):
        tick(w, 1_000_000)
    assert w.state_of(waits) == "granted"
    w.check()
