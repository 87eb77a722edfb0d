"""A budgets file: every problem at once, with line, field and fix; what would change."""

import re
from pathlib import Path

import pytest

from libs.cli.apply_budgets import changes
from libs.cli.budget import tightest
from libs.cli.budgetsfile import BudgetsFileError, is_budgets, read_budgets
from schemas.budgets import BudgetPeriod, BudgetUnit, SpendingBudget, WhenSpent
from schemas.queue_status import BudgetsReply, BudgetStanding

GOOD = """\
version: 2
time_zone: Europe/Berlin
renewal: 10m
budgets:
  - {team: vision, unit: gpu-hours, period: month, soft: 800, hard: 1000.5, carry_over: 100}
  - {queue: research, unit: money, period: week, hard: 50000.01, when_spent: continue}
"""


def test_a_file_is_read_as_it_is_written():
    found = read_budgets(GOOD, queues=("research",))
    assert (found.version, found.time_zone, found.renewal_s) == (2, "Europe/Berlin", 600)
    assert found.budgets == (
        SpendingBudget(
            team="vision",
            unit=BudgetUnit.GPU_HOURS,
            period=BudgetPeriod.MONTH,
            soft=800_000_000,
            hard=1_000_500_000,
            carry_over=100_000_000,
        ),
        SpendingBudget(
            queue="research",
            unit=BudgetUnit.MONEY,
            period=BudgetPeriod.WEEK,
            hard=50_000_010_000,
            when_spent=WhenSpent.CONTINUE,
        ),
    )
    assert is_budgets(GOOD)
    assert not is_budgets("version: 1\nqueues: []\n")
    assert not is_budgets("[")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "- {team: a, unit: gpu-hours, period: month, hard: -1}",
            "budgets.0.hard: -1: an amount is not negative; leave it out",
        ),
        ("- {team: a, unit: gpu-hours, period: month, hard: 1.1234567}", "write a decimal with at most six places"),
        ("- {team: a, unit: gpu-hours, period: year, hard: 1}", "budgets.0.period"),
        ("- {team: a, unit: hours, period: month, hard: 1}", "budgets.0.unit"),
        ("- {team: a, unit: money, period: month, hrad: 1}", "budgets.0.hrad"),
        ("- {team: a, unit: money, period: month}", "budgets.0.hard: is not given, nor soft; give at least one"),
        (
            "- {unit: money, period: month, hard: 1}",
            "budgets.0.team: is not given, nor a queue; say whose budget it is",
        ),
        ("- {team: a, queue: q, unit: money, period: month, hard: 1}", "budgets.0.queue: q stands beside a team"),
        (
            "- {queue: x, unit: money, period: month, hard: 1}",
            "budgets.0.queue: x is no queue of the pool; apply the queue",
        ),
        ("- {team: a, unit: money, period: day, soft: 3, hard: 2}", "budgets.0.soft: 3 is above hard, 2; warn before"),
        (
            "- {team: a, unit: money, period: day, soft: 3, carry_over: 2}",
            "budgets.0.carry_over: 2 carries over what has no",
        ),
        (
            "- {team: a, unit: money, period: day, hard: 1e3}",
            "budgets.0.hard: 1e3: is not written as a plain decimal; write a decimal",
        ),
        ("- {team: a, unit: money, period: day, hard: .inf}", "budgets.0.hard"),
    ],
)
def test_what_is_wrong_is_told_with_line_field_and_fix(line: str, words: str):
    with pytest.raises(BudgetsFileError) as wrong:
        read_budgets(f"version: 1\nbudgets:\n  {line}\n", "b.yaml", ("q",))
    assert str(wrong.value).startswith("b.yaml:3: ")
    assert words in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 0\nbudgets: []\n", "b.yaml:1: version"),
        (
            "version: 1\ntime_zone: Mars/Base\nbudgets: []\n",
            "b.yaml:2: time_zone: Mars/Base is no time zone; write one as",
        ),
        ("version: 1\nrenewal: 1s\nbudgets: []\n", "b.yaml:2: renewal"),
        ("version: 1\nrenewal: soon\nbudgets: []\n", "b.yaml:2: renewal"),
        ("[]", "b.yaml:1: file: is not one mapping of fields"),
        ("version: 1\nbudgets: &a []\n", "anchors and aliases"),
        ("version: 1\nversion: 2\nbudgets: []\n", "the key stands twice"),
    ],
)
def test_what_is_wrong_around_the_budgets_is_told_as_well(text: str, words: str):
    with pytest.raises(BudgetsFileError) as wrong:
        read_budgets(text, "b.yaml")
    assert words in str(wrong.value)


def test_two_budgets_of_one_unit_and_period_are_one_too_many():
    item = "  - {team: a, unit: money, period: day, hard: 1}\n"
    with pytest.raises(BudgetsFileError, match=r"b.yaml:4: budgets.1.unit: team:a:money:day is there twice; keep one"):
        read_budgets(f"version: 1\nbudgets:\n{item}{item}", "b.yaml")


def test_a_difference_is_a_line():
    one = read_budgets(GOOD, queues=("research",))
    text = GOOD.replace("10m", "15m").replace("hard: 1000.5", "hard: 900").replace("queue: research", "team: labs")
    two = read_budgets(text)
    assert changes(None, one)[0].text() == "+ queue research, money a week  hard 50000, when_spent continue"
    assert changes(one, one) == []
    assert [change.text() for change in changes(one, two)] == [
        "~ (the pool)  renewal: 600s -> 900s",
        "- queue research, money a week  hard 50000, when_spent continue",
        "+ team labs, money a week  hard 50000, when_spent continue",
        "~ team vision, gpu-hours a month  hard: 1000.5 -> 900",
    ]


def test_a_queue_shows_the_budget_that_is_nearest_to_its_end():
    month, day = (
        SpendingBudget(team="vision", unit=BudgetUnit.GPU_HOURS, period=period, hard=10_000_000)
        for period in (BudgetPeriod.MONTH, BudgetPeriod.DAY)
    )
    reply = BudgetsReply(
        budgets=(
            BudgetStanding(budget=month, spent=2_500_000, available=7_500_000),
            BudgetStanding(budget=day, spent=11_000_000, topped_up=500_000, available=-500_000),
        )
    )
    assert tightest(reply) == {"vision": "11/10.5 gpu-hours a day (overdrawn)"}


def test_the_shipped_example_is_right_for_the_shipped_queues():
    deploy = Path(__file__).resolve().parents[2] / "deploy"
    queues = re.findall(r"name: (\w+)", (deploy / "queues.yaml").read_text("utf-8"))
    found = read_budgets((deploy / "budgets.yaml").read_text("utf-8"), queues=queues)
    assert {budget.when_spent for budget in found.budgets} == set(WhenSpent)
    assert {budget.unit for budget in found.budgets} == set(BudgetUnit)
