"""Bills of any span of time, on the days of any zone, and what is still to come: the same rows as `libs.core.billing.pricing`
sums up, cut at other midnights."""

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
    """The days of a calendar, within [from_us, to_us) of the wall. An hour is where it begins."""

    day_of: DayOf
    from_us: int
    to_us: int

    def number(self, wall_us: int) -> int:
        """Counted from 1970-01-01; of a moment that is not within, the same one for all."""
        return self.day_of(wall_us) if self.from_us <= wall_us < self.to_us else _OUTSIDE


MOST_USES = 20_000
"""Rated anew for one bill: what takes a second or two."""


def bill_in_days(meter: Meter, prices: Prices, query: BillQuery, team: str | None, days: Days) -> BillReply:
    """A bill of these days. `team`: None: of all teams. Raises TooManyUses when it is of more than `MOST_USES`."""
    rows = [row for row in _freed(meter.money, days, team) if row.day != _OUTSIDE]
    if query.open_until_us is not None:
        rows += held_usage(meter, query.open_until_us, team, days)
    return _billed(meter, prices, query, rows)


def _freed(money: PostedMoney, days: Days, team: str | None) -> Iterator[UsageRow]:
    """The rows of what is freed. Use is of the hour in which it was, money of the moment at which it was billed, as in the
    meter's rows of UTC days. Raises TooManyUses when it is of more than `MOST_USES`."""
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
    """The bill, and what is held still, as if it were held until the query's moment: at the prices of now, in no cost."""
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
    """What is held still, as if it were held up to a moment of ledger time: never on a bill that is posted."""
    for row in meter.held_rows(until_us, days.number, team):
        job, attempt, day, kind, klass, user = row.key
        if day != _OUTSIDE and team in (None, row.team):
            yield UsageRow(row.team, job, attempt, day, kind, klass, row.milli_us, _money(meter, row), user)


def _money(meter: Meter, row: HeldRow) -> tuple[int, int, int] | None:
    return (row.cost_micros, row.unpriced, 0) if meter.money.book is not None else None
