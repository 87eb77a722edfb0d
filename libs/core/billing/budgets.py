"""Checks a set of budgets, and computes calendar periods. The state of budgets is in `libs.core.state.budgets`."""

from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from schemas.budgets import BudgetPeriod, BudgetSet, SpendingBudget


class BudgetProblem(NamedTuple):
    """One problem and how to fix it. `place`: `budgets`, index and field; or a field of the whole set."""

    place: tuple[str | int, ...]
    value: str
    problem: str
    fix: str

    def text(self) -> str:
        """One line for people."""
        return f"{'.'.join(map(str, self.place))} = {self.value}: {self.problem}; {self.fix}"


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo | None:
    """The time zone of that name, or None."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def period_of(period: BudgetPeriod, time_zone: str, wall_us: int) -> tuple[int, int]:
    """Start (inclusive) and end (exclusive), in microseconds, of the period that contains `wall_us`. A day has 23 or 25
    hours when the clock is changed, and starts at the first moment of its date. Raises KeyError for an unknown zone."""
    zone = zone_of(time_zone)
    if zone is None:
        raise KeyError(time_zone)
    day = datetime.fromtimestamp(wall_us // 1_000_000, zone).date()
    if period is BudgetPeriod.DAY:
        first, after = day, day + timedelta(days=1)
    elif period is BudgetPeriod.WEEK:
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        after = (first + timedelta(days=32)).replace(day=1)
    return _first_us(first.toordinal(), zone), _first_us(after.toordinal(), zone)


def _first_us(ordinal: int, zone: ZoneInfo) -> int:
    """The first moment of a day. If midnight occurs twice, the first one; if it is skipped, the moment when the clock
    is put forward."""
    return int(datetime.fromordinal(ordinal).replace(tzinfo=zone).timestamp()) * 1_000_000


def problems(budgets: BudgetSet, queues: Collection[str]) -> list[BudgetProblem]:
    """All problems; empty when the budgets are valid.

    Args:
        queues: names of the pool's queues.
    """
    found: list[BudgetProblem] = []
    if zone_of(budgets.time_zone) is None:
        found.append(
            BudgetProblem(("time_zone",), budgets.time_zone, "is no time zone", "write one as Europe/Berlin, or UTC")
        )
    times = Counter(about.key for about in budgets.budgets if (about.team is None) is not (about.queue is None))
    seen: set[str] = set()
    for number, about in enumerate(budgets.budgets):
        found += [_problem(number, *what) for what in _problems_of(about, queues)]
        if (about.team is None) is (about.queue is None):
            continue
        if times[about.key] > 1 and about.key in seen:
            found.append(_problem(number, "unit", about.key, "is there twice", "keep one budget of a unit and period"))
        seen.add(about.key)
    return found


def _problems_of(about: SpendingBudget, queues: Collection[str]) -> list[tuple[str, str, str, str]]:
    """(field, value, problem, fix) of each problem of one budget."""
    wrong = []
    if about.team is not None and about.queue is not None:
        wrong.append(
            (
                "queue",
                about.queue,
                "stands beside a team",
                "give either team or queue: a queue counts all teams below it",
            )
        )
    elif about.team is None and about.queue is None:
        wrong.append(("team", "", "is not given, nor a queue", "say whose budget it is: team: NAME or queue: NAME"))
    if about.queue is not None and about.queue not in queues:
        there = ", ".join(sorted(queues)[:10]) or "none"
        wrong.append(
            ("queue", about.queue, "is no queue of the pool", f"apply the queue first, or name one of: {there}")
        )
    if about.soft is None and about.hard is None:
        wrong.append(
            ("hard", "", "is not given, nor soft", "give at least one of soft (warns) and hard (nothing beyond it)")
        )
    if about.soft is not None and about.hard is not None and about.soft > about.hard:
        wrong.append(
            ("soft", f"{about.soft / 1e6:g}", f"is above hard, {about.hard / 1e6:g}", "warn before the end: lower it")
        )
    if about.carry_over and about.hard is None:
        wrong.append(
            (
                "carry_over",
                f"{about.carry_over / 1e6:g}",
                "carries over what has no end",
                "give hard, or leave carry_over out",
            )
        )
    return wrong


def _problem(number: int, field: str, value: str, problem: str, fix: str) -> BudgetProblem:
    return BudgetProblem(("budgets", number, field), value, problem, fix)
