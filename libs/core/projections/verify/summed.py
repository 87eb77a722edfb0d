"""Sums over all teams' lines (I14): each follows the one before it, and is what the ledger up to its record comes to.

Here alone a fold is shared with a service, history: what is hashed must be the same bytes. Placement has no part in it.
"""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from libs.core.proofs.chains import TeamChains
from schemas import ledger as led


class Summed(Subject):
    """A number that was summed before counts for nothing: history may have proposed it twice."""

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
