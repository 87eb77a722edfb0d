"""The cost of a use of a device: cut at hours, price changes and tiers, each piece rounded once.

    units         = thousandths of a device x microseconds                                                    exact
    cost_micros   = round_half_even(units x micros per device-hour / 3 600 000 000 000)            once for each piece
    total         = sum of pieces

A piece is one attempt's use of one device in one hour (UTC) at one price: the row of an export, and the smallest amount
that is rounded. So every grouping of a period has the same total.

Tiers count a team's device-hours under one contract in one calendar month (UTC), in posting order.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from libs.core.billing.prices.lookup import PriceList, Quote
from libs.core.billing.rounding import round_half_even
from libs.core.billing.wall import HOUR_US, month_of
from schemas.prices import Term

HOUR_UNITS = 1000 * HOUR_US
"""Units of one device-hour."""


_NEVER: Final[tuple[list[int], list[Quote | None]]] = ([], [])
"""The price series without a book."""


class Amount(NamedTuple):
    """One piece. `hour`: since the epoch. `quote` None: unpriced, with money 0. `tier`: index of the tier."""

    hour: int
    units: int
    quote: Quote | None
    tier: int
    list_micros: int
    cost_micros: int

    @property
    def unit_micros(self) -> int:
        """The tier's price per device-hour."""
        return self.quote.tiers[self.tier][1] if self.quote is not None else 0

    @classmethod
    def load(cls, row: Sequence[Any]) -> "Amount":
        """From a JSON row."""
        hour, units, quote, *money = row
        if quote is not None:
            sku, term, listed, tiers, *rest = quote
            quote = Quote(sku, Term(term), listed, tuple((above, micros) for above, micros in tiers), *rest)
        return cls(hour, units, quote, *money)


class Rater:
    """Rates uses in posting order. Tracks how far contracts have used their tiers this month."""

    def __init__(self, prices: PriceList | None) -> None:
        """`prices` None: no book yet, everything is unpriced."""
        self.prices = prices
        self._used: dict[tuple[str, str, str, int, int], int] = {}
        self._months: dict[int, tuple[int, int]] = {}
        self._last: tuple[Any, ...] | None = None
        """The last use and its pieces, unless it has tiers: the devices of a gang are alike."""
        self._amounts: list[Amount] = []

    def fork(self) -> "Rater":
        """A copy that continues from here, for questions that post nothing."""
        other = Rater(self.prices)
        other._used = dict(self._used)
        return other

    def go_on(self, before: "Rater", same: Callable[[str, str], bool]) -> None:
        """Copies the use of contracts from `before` for the teams and device kinds in `same`, whose uses are not rated
        again."""
        self._used |= {key: units for key, units in before._used.items() if same(key[0], key[2])}

    def flat(self, team: str, device: str, priority_class: str) -> bool:
        """Whether no price has tiers, so that equal uses cost the same."""
        if self.prices is None:
            return True
        return all(q is None or len(q.tiers) == 1 for q in self.prices.series(team, device, priority_class)[1])

    def rate(
        self, team: str, device: str, priority_class: str, milli: int, straight: Sequence[tuple[int, int, int]]
    ) -> list[Amount]:
        """The pieces of one use, by hour; do not modify the list. `straight`: (start, end, wall time of the start), as
        from `Calendar.straight`. An hour that occurred twice is one piece."""
        about = (team, device, priority_class, milli, straight)
        if about == self._last:
            return self._amounts
        starts, quotes = _NEVER if self.prices is None else self.prices.series(team, device, priority_class)
        if len(straight) == 1:
            since, until, start = straight[0]
            end, at = start + until - since, bisect_right(starts, start)
            quote = quotes[at - 1] if at else None
            if (at == len(starts) or starts[at] >= end) and (quote is None or len(quote.tiers) == 1):
                self._last, self._amounts = about, _at_one_price(start, end, milli, quote)
                return self._amounts
        pieces: dict[tuple[int, int, int], int] = {}
        named: dict[int, Quote | None] = {}
        tiers = False
        for since, until, start in straight:
            end = start + until - since
            at = bisect_right(starts, start)
            while start < end:
                hour = start // HOUR_US
                stop = min(end, (hour + 1) * HOUR_US)
                if at < len(starts):
                    stop = min(stop, starts[at])
                quote = quotes[at - 1] if at else None
                named[id(quote)] = quote
                for tier, units in self._tiers(team, device, hour, quote, (stop - start) * milli):
                    key = (hour, id(quote), tier)
                    pieces[key] = pieces.get(key, 0) + units
                tiers = tiers or (quote is not None and len(quote.tiers) > 1)
                start = stop
                at += at < len(starts) and starts[at] == start
        amounts = [_amount(hour, named[quote], tier, units) for (hour, quote, tier), units in pieces.items()]
        self._last, self._amounts = (None if tiers else about), amounts
        return amounts

    def _tiers(self, team: str, device: str, hour: int, quote: Quote | None, units: int) -> Iterable[tuple[int, int]]:
        if quote is None or len(quote.tiers) == 1:
            return ((0, units),)
        return self._parts(team, device, hour, quote, units)

    def dump(self) -> Iterator[Any]:
        """The use of contracts, as rows for a snapshot."""
        return ([*key, units] for key, units in sorted(self._used.items()))

    def load_rows(self, rows: Iterable[Any]) -> None:
        """The inverse of `dump`."""
        self._used.update(
            ((team, contract, device, year, month), units) for team, contract, device, year, month, units in rows
        )

    def _parts(self, team: str, device: str, hour: int, quote: Quote, units: int) -> Iterator[tuple[int, int]]:
        month = self._months.get(hour)
        if month is None:
            if len(self._months) > 10_000:
                self._months.clear()
            month = self._months[hour] = month_of(hour * HOUR_US)
        key = (team, quote.contract, device, *month)
        used = self._used.get(key, 0)
        self._used[key] = used + units
        for tier, (above, _) in enumerate(quote.tiers):
            last = tier + 1 == len(quote.tiers)
            room = units if last else quote.tiers[tier + 1][0] * HOUR_UNITS - used
            if room <= 0 or used < above * HOUR_UNITS:
                continue
            taken = min(room, units)
            if taken:
                yield tier, taken
            used, units = used + taken, units - taken


@lru_cache(maxsize=4096)
def money_of(units: int, micros: int) -> int:
    """The cost of units at a price per device-hour, in millionths. Most pieces are whole hours."""
    return round_half_even(units * micros, HOUR_UNITS)


def _amount(hour: int, quote: Quote | None, tier: int, units: int) -> Amount:
    if quote is None:
        return Amount(hour, units, None, 0, 0, 0)
    price = quote.tiers[tier][1]
    return Amount(hour, units, quote, tier, money_of(units, quote.list_micros), money_of(units, price))


def _at_one_price(start: int, end: int, milli: int, quote: Quote | None) -> list[Amount]:
    """The pieces of a span of wall time at one price without tiers, the common case: its whole hours are alike."""
    amounts: list[Amount] = []
    hour, whole = start // HOUR_US, _amount(0, quote, 0, HOUR_UNITS // 1000 * milli)[1:]
    while start < end:
        stop = min(end, (hour + 1) * HOUR_US)
        if stop - start == HOUR_US:
            amounts.append(Amount(hour, *whole))
        else:
            amounts.append(_amount(hour, quote, 0, (stop - start) * milli))
        start, hour = stop, hour + 1
    return amounts
