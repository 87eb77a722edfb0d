"""Money as it was posted, for who answers bills: what each use came to when it ended, and what a later book corrected.

The same rule as an export's (`libs.core.billing.charges`), in sums: a use costs on its day what the book that was applied then
makes of its hours; a book that prices the past otherwise adds, on the day on which it is applied, what it makes of them less
what was billed. Uses are kept, one line for all devices of an attempt that were alike, because a later book rates them again.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from libs.core.billing.prices import Amount, PriceList, Rater
from schemas.prices import RateBook

Key = tuple[str, int, int, str, str]
"""Job id, attempt, UTC day, device kind, priority class."""
SumKey = tuple[int, str, str]
"""UTC day, device kind, priority class."""


class AlikeUses(NamedTuple):
    """`alike` claims of one attempt of devices of one kind, by the wall: (start, end, start by the wall) pieces."""

    team: str
    job_id: str
    attempt: int
    device_kind: str
    priority_class: str
    milli: int
    alike: int
    straight: tuple[tuple[int, int, int], ...]


class PostedMoney:
    """Money by team and row. `book` None: no book is in the ledger, nothing is posted, and a file may say what use costs."""

    def __init__(self) -> None:
        self.book: RateBook | None = None
        self.rows: dict[str, dict[Key, list[int]]] = {}
        """Team -> row -> [cost, list cost, units without a price]; money in millionths."""
        self.sums: dict[str, dict[SumKey, list[int]]] = {}
        """As `rows`, of all attempts together: what is kept of a team's month grows with its days, and not with its jobs."""
        self.touched: set[tuple[str, int]] = set()
        """(team, UTC day) of sums that changed since whoever keeps them emptied this."""
        self._rater = Rater(None)
        self._uses: list[AlikeUses] = []
        self.totals: dict[str, int] = {}
        """Team -> cost."""
        self.unpriced: dict[tuple[str, str], int] = {}
        """(team, device kind) -> units."""

    def ahead(self) -> "PostedMoney":
        """For what is held still: what it would come to, at the prices of now."""
        other = PostedMoney()
        other.book, other._rater = self.book, self._rater.fork()
        return other

    @property
    def prices(self) -> PriceList | None:
        return self._rater.prices

    def post(self, uses: AlikeUses) -> None:
        """What ended, at the prices of now."""
        self._uses.append(uses)
        if self.book is not None:
            for amount in _rated(self._rater, uses):
                self._add(uses, amount.hour // 24, amount.cost_micros, amount.list_micros, _unpriced(amount))

    def apply(self, book: RateBook, day: int) -> None:
        """Another book, applied on this day: from now on by it, and what was billed is corrected."""
        before, then = Rater(self._rater.prices), Rater(PriceList(book))
        for uses in self._uses:
            was, now = _by_hour(_rated(before, uses)), _by_hour(_rated(then, uses))
            for hour, (cost, listed, unpriced) in now.items():
                old = was[hour]
                if self.book is None:
                    self._add(uses, hour // 24, 0, 0, unpriced)
                elif unpriced != old[2]:
                    self._add(uses, hour // 24, 0, 0, unpriced - old[2])
                if (cost, listed) != old[:2]:
                    self._add(uses, day, cost - old[0], listed - old[1], 0)
        self.book, self._rater = book, then

    def _add(self, uses: AlikeUses, day: int, cost: int, listed: int, unpriced: int) -> None:
        key = (uses.job_id, uses.attempt, day, uses.device_kind, uses.priority_class)
        row = self.rows.setdefault(uses.team, {}).setdefault(key, [0, 0, 0])
        for place, more in enumerate((cost, listed, unpriced)):
            row[place] += more
        self._count(uses.team, key, cost, listed, unpriced)

    def _count(self, team: str, key: Key, cost: int, listed: int, unpriced: int) -> None:
        """Of a row: what is more in all that is summed over rows."""
        _, _, day, kind, klass = key
        self.totals[team] = self.totals.get(team, 0) + cost
        if unpriced:
            self.unpriced[team, kind] = self.unpriced.get((team, kind), 0) + unpriced
        found = self.sums.setdefault(team, {}).setdefault((day, kind, klass), [0, 0, 0])
        for place, more in enumerate((cost, listed, unpriced)):
            found[place] += more
        self.touched.add((team, day))

    def dump(self) -> tuple[Any, Iterator[Any], Iterator[Any]]:
        """For a snapshot: the book, rows of money, and uses."""
        rows = ((team, *key, *row) for team, rows in sorted(self.rows.items()) for key, row in rows.items())
        return None if self.book is None else self.book.model_dump(mode="json"), rows, iter(self._uses)

    def load_rows(self, rows: Iterable[Any]) -> None:
        for team, job, attempt, day, kind, klass, cost, listed, unpriced in rows:
            key = (job, attempt, day, kind, klass)
            self.rows.setdefault(team, {})[key] = [cost, listed, unpriced]
            self._count(team, key, cost, listed, unpriced)

    def load_uses(self, uses: Iterable[Any]) -> None:
        self._uses += [AlikeUses._make([*one[:7], tuple((a, b, c) for a, b, c in one[7])]) for one in uses]

    def loaded(self, book: Any) -> None:
        """All rows and uses are there: counts what contracts have used."""
        if book is not None:
            self.book = RateBook.model_validate(book)
            self._rater = Rater(PriceList(self.book))
            for one in self._uses:
                if not self._rater.flat(one.team, one.device_kind, one.priority_class):
                    _rated(self._rater, one)


def _rated(rater: Rater, uses: AlikeUses) -> list[Amount]:
    """Of all devices: tiers are used up by one after the other."""
    about = (uses.team, uses.device_kind, uses.priority_class)
    if rater.flat(*about):
        return rater.rate(*about, uses.milli, uses.straight) * uses.alike
    return [amount for _ in range(uses.alike) for amount in rater.rate(*about, uses.milli, uses.straight)]


def _unpriced(amount: Amount) -> int:
    return amount.units if amount.quote is None else 0


def _by_hour(amounts: list[Amount]) -> dict[int, tuple[int, int, int]]:
    found: dict[int, tuple[int, int, int]] = {}
    for amount in amounts:
        cost, listed, unpriced = found.get(amount.hour, (0, 0, 0))
        found[amount.hour] = (cost + amount.cost_micros, listed + amount.list_micros, unpriced + _unpriced(amount))
    return found
