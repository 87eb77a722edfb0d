"""Checks price books and closed periods (I17): versions rise, the currency stays, periods follow each other without a
gap."""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led
from schemas.prices import RateBook


class Rates(Subject):
    """Totals and hashes of a seal need a second pass: `libs.ledger.seals`."""

    handlers: ClassVar = {led.PricesApplied: "applied", led.PeriodClosed: "closed"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._book: RateBook | None = None
        self._closed_us: int | None = None
        self._wall_us = 0
        """Wall time at the present record, by the calendar."""

    def begin(self, record: led.LedgerRecord) -> None:
        self._wall_us = record.wall_us if record.wall_us is not None else record.t_us

    def applied(self, e: led.PricesApplied) -> None:
        before, self._book = self._book, e.book
        if before is None:
            return
        if e.book.version <= before.version:
            self.books.broken("I17", f"prices of version {e.book.version} are applied after version {before.version}")
        if e.book.currency != before.currency:
            self.books.broken("I17", f"prices in {e.book.currency} are applied after prices in {before.currency}")

    def closed(self, e: led.PeriodClosed) -> None:
        period, until = e.period, self._closed_us
        if period.to_us <= period.from_us or (until is not None and period.from_us != until):
            self.books.broken("I17", f"a period {period.from_us}-{period.to_us} is closed after {until}")
        if period.to_us > self._wall_us:
            self.books.broken("I17", f"a period up to {period.to_us} is closed at {self._wall_us}, before it is over")
        if period.upto_seq >= self.books.seq:
            self.books.broken("I17", f"a closed period names record {period.upto_seq}, which was not there yet")
        self._closed_us = period.to_us
        self.books.report.closed_periods += 1
