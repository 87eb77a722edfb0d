"""Checks budgets (I19): each grant's hold is covered, each hold that runs out is renewed or stops its attempt, and a
renewal beyond the available amount occurs only where the budget continues when spent.

It has its own books. Every question walks the open attempts with their devices; there are no running sums. Budgets
without a hard limit restrict nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar
from zoneinfo import ZoneInfo

from libs.core.projections.verify.books import Books, JobRow, Subject
from libs.core.projections.verify.limit_books import Kind, counts
from schemas import ledger as led
from schemas.attempts import Cause
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget, WhenSpent
from schemas.prices import ContractRate, ListRate, RateBook, Term
from schemas.resources import Claim

_LATE_US = 15_000_000
"""The longest time from a hold's end to the tick that shows that it was missed."""

_SET_BACK_US = 3_600_000_000
"""A period that begins so long after what the clock shows gives way to the present one."""


@dataclass(slots=True)
class _Running:
    team: str
    parts: dict[str, list[tuple[Kind, int]]]
    since_us: int
    until_us: int
    units: dict[str, int]
    prices: dict[str, int]
    stopping: bool = False
    unpriced: bool = False
    """A budget of money has come to count it, and its hold says no prices: it may be renewed before its end, and is in any
    case."""
    rates: dict[BudgetUnit, int] = field(default_factory=dict)
    """Computed once, and again after a part is freed."""

    def per_us(self, unit: BudgetUnit) -> int:
        if unit not in self.rates:
            self.rates[unit] = self._rate(unit)
        return self.rates[unit]

    def _rate(self, unit: BudgetUnit) -> int:
        devices = [device for part in self.parts.values() for device in part]
        if unit is BudgetUnit.MONEY:
            return sum(milli * self.prices.get(_name(kind), 0) for kind, milli in devices)
        return sum(self.units.get(_name(kind), 0) * milli // 1000 for kind, milli in devices)

    def kinds(self) -> set[Kind]:
        return {kind for part in self.parts.values() for kind, _ in part}


@dataclass(slots=True)
class _BudgetRow:
    about: SpendingBudget
    from_us: int = 0
    to_us: int = 0
    more: int = 0
    """Carried over and topped up."""
    spent: int = 0
    reported: str = ""
    """The last reported level."""

    @property
    def scale(self) -> int:
        return 25_200_000 if self.about.unit is BudgetUnit.GPU_HOURS else 3_600_000_000_000

    @property
    def allowed(self) -> int | None:
        return None if self.about.hard is None else self.about.hard * self.scale + self.more


@dataclass(slots=True)
class _Tree:
    parent: dict[str, str] = field(default_factory=dict)

    def above(self, name: str) -> list[str]:
        line = [name]
        while (up := self.parent.get(line[-1], "")) and len(line) <= len(self.parent):
            line.append(up)
        return line


class Spending(Subject):
    """Spent and held amounts of budgets."""

    handlers: ClassVar = {
        led.BudgetsApplied: "applied",
        led.BudgetToppedUp: "topped_up",
        led.BudgetPeriodBegan: "began",
        led.BudgetHoldsRenewed: "renewed",
        led.BudgetReached: "reached",
        led.QueuesApplied: "queues",
        led.PricesApplied: "priced",
        led.JobGranted: "granted",
        led.DevicesFreed: "freed",
        led.AttemptPreempting: "preempting",
        led.AttemptStopping: "stopping",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._set: BudgetSet | None = None
        self._rows: dict[str, _BudgetRow] = {}
        self._counting: dict[str, tuple[_BudgetRow, ...]] = {}
        """Team -> budgets that count it."""
        self._running: dict[str, _Running] = {}
        self._of_team: dict[str, dict[str, _Running]] = {}
        """Team -> running attempts."""
        self._tree = _Tree()
        self._book: RateBook | None = None
        self._ran_out: set[str] = set()
        """Budgets that caused stops in this decision."""
        self._wall_us = self._before_us = self._looked_us = 0
        books.covers = self.covers

    def begin(self, record: led.LedgerRecord) -> None:
        self._wall_us = record.wall_us if record.wall_us is not None else record.t_us

    def end(self) -> None:
        if self.books.more:
            return
        self._before_us = self.books.t_us
        self._ran_out.clear()
        tick_us = self.books.ticked_us
        if self._rows and tick_us - self._looked_us >= _LATE_US:
            self._looked_us = tick_us
            for job_id, one in self._running.items():
                if not one.stopping and one.until_us + _LATE_US <= tick_us and any(self._budgets_of(one.team)):
                    self.books.broken("I19", f"{job_id} runs on, and its hold ended at {one.until_us}")

    # --------------------------------------------------------------------------------------------------------- what is said

    def applied(self, e: led.BudgetsApplied) -> None:
        if self._set is not None and e.budgets.version <= self._set.version:
            self.books.broken(
                "I19", f"budgets of version {e.budgets.version} are applied after version {self._set.version}"
            )
        if _zone(e.budgets.time_zone) is None:
            self.books.broken("I19", f"budgets are by the time zone {e.budgets.time_zone}, which there is not")
        self._spend_all(self.books.t_us)
        priced = self._priced()
        before, self._set = self._rows, e.budgets
        self._rows = {}
        for about in e.budgets.budgets:
            old = before.get(about.key)
            self._rows[about.key] = (
                _BudgetRow(about, old.from_us, old.to_us, old.more, old.spent) if old else _BudgetRow(about)
            )
        self._recover(priced)

    def queues(self, e: led.QueuesApplied) -> None:
        self._spend_all(self.books.t_us)
        priced = self._priced()
        self._tree = _Tree({queue.name: queue.parent for queue in e.queues})
        self._recover(priced)

    def priced(self, e: led.PricesApplied) -> None:
        self._book = e.book

    def topped_up(self, e: led.BudgetToppedUp) -> None:
        row = self._rows.get(e.budget)
        if row is None or row.about.hard is None:
            self.books.broken("I19", f"{e.budget} is topped up, and there is no such budget with a hard limit")
            return
        row.more += e.amount * row.scale
        row.reported = ""

    def began(self, e: led.BudgetPeriodBegan) -> None:
        zone = (_zone(self._set.time_zone) if self._set is not None else None) or ZoneInfo("UTC")
        if (
            not _is_period(e.period, e.from_us, e.to_us, zone)
            or e.from_us > self._wall_us
            or e.wall_us != self._wall_us
        ):
            self.books.broken("I19", f"a {e.period.value} from {e.from_us} to {e.to_us} begins at {self._wall_us}")
        soonest_us = max(self._before_us, self.books.t_us - (self._wall_us - e.from_us))
        if all(row.to_us == 0 for row in self._rows.values() if row.about.period is e.period):
            soonest_us = self.books.t_us
        if not soonest_us <= e.at_us <= self.books.t_us:
            self.books.broken(
                "I19", f"a {e.period.value} began at {e.at_us}, told at {self.books.t_us}, soonest {soonest_us}"
            )
        self._spend_all(e.at_us)
        of_kind = [row for row in self._rows.values() if row.about.period is e.period]
        turned = [row for row in of_kind if row.to_us <= e.wall_us]
        to_come = [row for row in of_kind if row.from_us - e.wall_us > _SET_BACK_US and e.to_us > e.wall_us]
        if not turned and not to_come:
            self.books.broken("I19", f"a {e.period.value} begins, and no budget's own was over")
        for row in to_come:  # the clock was set back, and nothing of it starts anew
            row.from_us, row.to_us = e.from_us, e.to_us
        for row in turned:
            if row.to_us and row.allowed is not None and row.about.carry_over:
                row.more = min(row.about.carry_over * row.scale, row.allowed - row.spent)
            else:
                row.more = 0
            row.spent, row.from_us, row.to_us, row.reported = 0, e.from_us, e.to_us, ""

    def reached(self, e: led.BudgetReached) -> None:
        row = self._rows.get(e.budget)
        limit = None if row is None else row.about.soft if e.level == "soft" else row.allowed
        if row is None or limit is None:
            self.books.broken("I19", f"{e.budget} has reached its {e.level} limit, and has none")
            return
        spent = row.spent + sum(
            one.per_us(row.about.unit) * (self.books.t_us - one.since_us) for one in self._running_in(row) if one.parts
        )
        early = spent < (limit * row.scale if e.level == "soft" else limit)
        if (early and not (e.level == "hard" and e.budget in self._ran_out)) or spent // row.scale != e.spent:
            self.books.broken("I19", f"{e.budget} has reached its {e.level} limit with {spent // row.scale} spent")
        teams = {name for name in self._tree.parent if row.about.queue in self._tree.above(name)} | {row.about.queue}
        if set(e.teams) != ({row.about.team} if row.about.team is not None else teams):
            self.books.broken("I19", f"that {e.budget} has reached its {e.level} limit is told to {', '.join(e.teams)}")
        if row.reported in ("hard", e.level):
            self.books.broken("I19", f"that {e.budget} has reached its {e.level} limit is told again")
        row.reported = e.level
        if max(0, limit if e.level == "soft" else limit // row.scale) != e.limit:
            self.books.broken("I19", f"{e.budget} has another {e.level} limit than {e.limit}")

    # -------------------------------------------------------------------------------------------------------- attempts

    def granted(self, e: led.JobGranted) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is None:
            return
        over = self._budgets_of(job.team)
        if (e.hold is not None) is not bool(over):
            what = "takes no hold of" if over else "takes a hold, and is under no"
            self.books.broken("I19", f"{e.job_id} {what} budget")
        if e.hold is None or not over or self._set is None:
            return
        parts: dict[str, list[tuple[Kind, int]]] = {}
        for claim in e.claims:
            parts.setdefault(claim.node, []).extend(self._kinds([claim]))
        now = self.books.t_us
        window_us = self._window_us(job)
        if e.hold.until_us != now + window_us:
            self.books.broken("I19", f"{e.job_id} is held up to {e.hold.until_us}, and runs up to {now + window_us}")
        one = _Running(job.team, parts, now, e.hold.until_us, dict(e.hold.units), dict(e.hold.prices))
        self._as_told(e.job_id, one, job.spec.priority_class)
        for row in over:
            if row.to_us <= self._wall_us:
                self.books.broken("I19", f"{e.job_id} is granted in a period of {row.about.key} that is over")
            self._covers(e.job_id, row, one, self._available(row))
        self._add(e.job_id, one)

    def covers(self, job: JobRow, devices: Sequence[str]) -> bool:
        """Whether a grant of these devices to `job` would be covered now."""
        over = self._budgets_of(job.team)
        if not over or self._set is None:
            return True
        milli = job.spec.resources.share_milli
        parts = {"": [(kind, milli) for device in devices if (kind := self.books.kind(device)) is not None]}
        one = _Running(job.team, parts, 0, 0, {}, {})
        one.units, one.prices = self._terms(one, job.spec.priority_class)
        window_us = self._window_us(job)
        return all(_affords(row, one, window_us, self._available(row)) for row in over)

    def _window_us(self, job: JobRow) -> int:
        assert self._set is not None
        limit_us = int(job.spec.time_limit_s * 1_000_000)
        return max(1, limit_us) if job.spec.time_limit_s else self._set.renewal_s * 1_000_000

    def renewed(self, e: led.BudgetHoldsRenewed) -> None:
        now, left = self.books.t_us, dict[str, int | None]()
        for job_id in e.jobs:
            one, job = self._running.get(job_id), self.books.jobs.get(job_id)
            if one is None or job is None or self._set is None:
                self.books.broken("I19", f"{job_id} has a hold renewed and none that is open")
                continue
            early = one.until_us > now and not one.unpriced
            if early or not now < e.hold.until_us <= now + self._set.renewal_s * 1_000_000:
                self.books.broken("I19", f"{job_id} is held up to {e.hold.until_us} after {one.until_us}, at {now}")
            after = _Running(
                one.team, one.parts, now, e.hold.until_us, dict(e.hold.units), dict(e.hold.prices), one.stopping
            )
            self._as_told(job_id, after, job.spec.priority_class)
            rows, whole_us = self._budgets_of(one.team), self._set.renewal_s * 1_000_000
            for row in rows:
                if row.about.key not in left:  # the last hold is spent by now: the renewal alone needs room
                    left[row.about.key] = self._available(row)
            self._spend(one, now)
            stops = [row for row in rows if row.about.when_spent is WhenSpent.STOP and one.units and not one.unpriced]
            for row in stops:
                self._covers(job_id, row, after, left[row.about.key])
            short = any(not _affords(row, after, whole_us, left[row.about.key]) for row in stops)
            if e.hold.until_us != now + whole_us and not short:
                self.books.broken("I19", f"{job_id} is renewed for {e.hold.until_us - now}, and {whole_us} is covered")
            for row in rows:
                rest = left[row.about.key]
                if rest is not None:
                    left[row.about.key] = rest - after.per_us(row.about.unit) * (after.until_us - now)
            self._add(job_id, after)

    def freed(self, e: led.DevicesFreed) -> None:
        one = self._running.get(e.job_id)
        if one is not None:
            self._spend(one, self.books.t_us)
            one.parts.pop(e.node, None)
            one.rates.clear()
            if not one.parts:
                del self._running[e.job_id], self._of_team[one.team][e.job_id]

    def preempting(self, e: led.AttemptPreempting) -> None:
        if e.job_id in self._running:
            self._running[e.job_id].stopping = True

    def stopping(self, e: led.AttemptStopping) -> None:
        one = self._running.get(e.job_id)
        if one is not None:
            one.stopping = True
        if e.cause is not Cause.BUDGET_SPENT:
            return
        out = [] if one is None or one.until_us > self.books.t_us else list(self._spent_out(one))
        self._ran_out.update(out)
        if not out:
            self.books.broken("I19", f"{e.job_id} is stopped because a budget is spent, and none is")

    # ------------------------------------------------------------------------------------------------------ what it comes to

    def _budgets_of(self, team: str) -> tuple[_BudgetRow, ...]:
        """Budgets that count the team's spending."""
        found = self._counting.get(team)
        if found is None:
            above = self._tree.above(team)
            found = self._counting[team] = tuple(
                row
                for row in self._rows.values()
                if row.about.team == team or (row.about.queue is not None and row.about.queue in above)
            )
        return found

    def _running_in(self, row: _BudgetRow) -> Iterator[_Running]:
        for team, running in self._of_team.items():
            if any(other is row for other in self._budgets_of(team)):
                yield from running.values()

    def _add(self, job_id: str, one: _Running) -> None:
        self._running[job_id] = self._of_team.setdefault(one.team, {})[job_id] = one

    def _available(self, row: _BudgetRow) -> int | None:
        if row.allowed is None:
            return None
        held = sum(
            o.per_us(row.about.unit) * (max(o.until_us, self.books.t_us) - o.since_us) for o in self._running_in(row)
        )
        return row.allowed - row.spent - held

    def _covers(self, job_id: str, row: _BudgetRow, one: _Running, left: int | None) -> None:
        if not _affords(row, one, one.until_us - one.since_us, left):
            asked = one.per_us(row.about.unit) * (one.until_us - one.since_us)
            self.books.broken("I19", f"{job_id} takes a hold of {asked} of {row.about.key}, which has {left} left")

    def _spent_out(self, one: _Running) -> Iterator[str]:
        """Budgets that stop at their end and cannot cover another renewal. Prices may have risen since the last hold,
        so any budget of money may be exhausted."""
        assert self._set is not None
        for row in self._budgets_of(one.team):
            left = self._available(row)
            asked = one.per_us(row.about.unit) * self._set.renewal_s * 1_000_000
            if row.about.when_spent is not WhenSpent.STOP or left is None:
                continue
            if asked > max(0, left) or row.about.unit is BudgetUnit.MONEY:
                yield row.about.key

    def _spend(self, one: _Running, at_us: int) -> None:
        for row in self._budgets_of(one.team):
            row.spent += one.per_us(row.about.unit) * (at_us - one.since_us)
        one.since_us = at_us

    def _spend_all(self, at_us: int) -> None:
        for one in self._running.values():
            self._spend(one, at_us)

    def _priced(self) -> set[str]:
        """Those running that a budget of money counts."""
        rows = [row for row in self._rows.values() if row.about.unit is BudgetUnit.MONEY]
        return {job for job, one in self._running.items() if any(row in self._budgets_of(one.team) for row in rows)}

    def _recover(self, priced: set[str]) -> None:
        """Recomputes who counts where, after budgets or queues changed. `priced`: whom money counted before."""
        now, before, self._running = self.books.t_us, self._running, {}
        self._of_team = {}
        self._counting.clear()
        for job in self.books.jobs.values():
            if job.open is None or not any(self._budgets_of(job.team)):
                continue
            known = before.get(job.id)
            if known is None:
                parts = {node: self._kinds(claims) for node, claims in job.open.parts.items()}
                known = _Running(job.team, parts, now, now, {}, {}, stopping=job.open.cause is not None)
            self._add(job.id, known)
        for job_id in self._priced() - priced:
            self._running[job_id].unpriced = bool(self._running[job_id].units)

    def _kinds(self, claims: Sequence[Claim]) -> list[tuple[Kind, int]]:
        return [(kind, claim.milli) for claim in claims if (kind := self.books.kind(claim.device)) is not None]

    # ---------------------------------------------------------------------------------------------------------- prices

    def _as_told(self, job_id: str, one: _Running, priority_class: str) -> None:
        units, prices = self._terms(one, priority_class)
        if units != one.units:
            self.books.broken("I19", f"{job_id} is held by units {one.units}, and its devices have {units}")
        if prices != one.prices:
            self.books.broken("I19", f"{job_id} is held at {one.prices}, and the book says {prices}")

    def _terms(self, one: _Running, priority_class: str) -> tuple[dict[str, int], dict[str, int]]:
        """Units of its devices, and their present price if a budget of money counts them."""
        units = {_name(kind): int(7000 * counts("*", kind)) for kind in one.kinds()}
        if all(row.about.unit is not BudgetUnit.MONEY for row in self._budgets_of(one.team)):
            return units, {}
        kinds = sorted(map(_name, one.kinds()))
        return units, {k: price for k in kinds if (price := self._price(one.team, k, priority_class)) is not None}

    def _price(self, team: str, kind: str, priority_class: str) -> int | None:
        """The most expensive tier of a contract."""
        book = self._book
        listed = [p for p in book.prices if p.term is not Term.RESERVATION] if book is not None else []
        price = self._best(listed, kind, priority_class)
        if book is None or not isinstance(price, ListRate):
            return None
        contract = self._best([c for c in book.contracts if c.team == team], kind, priority_class)
        return max(t.micros for t in contract.tiers) if isinstance(contract, ContractRate) else price.micros

    def _best(
        self, entries: Sequence[ListRate | ContractRate], kind: str, klass: str
    ) -> ListRate | ContractRate | None:
        for wanted in (klass, "*"):
            for entry in entries:
                until = entry.to_us if entry.to_us is not None else self._wall_us + 1
                if entry.device == kind and entry.priority_class == wanted and entry.from_us <= self._wall_us < until:
                    return entry
        return None


def _name(kind: Kind) -> str:
    model, profile = kind
    return f"{model}:{profile}" if profile else model


def _affords(row: _BudgetRow, one: _Running, window_us: int, left: int | None) -> bool:
    """Whether the remainder covers it for that long. Free use is always covered."""
    return left is None or one.per_us(row.about.unit) * window_us <= max(0, left)


def _is_period(period: BudgetPeriod, from_us: int, to_us: int, zone: ZoneInfo) -> bool:
    """Whether both moments start a day in the zone, and such a period begins and ends on these days."""
    first, after = (datetime.fromtimestamp(us // 1_000_000, zone) for us in (from_us, to_us))
    if any(us % 1_000_000 or _day(us - 1, zone) == _day(us, zone) for us in (from_us, to_us)):
        return False
    if period is BudgetPeriod.DAY:
        return after.date() - first.date() == timedelta(days=1)
    if period is BudgetPeriod.WEEK:
        return first.weekday() == 0 and after.date() - first.date() == timedelta(days=7)
    months = (after.year - first.year) * 12 + after.month - first.month
    return first.day == after.day == 1 and months == 1


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _day(us: int, zone: ZoneInfo) -> int:
    return datetime.fromtimestamp(us // 1_000_000, zone).toordinal()
