"""Checks sums over all teams' lines (I14): each follows the previous one, and matches the ledger up to its record.

This alone shares a fold with a service, history: the hashed bytes must be identical. Placement is not involved.
"""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from libs.core.proofs.chains import TeamChains
from schemas import ledger as led


class Summed(Subject):
    """A sum number that came before is skipped: history may have proposed it twice."""

    handlers: ClassVar = {led.LedgerSummed: "summed"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._chains = TeamChains()

    def begin(self, record: led.LedgerRecord) -> None:
        for one in self._chains.apply(record, self.books.seq).sums:
            if one.problem:
                self.books.broken("I14", f"sum {one.sum.number} {one.problem}")

    def summed(self, e: led.LedgerSummed) -> None:
        self.books.report.sums += 1
