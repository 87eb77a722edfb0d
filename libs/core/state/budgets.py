"""What is spent and held of budgets: the part of the state that says whether a grant is covered. Changed by the fold alone.

    available = hard limit + carried over + topped up - captured - held                    integers, nothing is rounded

An attempt costs a constant amount per microsecond while it holds the same devices: its *rate*. Between two events that
change it, what it has spent is rate x time. So its hold is two moments: `since_us`, up to which its cost is captured, and
`until_us`, up to which it is covered; it holds rate x (until - since). When it outlasts its hold, it holds what it has spent by
now. Capturing moves `since_us` on: when a part of it is freed, when its hold is renewed, when a period begins. What is left of
a hold at its end is released by its being gone.

Amounts of GPU-hours are capacity units x microseconds (7,000 a device, docs/billing.md); amounts of money are
thousandths of a device x microseconds x millionths of the currency unit per device-hour. A millionth of either of an
operator's words is a whole number of them.

Sums over all holds of a budget are kept as sums over rate, rate x since and rate x until, so no question walks the attempts
that run, but those that outlast their holds.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from libs.core.state.queue_tree import QueueTree
from schemas.budgets import BudgetHold, BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget
from schemas.resources import DEVICE_UNITS, WHOLE_MILLI

_HOUR_US = 3_600_000_000
_MOST_ENDED = 64
"""So many ends of holds that are over already are kept in order, and as many as there are open ones."""
_SET_BACK_US = _HOUR_US
"""By so much a period may begin after what the calendar shows: its clock is set by moments now and then."""
SCALE: Mapping[BudgetUnit, int] = {
    BudgetUnit.GPU_HOURS: DEVICE_UNITS * _HOUR_US // 1_000_000,
    BudgetUnit.MONEY: WHOLE_MILLI * _HOUR_US,
}
"""What a millionth of a GPU-hour, or of the currency unit, is in what is counted."""


def millionths_text(amount: int) -> str:
    """Of an operator's words, not negative: a decimal without needless zeros, exact, e.g. `1234567.89` or `800`."""
    whole, rest = divmod(amount, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


KindsHeld = Iterable[tuple[str, int]]
"""(kind, thousandths) of each device."""


def rate(unit: BudgetUnit, devices: KindsHeld, units: Mapping[str, int], prices: Mapping[str, int]) -> int:
    """What these devices cost per microsecond, by a hold's units and prices; a kind without either costs nothing."""
    if unit is BudgetUnit.MONEY:
        return sum(milli * prices.get(kind, 0) for kind, milli in devices)
    return sum(units.get(kind, 0) * milli // WHOLE_MILLI for kind, milli in devices)


@dataclass(slots=True)
class OpenHold:
    """Of one attempt that runs. `terms`: as it was told last. `rates`: per microsecond, by unit."""

    team: str
    since_us: int
    terms: BudgetHold
    rates: dict[BudgetUnit, int]

    @property
    def until_us(self) -> int:
        return self.terms.until_us

    @property
    def told(self) -> bool:
        """Whether what it costs was told: not yet of an attempt that ran already when a budget came to count it."""
        return bool(self.terms.units)


@dataclass(slots=True, eq=False)
class BudgetBalance:
    """One budget and what became of it in its present period. Amounts are in what is counted (`SCALE`)."""

    about: SpendingBudget
    from_us: int = 0
    to_us: int = 0
    """By the calendar; 0: no period has begun yet."""
    carried: int = 0
    """From the period before; negative: it was overdrawn."""
    topped: int = 0
    captured: int = 0
    told: int = 0
    """1: the soft limit was reached, 2: the hard one."""
    rate: int = field(default=0, init=False)
    since: int = field(default=0, init=False)
    until: int = field(default=0, init=False)
    """Sums over its open holds: of rate, rate x since, rate x until."""

    @property
    def scale(self) -> int:
        return SCALE[self.about.unit]

    @property
    def allowed(self) -> int | None:
        """All that may be spent in this period; None: without limit."""
        return None if self.about.hard is None else self.about.hard * self.scale + self.carried + self.topped

    @property
    def soft(self) -> int | None:
        """What is spent when its team is warned; None: it is not."""
        return None if self.about.soft is None else self.about.soft * self.scale

    def over(self, wall_us: int) -> bool:
        """Its period has ended by the calendar, or none has begun yet."""
        return self.to_us <= wall_us

    def to_come(self, wall_us: int) -> bool:
        """Its period is one to come: it began while the broker's clock was ahead, which was set back since."""
        return self.from_us > wall_us + _SET_BACK_US

    def spent(self, t_us: int) -> int:
        """Up to `t_us`, no earlier than the last event: captured, and what is not captured yet."""
        return self.captured + self.rate * t_us - self.since


class Budgets:
    """All budgets of a pool. Without any it costs nothing."""

    def __init__(self) -> None:
        self.applied: BudgetSet | None = None
        self.balances: dict[str, BudgetBalance] = {}
        """By key, in order."""
        self.holds: dict[str, OpenHold] = {}
        """Job -> the hold of its open attempt."""
        self._tree = QueueTree()
        self._covering: dict[str, tuple[BudgetBalance, ...]] = {}
        self._due: list[tuple[int, str]] = []
        self._overdue: dict[str, None] = {}
        self._late: tuple[int, dict[str, int]] | None = None

    def __bool__(self) -> bool:
        return bool(self.balances)

    # ------------------------------------------------------------------------------------------------------ questions

    def covering(self, team: str) -> tuple[BudgetBalance, ...]:
        """The budgets that count what `team` spends."""
        if not self.balances:
            return ()
        found = self._covering.get(team)
        if found is None:
            found = self._covering[team] = tuple(b for b in self.balances.values() if self._counts(b.about, team))
        return found

    def _counts(self, about: SpendingBudget, team: str) -> bool:
        return about.team == team if about.team is not None else team in self._tree.below(about.queue or "")

    def helped(self, team: str, others: Iterable[str]) -> bool:
        """Whether `team` shares a budget with one of `others`: what these give back may help it."""
        found = self.covering(team)
        return bool(found) and any(self._counts(balance.about, other) for other in others for balance in found)

    def held(self, balance: BudgetBalance, t_us: int) -> int:
        """What is held of it at `t_us`: of each attempt what it may still spend, or, past its hold, has spent since
        it was captured."""
        return balance.until - balance.since + self._late_at(t_us).get(balance.about.key, 0)

    def _late_at(self, t_us: int) -> dict[str, int]:
        """What attempts have spent beyond their holds, by budget: worked out once for a moment and state."""
        if self._late is None or self._late[0] != t_us:
            late: dict[str, int] = {}
            for job_id in self.overdue(t_us):
                hold = self.holds[job_id]
                for balance in self.covering(hold.team):
                    beyond = hold.rates[balance.about.unit] * (t_us - hold.until_us)
                    late[balance.about.key] = late.get(balance.about.key, 0) + beyond
            self._late = (t_us, late)
        return self._late[1]

    def available(self, balance: BudgetBalance, t_us: int) -> int | None:
        """What a new hold may take; negative: overdrawn. None: without limit."""
        allowed = balance.allowed
        return None if allowed is None else allowed - balance.captured - self.held(balance, t_us)

    def overdue(self, t_us: int) -> Iterator[str]:
        """Jobs whose holds end at `t_us` or earlier, those that were overdue longest first."""
        self._pass(t_us)
        return iter([job_id for job_id in self._overdue if self.holds[job_id].until_us <= t_us])

    def _pass(self, t_us: int) -> None:
        while self._due and self._due[0][0] <= t_us:
            until_us, job_id = heappop(self._due)
            hold = self.holds.get(job_id)
            if hold is not None and hold.until_us == until_us:
                self._overdue[job_id] = None

    # -------------------------------------------------------------------------------------------------------- changes

    def apply(
        self, budgets: BudgetSet, tree: QueueTree, running: Iterable[tuple[str, str, list[tuple[str, int]]]], t_us: int
    ) -> None:
        """These are all from `t_us` on. `running`: job, team and devices of every open attempt."""
        before = self.balances
        self._close_all(t_us)
        self.applied = budgets
        self.balances = {
            about.key: _kept(before.get(about.key), about) for about in sorted(budgets.budgets, key=lambda b: b.key)
        }
        self._cover(tree, running, t_us)

    def rebase(self, tree: QueueTree, running: Iterable[tuple[str, str, list[tuple[str, int]]]], t_us: int) -> None:
        """Queues have changed, and with them which budgets count whom."""
        if not self.balances:
            self._tree = tree
            return
        self._close_all(t_us)
        self._cover(tree, running, t_us)

    def _close_all(self, t_us: int) -> None:
        self.capture_all(t_us)
        for hold in self.holds.values():
            self._count(hold, -1)

    def _cover(self, tree: QueueTree, running: Iterable[tuple[str, str, list[tuple[str, int]]]], t_us: int) -> None:
        self._tree, self._covering = tree, {}
        before, self.holds = self.holds, {}
        self._due, self._overdue = [], {}
        for job_id, team, devices in running:
            if self.covering(team):
                known = before.get(job_id)
                terms = known.terms if known is not None else BudgetHold(until_us=t_us)
                self._add(job_id, OpenHold(team, t_us, terms, _rates(devices, terms)))

    def open(self, job_id: str, team: str, devices: list[tuple[str, int]], hold: BudgetHold, t_us: int) -> None:
        """An attempt is granted, and its cost held."""
        self._add(job_id, OpenHold(team, t_us, hold, _rates(devices, hold)))

    def renew(self, job_id: str, devices: list[tuple[str, int]], hold: BudgetHold, t_us: int) -> None:
        """What it has spent is captured, and it is covered up to `hold.until_us`."""
        before = self._take(job_id, t_us)
        if before is not None:
            self.open(job_id, before.team, devices, hold, t_us)

    def freed(self, job_id: str, left: list[tuple[str, int]], t_us: int) -> None:
        """A part of the attempt is free; `left` is what it still holds."""
        before = self._take(job_id, t_us)
        if before is not None and left:
            self._add(job_id, OpenHold(before.team, t_us, before.terms, _rates(left, before.terms)))

    def top_up(self, key: str, amount: int) -> None:
        """Raises KeyError: there is no such budget."""
        balance = self.balances[key]
        balance.topped += amount * balance.scale
        balance.told = 0

    def turn(self, period: BudgetPeriod, from_us: int, to_us: int, at_us: int, wall_us: int) -> None:
        """Of the budgets of this kind of period those whose own is over at `wall_us` begin this one. One whose own is to come
        goes on in this one with what it has: nothing was spent meanwhile that is not of it."""
        self.capture_all(at_us)
        for balance in self.balances.values():
            if balance.about.period is not period:
                continue
            if balance.to_come(wall_us) and to_us > wall_us:
                balance.from_us, balance.to_us = from_us, to_us
            if not balance.over(wall_us):
                continue
            if balance.to_us:
                left = 0 if balance.allowed is None else balance.allowed - balance.captured
                most = balance.about.carry_over * balance.scale
                balance.carried = min(most, left) if most else 0
            balance.topped = balance.captured = balance.told = 0
            balance.from_us, balance.to_us = from_us, to_us

    def reached(self, key: str, level: int) -> None:
        """It was told that so much is spent."""
        if key in self.balances:
            self.balances[key].told = level

    def capture_all(self, t_us: int) -> None:
        """What open attempts have spent up to `t_us` is captured. Nothing that is available changes by it."""
        for hold in self.holds.values():
            self._count(hold, -1)
            self._capture(hold, t_us)
            self._count(hold, 1)

    def _take(self, job_id: str, t_us: int) -> OpenHold | None:
        hold = self.holds.pop(job_id, None)
        if hold is not None:
            self._overdue.pop(job_id, None)
            self._count(hold, -1)
            self._capture(hold, t_us)
        return hold

    def _capture(self, hold: OpenHold, t_us: int) -> None:
        at_us = max(t_us, hold.since_us)
        for balance in self.covering(hold.team):
            balance.captured += hold.rates[balance.about.unit] * (at_us - hold.since_us)
        hold.since_us = at_us

    def _add(self, job_id: str, hold: OpenHold) -> None:
        self.holds[job_id] = hold
        heappush(self._due, (hold.until_us, job_id))
        if len(self._due) > 2 * len(self.holds) + _MOST_ENDED:
            self._due = [(one.until_us, job) for job, one in self.holds.items() if job not in self._overdue]
            heapify(self._due)
        self._count(hold, 1)

    def _count(self, hold: OpenHold, sign: int) -> None:
        self._late = None
        for balance in self.covering(hold.team):
            per_us = sign * hold.rates[balance.about.unit]
            balance.rate += per_us
            balance.since += per_us * hold.since_us
            balance.until += per_us * hold.until_us

    # ------------------------------------------------------------------------------------------------------ snapshots

    def dump(self) -> dict[str, Any]:
        """For a snapshot, as JSON takes it."""
        if self.applied is None:
            return {}
        return {
            "applied": self.applied.model_dump(mode="json"),
            "balances": {
                key: [b.from_us, b.to_us, b.carried, b.topped, b.captured, b.told] for key, b in self.balances.items()
            },
            "holds": {
                job_id: [h.team, h.since_us, h.terms.model_dump(mode="json"), h.rates]
                for job_id, h in sorted(self.holds.items())
            },
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any], tree: QueueTree) -> "Budgets":
        """The inverse of `dump`; budgets of nothing."""
        found = cls()
        found._tree = tree
        if not dumped:
            return found
        found.applied = BudgetSet.model_validate(dumped["applied"])
        about = {budget.key: budget for budget in found.applied.budgets}
        found.balances = {key: BudgetBalance(about[key], *numbers) for key, numbers in dumped["balances"].items()}
        for job_id, (team, since_us, terms, rates) in dumped["holds"].items():
            per_us = {BudgetUnit(unit): n for unit, n in rates.items()}
            hold = found.holds[job_id] = OpenHold(team, since_us, BudgetHold.model_validate(terms), per_us)
            found._due.append((hold.until_us, job_id))
            found._count(hold, 1)
        heapify(found._due)
        return found


def _rates(devices: list[tuple[str, int]], hold: BudgetHold) -> dict[BudgetUnit, int]:
    return {unit: rate(unit, devices, hold.units, hold.prices) for unit in BudgetUnit}


def _kept(before: BudgetBalance | None, about: SpendingBudget) -> BudgetBalance:
    """What was spent of a budget is kept when its limits change."""
    if before is None:
        return BudgetBalance(about)
    return BudgetBalance(about, before.from_us, before.to_us, before.carried, before.topped, before.captured)
