"""Prices usage and groups it into a bill.

    cost_micros(row) = round_half_even(milli_us(row) x micros_per_device_hour / (1000 x 3_600_000_000))

Each row of usage (`libs.core.billing.metering.UsageRow`) is rounded once, and every total is a sum of rounded rows, so all
groupings of one bill have the same total (docs/billing.md).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache

from libs.core.accelerators.kinds import catalogued
from libs.core.billing.metering import UsageRow
from libs.core.billing.rounding import round_half_even
from schemas.billing import BillQuery, BillReply, BillRow, PriceBook
from schemas.ids import attempt_id

_ANY = "*"
_HOUR_UNITS = 1000 * 3_600_000_000  # milli_us in one device-hour
_SECOND_UNITS = 1000 * 1_000_000  # milli_us in one device-second


class Prices:
    """Looks prices up. The more exact entry wins: model and class, then model. There is no price for any model: what the
    book does not name is unpriced, and said to be so, rather than billed at a guess or for nothing. A model may be spelt in
    any way that the catalogue knows."""

    def __init__(self, book: PriceBook) -> None:
        """Raises ValueError when two entries name one model, spelt in two ways, for one class."""
        self.currency = book.currency
        self._prices: dict[tuple[str, str], int] = {}
        for price in book.prices:
            key = (catalogued(price.model), price.priority_class)
            if key in self._prices:
                raise ValueError(f"{price.model!r} is another name of {key[0]!r}, which has a price already: keep one")
            self._prices[key] = price.micros_per_device_hour

    def of(self, model: str, priority_class: str = _ANY) -> int | None:
        """Micro-units of the currency per device-hour; None: the book has no price for it."""
        kind = catalogued(model)
        price = self._prices.get((kind, priority_class))
        return price if price is not None else self._prices.get((kind, _ANY))

    def cost_micros(self, row: UsageRow) -> int | None:
        """What one row costs, rounded once, half to even; None: it has no price."""
        price = self.of(row.model, row.priority_class)
        return None if price is None else round_half_even(row.milli_us * price, _HOUR_UNITS)


def bill(usage: Iterable[UsageRow], prices: Prices, query: BillQuery, ledger_seq: int, currency: str = "") -> BillReply:
    """Prices rows and groups them as the query asks; one group never mixes teams. Use without a price is counted apart. What
    was posted costs what it was posted at, in the `currency` of the ledger's book; `prices` are for a ledger without."""
    asked = cache(days_of(query))
    groups: dict[tuple[str, str], _Group] = {}
    unpriced: set[str] = set()
    key_of = _GROUP_KEYS[query.group_by]
    for row in usage:
        if (query.job_id is not None and query.job_id != row.job_id) or not asked(row.day):
            continue
        key = (key_of(row), row.team)
        group = groups.get(key) or groups.setdefault(key, _Group())
        group.milli_us += row.milli_us
        if row.posted is not None:
            group.cost_micros += row.posted[0]
            group.unpriced_milli_us += row.posted[1]
            if row.posted[1]:
                unpriced.add(row.model)
        elif (cost := prices.cost_micros(row)) is None:
            group.unpriced_milli_us += row.milli_us
            unpriced.add(row.model)
        else:
            group.cost_micros += cost
        group.jobs.add(row.job_id)
        group.attempts.add((row.job_id, row.attempt))
    rows = tuple(
        BillRow(
            key=key,
            team=team,
            jobs=len(group.jobs),
            attempts=len(group.attempts),
            milli_us=group.milli_us,
            device_seconds=group.milli_us / _SECOND_UNITS,
            cost_micros=group.cost_micros,
            unpriced_milli_us=group.unpriced_milli_us,
        )
        for (key, team), group in sorted(groups.items(), key=lambda item: item[0])
    )
    return BillReply(
        currency=currency or prices.currency,
        rows=rows,
        total_milli_us=sum(r.milli_us for r in rows),
        total_cost_micros=sum(r.cost_micros for r in rows),
        unpriced_milli_us=sum(r.unpriced_milli_us for r in rows),
        unpriced_models=tuple(sorted(unpriced)),
        ledger_seq=ledger_seq,
    )


def days_of(query: BillQuery) -> Callable[[int], bool]:
    """Whether a bill is asked for a day, counted from 1970-01-01."""
    first, last = query.from_day or "", query.to_day or "9999-12-31"
    return lambda day: first <= day_text(day) <= last


@dataclass(slots=True)
class _Group:
    milli_us: int = 0
    cost_micros: int = 0
    unpriced_milli_us: int = 0
    jobs: set[str] = field(default_factory=set)
    attempts: set[tuple[str, int]] = field(default_factory=set)


@lru_cache(maxsize=4096)
def day_text(day: int) -> str:
    """`YYYY-MM-DD` of a day counted from 1970-01-01."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


_GROUP_KEYS: dict[str, Callable[[UsageRow], str]] = {
    "team": lambda row: row.team,
    "day": lambda row: day_text(row.day),
    "job": lambda row: row.job_id,
    "attempt": lambda row: attempt_id(row.job_id, row.attempt),
    "model": lambda row: row.model,
}
