"""Budgets: how much a team, or a queue and all below it, may spend in a period, in GPU-hours or in money.

Amounts are millionths: of a GPU-hour (one whole accelerator for an hour), or of the price book's currency unit. What is spent
and held of one is counted without any rounding (`libs.core.state.budgets`).
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from schemas.base import Fact, Micros, Name
from schemas.prices import DeviceKey, MicrosPerHour

BudgetAmount = Annotated[int, Field(ge=0, le=10**15)]
"""Millionths of a GPU-hour or of the currency unit."""
BudgetsVersion = Annotated[int, Field(ge=1, le=2**53)]
TimeZone = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}$", examples=["Europe/Berlin"])
]
"""A name of the IANA time zone database."""


class BudgetUnit(StrEnum):
    """What a budget counts."""

    GPU_HOURS = "gpu-hours"
    """Accelerators of any type: a MIG slice is its part of its board, a share its share, a CPU none."""
    MONEY = "money"
    """By the price book, at the price of the moment in which a hold is made or renewed."""


class BudgetPeriod(StrEnum):
    """How long an amount is for. Weeks begin on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class WhenSpent(StrEnum):
    """What becomes of running jobs whose hold cannot be renewed, because a hard limit is reached. Nothing new is granted."""

    STOP = "stop"
    """They save their work and wait."""
    CONTINUE = "continue"
    """They go on: an overdraft."""


class SpendingBudget(Fact):
    """One budget. Of a team alone, or of a queue: of all teams that are called like it or like one below it."""

    team: Name | None = None
    queue: Name | None = Field(default=None, description="exactly one of team and queue is given")
    unit: BudgetUnit
    period: BudgetPeriod
    soft: BudgetAmount | None = Field(default=None, description="the team is warned when so much is spent")
    hard: BudgetAmount | None = Field(default=None, description="nothing is granted beyond it; null: only a warning")
    carry_over: BudgetAmount = Field(
        default=0, description="the most of what a period leaves that the next one has as well"
    )
    when_spent: WhenSpent = WhenSpent.STOP

    @property
    def key(self) -> str:
        """Names it among all: `team:vision:gpu-hours:month`."""
        whose = f"team:{self.team}" if self.team is not None else f"queue:{self.queue}"
        return f"{whose}:{self.unit.value}:{self.period.value}"

    @property
    def label(self) -> str:
        """For people: `team vision, gpu-hours a month`."""
        whose = f"team {self.team}" if self.team is not None else f"queue {self.queue}"
        return f"{whose}, {self.unit.value} a {self.period.value}"


BudgetKey = Annotated[str, Field(pattern=r"^(team|queue):[a-z0-9-]{1,63}:(gpu-hours|money):(day|week|month)$")]
"""`SpendingBudget.key`."""


class BudgetSet(Fact):
    """All budgets of a pool."""

    version: BudgetsVersion = Field(description="raised with every change")
    time_zone: TimeZone = Field(default="UTC", description="in which days, weeks and months begin")
    renewal_s: int = Field(
        default=900,
        ge=1,
        le=86_400,
        description="how long a hold lasts of a job without a time limit, and each renewal of any, s",
    )
    budgets: tuple[SpendingBudget, ...] = Field(default=(), max_length=1000)


class BudgetHold(Fact):
    """What is held of budgets for one attempt, from its grant on: what its devices cost until `until_us`. Which budgets, and
    how much, follows from it and its devices."""

    until_us: Micros = Field(description="ledger time up to which it is covered")
    units: dict[DeviceKey, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        max_length=64,
        description="of its kinds of device, capacity units that a whole one counts for GPU-hours: 7,000 a board; a CPU 0",
    )
    prices: dict[DeviceKey, MicrosPerHour] = Field(
        default_factory=dict,
        max_length=64,
        description="of those that have a price, millionths per device and hour, where a budget of money counts them",
    )
