"""What was decided of teams: quotas, queues, prices, budgets, and whether they may submit."""

from typing import Literal

from pydantic import Field

from schemas.audit import PolicyVersion
from schemas.base import Fact, JobId, Micros, Name, User
from schemas.budgets import BudgetAmount, BudgetHold, BudgetKey, BudgetPeriod, BudgetSet
from schemas.prices import ClosedPeriod, RateBook
from schemas.queues import HalfLife, PreemptionLimits, QueueOrder, Queues, QueuesVersion
from schemas.resources import LimitsByType


class QuotaSet(Fact):
    """From here on the team holds at most so much at once: all of its limits, also those that are as before."""

    kind: Literal["quota.set"] = "quota.set"
    team: Name
    limit_milli: int | None
    by_type: LimitsByType = Field(
        default_factory=dict, description="limits by device type and MIG profile, thousandths of what the key names"
    )
    user: User = Field(default="", description="the operator who set it; empty: the teams' file")
    cause: str = Field(default="", max_length=128, description="the command, by stream and sequence, or the file")
    policy: PolicyVersion = Field(default="", description="of the teams' file, when that is where it is from")
    reason: str = Field(default="", max_length=1024, description="in the operator's words")


class QueuesApplied(Fact):
    """From here on these are the pool's queues, all of them. What runs is left alone. Never `skippable`: whoever grants without
    it grants to others."""

    kind: Literal["queues.applied"] = "queues.applied"
    version: QueuesVersion
    queues: Queues
    order: QueueOrder | None = Field(default=None, description="of queues that say none; null: fair-share")
    half_life_s: HalfLife = None
    preemption: PreemptionLimits | None = Field(default=None, description="against thrash; null: the defaults")
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class PricesApplied(Fact):
    """From here on this is the pool's price book, all of it. What was posted before keeps its price; where the book changes the
    price of a time that was billed, the difference is posted as a correction by this record."""

    kind: Literal["prices.applied"] = "prices.applied"
    book: RateBook
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class PeriodClosed(Fact):
    """A period of bills is closed: whatever changes it later is a row of the open period."""

    kind: Literal["period.closed"] = "period.closed"
    period: ClosedPeriod
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class BudgetsApplied(Fact):
    """From here on these are the pool's budgets, all of them. What was spent of one that stays is kept; of a new one it is
    what is spent from now on. Attempts that run are counted from now on, and their holds fall due at once. Never `skippable`:
    whoever
    grants without it overspends."""

    kind: Literal["budgets.applied"] = "budgets.applied"
    budgets: BudgetSet
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class BudgetToppedUp(Fact):
    """A budget has more, until its present period ends."""

    kind: Literal["budget.topped-up"] = "budget.topped-up"
    budget: BudgetKey
    amount: BudgetAmount
    reason: str = Field(min_length=1, max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class BudgetPeriodBegan(Fact):
    """Budgets of this kind of period begin a new one. What is spent up to `at_us` is of the period before."""

    kind: Literal["budget.period-began"] = "budget.period-began"
    period: BudgetPeriod
    from_us: int = Field(description="when it began by the calendar")
    to_us: Micros = Field(description="when it ends by the calendar")
    at_us: Micros = Field(description="when it began, in ledger time")
    wall_us: Micros = Field(
        description="what the calendar showed when this was decided: budgets whose period ends later stay"
    )


class BudgetHoldsRenewed(Fact):
    """Attempts that are still running are covered up to a later time; of those whose budgets go on when they are spent, also
    when nothing covers them."""

    kind: Literal["budget.holds-renewed"] = "budget.holds-renewed"
    hold: BudgetHold
    jobs: tuple[JobId, ...] = Field(min_length=1, max_length=1000)


class BudgetReached(Fact):
    """So much of a budget is spent that its soft limit is reached, or its hard one, which is also when it does not cover
    another renewal. Told once in each period."""

    kind: Literal["budget.reached"] = "budget.reached"
    budget: BudgetKey
    level: Literal["soft", "hard"]
    limit: int = Field(ge=0, description="of that level, millionths")
    spent: int = Field(ge=0, description="millionths, rounded down")
    teams: tuple[Name, ...] = Field(default=(), max_length=1000, description="whose budget it is: they are told")


class TeamSuspended(Fact):
    """From here on the team submits nothing and none of its waiting jobs is granted anything, until it is resumed. What runs
    goes on, unless it is stopped as well. A writer that does not know it would grant, so it must stop: never `skippable`."""

    kind: Literal["team.suspended"] = "team.suspended"
    team: Name
    reason: str = Field(min_length=1, max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class TeamLeft(Fact):
    """A suspended team, of which nothing waits or runs, has left: nodes remove what they keep of it. It stays suspended;
    that it is resumed takes this back."""

    kind: Literal["team.left"] = "team.left"
    team: Name
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class TeamResumed(Fact):
    """The team's suspension is over: its waiting jobs stand in their queues again, with their age. If it left, it is back."""

    kind: Literal["team.resumed"] = "team.resumed"
    team: Name
    reason: str = Field(default="", max_length=1024)
    user: User = Field(default="", description="the operator who said it")
