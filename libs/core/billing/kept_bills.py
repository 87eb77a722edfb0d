"""Bills of UTC months as posted: a projection stored outside the ledger that can be rebuilt from it.

A bill sums what `libs.core.billing.posted` has up to a ledger record, and names that record's number and hash. Every
fold of the ledger up to there gives the same bill. Later prices do not change it; a correction is billed in the month
in which it was posted.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from libs.core.billing.posted import PostedMoney
from libs.core.billing.wall import day_text


class DayOfBill(NamedTuple):
    """One UTC day. Money in millionths of the currency, units in thousandths of a device x microseconds."""

    day: str
    device_kind: str
    priority_class: str
    cost_micros: int
    list_micros: int
    unpriced_units: int
    credit_micros: int = 0
    """Part of the cost that is credits."""


class KeptBill(NamedTuple):
    """One team's bill for one month ("2026-11") after ledger records 1 to `upto_seq`; `head` is the hash of the last."""

    pool: str
    team: str
    month: str
    currency: str
    book_version: int
    upto_seq: int
    head: str
    rows: tuple[DayOfBill, ...]

    @property
    def cost_micros(self) -> int:
        return sum(row.cost_micros for row in self.rows)


def months_of(days: Iterable[tuple[str, int]]) -> set[tuple[str, str]]:
    """(team, UTC day) pairs as (team, month) pairs."""
    return {(team, day_text(day)[:7]) for team, day in days}


def kept_bills(
    money: PostedMoney, months: Iterable[tuple[str, str]], *, pool: str, upto_seq: int, head: str
) -> Iterator[KeptBill]:
    """The bills of these (team, month) pairs. None if the ledger has no price book, since nothing is posted then."""
    book = money.book
    if book is None:
        return
    wanted: dict[str, set[str]] = {}
    for team, month in months:
        wanted.setdefault(team, set()).add(month)
    for team in sorted(wanted):
        rows: dict[str, list[DayOfBill]] = {month: [] for month in sorted(wanted[team])}
        for (day, kind, klass), sums in sorted(money.sums.get(team, {}).items()):
            date = day_text(day)
            if (found := rows.get(date[:7])) is not None:
                found.append(DayOfBill(date, kind, klass, *sums))
        for month, some in rows.items():
            yield KeptBill(pool, team, month, book.currency, book.version, upto_seq, head, tuple(some))
