"""Prices usage and groups it into a bill.

    cost_micros(row) = round_half_even(milli_us(row) x micros_per_device_hour / (1000 x 3_600_000_000))

Each row of usage (`libs.core.billing.usage_rows.UsageRow`) is rounded once, and every total is a sum of rounded rows, so all
groupings of one bill have the same total (docs/billing.md).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final

from libs.core.accelerators.kinds import catalogued
from libs.core.billing.counted import TeamSums, within
from libs.core.billing.metering import Meter
from libs.core.billing.rounding import round_half_even
from libs.core.billing.usage_rows import UsageRow
from libs.core.billing.wall import day_text
from schemas.billing import BillQuery, BillReply, BillRow, PriceBook
from schemas.ids import attempt_id
from schemas.prices import NO_CURRENCY

_ANY = "*"
_HOUR_UNITS = 1000 * 3_600_000_000  # milli_us in one device-hour
_SECOND_UNITS = 1000 * 1_000_000  # milli_us in one device-second


class Prices:
    """Price look-up. The more specific entry wins: model and class, then model. A model that the book does not name is
    unpriced and reported so; there is no default price. Models may be spelt in any way that the catalogue knows."""

    def __init__(self, book: PriceBook) -> None:
        """Raises ValueError when two entries name one model (in two spellings) for one class."""
        self.currency = book.currency
        self._prices: dict[tuple[str, str], int] = {}
        for price in book.prices:
            key = (catalogued(price.model), price.priority_class)
            if key in self._prices:
                raise ValueError(f"{price.model!r} is another name of {key[0]!r}, which has a price already: keep one")
            self._prices[key] = price.micros_per_device_hour

    def of(self, model: str, priority_class: str = _ANY) -> int | None:
        """Millionths of the currency per device-hour; None if the book has no price."""
        kind = catalogued(model)
        price = self._prices.get((kind, priority_class))
        return price if price is not None else self._prices.get((kind, _ANY))

    def cost_micros(self, row: UsageRow) -> int | None:
        """The row's cost, rounded once, half to even; None without a price."""
        price = self.of(row.model, row.priority_class)
        return None if price is None else round_half_even(row.milli_us * price, _HOUR_UNITS)


class _NoPrices(Prices):
    """Prices for a reader that has neither a price book in the ledger nor the services' price file: everything is
    unpriced."""

    def __init__(self) -> None:
        self.currency = NO_CURRENCY

    def of(self, model: str, priority_class: str = _ANY) -> int | None:
        return None


NO_PRICES: Final[Prices] = _NoPrices()


def bill(usage: Iterable[UsageRow], prices: Prices, query: BillQuery, ledger_seq: int, currency: str = "") -> BillReply:
    """Prices rows and groups them as the query asks. A group never mixes teams. Use without a price is counted apart.
    Posted use costs what was posted, in the `currency` of the ledger's book; `prices` are for ledgers without a book."""
    asked = cache(days_of(query))
    groups: dict[tuple[str, str], _Group] = {}
    unpriced: set[str] = set()
    key_of = GROUP_KEYS[query.group_by]
    for row in usage:
        if (query.job_id is not None and query.job_id != row.job_id) or not asked(row.day):
            continue
        key = (key_of(row), row.team)
        group = groups.get(key) or groups.setdefault(key, _Group())
        group.milli_us += row.milli_us
        if row.posted is not None:
            group.cost_micros += row.posted[0]
            group.unpriced_milli_us += row.posted[1]
            group.credit_micros += row.posted[2]
            if row.posted[1]:
                unpriced.add(row.model)
        elif (cost := prices.cost_micros(row)) is None:
            group.unpriced_milli_us += row.milli_us
            unpriced.add(row.model)
        else:
            group.cost_micros += cost
        group.jobs.add(row.job_id)
        group.attempts.add((row.job_id, row.attempt))
    return _reply(groups, unpriced, currency or prices.currency, ledger_seq, by_file=not currency)


def is_summed(query: BillQuery) -> bool:
    """Whether the meter's sums answer the query (`bill_of_sums`): it asks about no single job."""
    return query.group_by in ("team", "day", "model") and query.job_id is None


def at_least(meter: Meter, query: BillQuery, team: str | None) -> int:
    """A lower bound for the rows of a bill by job or attempt, freed use only, without walking them. 0 for other
    groupings and for a single job."""
    if query.job_id is not None or query.group_by not in ("job", "attempt"):
        return 0
    asked = cache(days_of(query))
    teams = [team] if team is not None else meter.counted
    found = (meter.counted.get(name, TeamSums()) for name in teams)
    return sum(within((one.jobs if query.group_by == "job" else one.attempts).get(""), asked) for one in found)


def bill_of_sums(meter: Meter, query: BillQuery, team: str | None) -> BillReply:
    """The bill that `bill` would make of all rows, from sums, for ledgers with a price book. Walks days and open
    claims.

    `team`: None for all teams.
    """
    book = meter.money.book
    assert book is not None, "the rows of a ledger without a price book are rounded one by one"
    asked = cache(days_of(query))
    groups: dict[tuple[str, str], _Group] = {}
    unpriced: set[str] = set()

    def group_of(name: str, day: int, kind: str) -> _Group:
        key = {"team": name, "day": day_text(day), "model": kind}[query.group_by]
        return groups.get((key, name)) or groups.setdefault((key, name), _Group())

    def add(name: str, day: int, kind: str, cost_micros: int, free: int) -> None:
        group = group_of(name, day, kind)
        group.cost_micros += cost_micros
        group.unpriced_milli_us += free
        if free:
            unpriced.add(kind)

    for name in [team] if team is not None else sorted(meter.counted):
        counted = meter.counted.get(name, TeamSums())
        for (day, kind, _), units in counted.use.items():
            if asked(day):
                group_of(name, day, kind).milli_us += units
        for (day, kind, _), (cost, _, free, credit) in meter.money.sums.get(name, {}).items():
            if asked(day):
                add(name, day, kind, cost, free)
                group_of(name, day, kind).credit_micros += credit
        for (key, _), group in ((at, group) for at, group in groups.items() if at[1] == name):
            kind = key if query.group_by == "model" else ""
            span = partial(_is_day, key) if query.group_by == "day" else asked
            group.more_jobs = within(counted.jobs.get(kind), span)
            group.more_attempts = within(counted.attempts.get(kind), span)
    for held in meter.held_rows(query.open_until_us, team=team) if query.open_until_us is not None else ():
        job, attempt, day, kind, *_ = held.key
        if not asked(day) or (team is not None and held.team != team):
            continue
        add(held.team, day, kind, held.cost_micros, held.unpriced)
        group = group_of(held.team, day, kind)
        group.milli_us += held.milli_us
        of_kind = kind if query.group_by == "model" else ""
        span = partial(_is_day, day_text(day)) if query.group_by == "day" else asked
        if not any(map(span, held.days.get((job, 0, of_kind), ()))):
            group.jobs.add(job)
        if not any(map(span, held.days.get((job, attempt, of_kind), ()))):
            group.attempts.add((job, attempt))
    return _reply(groups, unpriced, book.currency, meter.seq, by_file=False)


def _reply(
    groups: "dict[tuple[str, str], _Group]", unpriced: set[str], currency: str, ledger_seq: int, *, by_file: bool
) -> BillReply:
    rows = tuple(
        BillRow(
            key=key,
            team=team,
            jobs=len(group.jobs) + group.more_jobs,
            attempts=len(group.attempts) + group.more_attempts,
            milli_us=group.milli_us,
            device_seconds=group.milli_us / _SECOND_UNITS,
            cost_micros=group.cost_micros,
            unpriced_milli_us=group.unpriced_milli_us,
            credit_micros=group.credit_micros,
        )
        for (key, team), group in sorted(groups.items(), key=lambda item: item[0])
    )
    return BillReply(
        currency=currency,
        rows=rows,
        total_milli_us=sum(r.milli_us for r in rows),
        total_cost_micros=sum(r.cost_micros for r in rows),
        total_credit_micros=sum(r.credit_micros for r in rows),
        unpriced_milli_us=sum(r.unpriced_milli_us for r in rows),
        unpriced_models=tuple(sorted(unpriced)),
        by_file=by_file,
        ledger_seq=ledger_seq,
    )


def days_of(query: BillQuery) -> Callable[[int], bool]:
    """A predicate on days since 1970-01-01: whether the query asks for the day."""
    first, last = query.from_day or "", query.to_day or "9999-12-31"
    return lambda day: first <= day_text(day) <= last


def _is_day(text: str, day: int) -> bool:
    return day_text(day) == text


@dataclass(slots=True)
class _Group:
    milli_us: int = 0
    cost_micros: int = 0
    unpriced_milli_us: int = 0
    credit_micros: int = 0
    jobs: set[str] = field(default_factory=set)
    attempts: set[tuple[str, int]] = field(default_factory=set)
    more_jobs: int = 0
    """Jobs that are counted but not listed."""
    more_attempts: int = 0


GROUP_KEYS: Final[Mapping[str, Callable[[UsageRow], str]]] = {
    "team": lambda row: row.team,
    "day": lambda row: day_text(row.day),
    "job": lambda row: row.job_id,
    "attempt": lambda row: attempt_id(row.job_id, row.attempt),
    "model": lambda row: row.model,
    "class": lambda row: row.priority_class,
    "user": lambda row: f"{row.team}.{row.user}" if row.user else row.team,
}
"""The key of a row for each grouping of bills and statements."""
