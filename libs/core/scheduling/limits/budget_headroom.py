"""The headroom of budgets: what is available of each, against the hold that a grant would take.

    hold = rate of the devices x (the time limit, or one renewal without one)

The hold must be covered by every budget that has a hard limit and counts the team. All of it is integers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from libs.core.accelerators.kinds import GRAINS, weight
from libs.core.billing.prices import PriceList
from libs.core.state.budgets import SCALE, rate
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.budgets import BudgetHold, BudgetUnit, SpendingBudget
from schemas.prices import RateBook
from schemas.resources import ANY_ACCELERATOR, DEVICE_UNITS, kind_of, parts_of

_NO_END = 1 << 40
"""Stands for no bound: more devices than any request."""


@dataclass(frozen=True, slots=True)
class BudgetShort:
    """A budget that covers less than a request needs. Amounts are in what is counted (`libs.core.state.budgets.SCALE`)."""

    budget: SpendingBudget
    available: int
    asked: int
    """The hold of the smallest useful part of the request."""
    window_us: int
    """For how long it is held."""

    def text(self, team: str) -> str:
        """For people: "the budget of team vision, gpu-hours a month, has 3.5 left and the job needs 8 (for 4 h)"."""
        left, asked = self.shown(max(0, self.available)), self.shown(self.asked)
        over = f" (it is overdrawn by {self.shown(-self.available)})" if self.available < 0 else ""
        hours = f"{self.window_us / 3_600_000_000:.4g}"
        return f"the budget of {self.budget.label}, has {left} left{over}, and the job needs {asked} for {hours} h"

    @property
    def limit(self) -> str:
        """How much of what, for people."""
        return f"{self.shown((self.budget.hard or 0) * SCALE[self.budget.unit])} {self.budget.unit.value}"

    @property
    def needs(self) -> str:
        """What the request would take, for people."""
        return self.shown(self.asked)

    @property
    def lacks_micros(self) -> int:
        """How much more it would need, in millionths of a GPU-hour or of the currency unit, rounded up."""
        return -((self.available - self.asked) // SCALE[self.budget.unit])

    def shown(self, amount: int) -> str:
        """In GPU-hours or in money, with at most four decimals."""
        return f"{round(amount / SCALE[self.budget.unit] / 1e6, 4):.12g}"


class BudgetHeadroom(NamedTuple):
    """What one budget has available for one job, and what a device costs the job for its window."""

    about: SpendingBudget
    available: int
    window_us: int
    prices: "HeldPrices"

    @property
    def key(self) -> str:
        return self.about.key

    def cost(self, devices: list[tuple[str, int]]) -> int:
        """What is held for (kind, thousandths) of each device."""
        kinds = {kind for kind, _ in devices}
        of_money = self.about.unit is BudgetUnit.MONEY
        units, prices = ({}, self.prices.of(kinds)) if of_money else (units_of(kinds), {})
        return rate(self.about.unit, devices, units, prices) * self.window_us

    def uncovered(self, devices: list[tuple[str, int]]) -> BudgetShort | None:
        """What is missing when these devices are not covered; None: they are. What costs nothing is always covered."""
        asked = self.cost(devices)
        return (
            BudgetShort(self.about, self.available, asked, self.window_us) if asked > max(0, self.available) else None
        )

    def devices(self, model: str, shape: Shape) -> int:
        """How many devices of a model it covers."""
        each = self._each(model, shape)
        return max(0, self.available) // each if each else _NO_END

    def short(self, model: str, shape: Shape) -> BudgetShort:
        """What is missing for the least of the request on that model."""
        return BudgetShort(self.about, self.available, shape.least * self._each(model, shape), self.window_us)

    def _each(self, model: str, shape: Shape) -> int:
        return self.cost([(kind_of(model, shape.profile), shape.milli)])


class HeldPrices:
    """What kinds of device cost a team and class at one moment: of a contract with tiers its dearest, as a tier depends on the
    order in which use is posted."""

    def __init__(self, book: RateBook | None, team: str, priority_class: str, wall_us: int) -> None:
        self._list = None if book is None else _listed(book)
        self._whose = (team, priority_class, wall_us)
        self._found: dict[str, int | None] = {}

    def of(self, kinds: set[str]) -> dict[str, int]:
        """Kind -> millionths per device-hour; a kind without a price is not in it."""
        for kind in kinds - self._found.keys():
            self._found[kind] = self._price(kind)
        return {kind: price for kind in sorted(kinds) if (price := self._found[kind]) is not None}

    def _price(self, kind: str) -> int | None:
        if self._list is None or not parts_of(kind)[0]:
            return None
        team, priority_class, wall_us = self._whose
        quote = self._list.at(team, kind, priority_class, wall_us)
        return None if quote is None else max(micros for _, micros in quote.tiers)


_LISTS: list[PriceList] = []


def _listed(book: RateBook) -> PriceList:
    """Look-ups of the book that was asked for last are kept."""
    if not _LISTS or _LISTS[0].book is not book:
        _LISTS[:] = [PriceList(book)]
    return _LISTS[0]


def window_us(state: State, job: Job) -> int:
    """For how long a grant of `job` is held: its whole time limit, or one renewal."""
    if job.spec.time_limit_s:
        return max(1, int(job.spec.time_limit_s * 1_000_000))
    applied = state.budgets.applied
    return applied.renewal_s * 1_000_000 if applied is not None else 0


def prices_of(state: State, job: Job) -> HeldPrices:
    """What devices cost `job` now, by the calendar."""
    return HeldPrices(state.book, job.team, job.spec.priority_class, state.wall_us)


def headrooms_of(state: State, job: Job, t_us: int, spent: Mapping[str, int]) -> list[BudgetHeadroom]:
    """The budgets that must cover a grant of `job` at `t_us`. `spent`: what is held of each beyond the state."""
    found: list[BudgetHeadroom] = []
    for balance in state.budgets.covering(job.team):
        available = state.budgets.available(balance, t_us)
        if available is not None:
            prices = found[0].prices if found else prices_of(state, job)
            left = available - spent.get(balance.about.key, 0)
            found.append(BudgetHeadroom(balance.about, left, window_us(state, job), prices))
    return found


def hold_of(state: State, job: Job, devices: list[tuple[str, int]], t_us: int) -> BudgetHold | None:
    """The hold that a grant of these devices takes at `t_us`; None: the team is under no budget."""
    covering = state.budgets.covering(job.team)
    return terms_of(state, job, devices, t_us + window_us(state, job)) if covering else None


def terms_of(state: State, job: Job, devices: list[tuple[str, int]], until_us: int) -> BudgetHold:
    """A hold of these devices up to then, with prices of now where a budget of money counts them."""
    kinds = {kind for kind, _ in devices}
    prices = prices_of(state, job).of(kinds) if counts_money(state, job.team) else {}
    return BudgetHold(until_us=until_us, units=units_of(kinds), prices=prices)


def counts_money(state: State, team: str) -> bool:
    """Whether a budget of money counts the team: then holds say prices."""
    return any(balance.about.unit is BudgetUnit.MONEY for balance in state.budgets.covering(team))


def units_of(kinds: set[str]) -> dict[str, int]:
    """Capacity units that a whole device of each kind counts for GPU-hours."""
    return {kind: DEVICE_UNITS * weight(ANY_ACCELERATOR, kind) // GRAINS for kind in sorted(kinds)}
