"""Bills for any span of time, by the days of any time zone, and forecasts: the rows that `libs.core.billing.pricing`
sums, cut at that zone's midnights."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from libs.core.billing.metering import Meter
from libs.core.billing.posted import NOTHING_POSTED, PostedMoney
from libs.core.billing.pricing import Prices, bill
from libs.core.billing.usage_rows import HeldRow, UsageRow
from libs.core.billing.use_lines.line import DayOf, Key
from libs.core.billing.wall import HOUR_US
from schemas.billing import BillQuery, BillReply, BillRow

_OUTSIDE = -1


class Days(NamedTuple):
    """The days of a calendar within [from_us, to_us), wall time. An hour belongs to the day in which it starts."""

    day_of: DayOf
    from_us: int
    to_us: int

    def number(self, wall_us: int) -> int:
        """Days since 1970-01-01. All moments outside the span get one and the same number."""
        return self.day_of(wall_us) if self.from_us <= wall_us < self.to_us else _OUTSIDE


MOST_USES = 20_000
"""The most uses rated again for one bill: one to two seconds of work."""


def bill_in_days(meter: Meter, prices: Prices, query: BillQuery, team: str | None, days: Days) -> BillReply:
    """The bill for these days. `team`: None for all teams. Raises TooManyUses above `MOST_USES`."""
    rows = [row for row in _freed(meter.money, days, team) if row.day != _OUTSIDE]
    if query.open_until_us is not None:
        rows += held_usage(meter, query.open_until_us, team, days)
    return _billed(meter, prices, query, rows)


def _freed(money: PostedMoney, days: Days, team: str | None) -> Iterator[UsageRow]:
    """Rows of freed devices. Use is in the hour in which it happened, money at the moment at which it was billed, as in
    the meter's UTC rows. Raises TooManyUses above `MOST_USES`."""
    recut, uses = money.recut(days.number, team, (days.from_us, days.to_us), MOST_USES)
    used: dict[str, dict[Key, int]] = {}
    for one in uses:
        units = used.setdefault(one.team, {})
        for wall, until in ((wall, wall + end - start) for start, end, wall in one.straight):
            while wall < until:
                hour = wall // HOUR_US
                stop, day = min(until, (hour + 1) * HOUR_US), days.number(hour * HOUR_US)
                key = (one.job_id, one.attempt, day, one.device_kind, one.priority_class, one.user)
                units[key] = units.get(key, 0) + (stop - wall) * one.milli * one.alike
                wall = stop
    posted: dict[str, dict[Key, list[int]]] = {}
    for name, key, row in recut.all_rows():
        sums = posted.setdefault(name, {}).setdefault(key, [0, 0, 0, 0])
        for place, more in enumerate(row):
            sums[place] += more
    for name in sorted(used.keys() | posted.keys()):
        units, costs = used.get(name, {}), posted.get(name, {})
        for key in units.keys() | costs.keys():
            job, attempt, day, kind, klass, user = key
            cost, _, free, credit = costs.get(key, NOTHING_POSTED)
            paid = (cost, free, credit) if recut.book is not None else None
            yield UsageRow(name, job, attempt, day, kind, klass, units.get(key, 0), paid, user)


def with_forecast(
    reply: BillReply, meter: Meter, prices: Prices, query: BillQuery, team: str | None, days: Days
) -> BillReply:
    """Adds a forecast: devices still held, counted up to the query's moment at current prices. No cost of the bill
    includes it."""
    assert query.forecast_until_us is not None
    to_come = _billed(meter, prices, query, held_usage(meter, query.forecast_until_us, team, days))
    rows = {(row.key, row.team): row for row in reply.rows}
    for more in to_come.rows:
        nothing = BillRow(
            key=more.key, team=more.team, jobs=0, attempts=0, milli_us=0, device_seconds=0.0, cost_micros=0
        )
        row = rows.get((more.key, more.team), nothing)
        rows[more.key, more.team] = row.model_copy(update={"forecast_micros": more.cost_micros})
    ordered = tuple(row for _, row in sorted(rows.items()))
    return reply.model_copy(update={"rows": ordered, "total_forecast_micros": to_come.total_cost_micros})


def _billed(meter: Meter, prices: Prices, query: BillQuery, rows: Iterable[UsageRow]) -> BillReply:
    currency = meter.money.book.currency if meter.money.book is not None else ""
    return bill(rows, prices, query.model_copy(update={"from_day": None, "to_day": None}), meter.seq, currency)


def held_usage(meter: Meter, until_us: int, team: str | None, days: Days) -> Iterator[UsageRow]:
    """Rows of devices still held, as if held until a moment of ledger time. For forecasts, never for a posted bill."""
    for row in meter.held_rows(until_us, days.number, team):
        job, attempt, day, kind, klass, user = row.key
        if day != _OUTSIDE and team in (None, row.team):
            yield UsageRow(row.team, job, attempt, day, kind, klass, row.milli_us, _money(meter, row), user)


def _money(meter: Meter, row: HeldRow) -> tuple[int, int, int] | None:
    return (row.cost_micros, row.unpriced, 0) if meter.money.book is not None else None
