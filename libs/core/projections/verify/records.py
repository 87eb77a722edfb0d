"""Checks the order of records (I10): the chain, the format, and the inbox messages they decide. Time is in `clock`.

A record declares the format in which it was decided (`libs.core.state.formats`): what it may contain, and by which
rules it is checked. Older records without a declaration are checked by their content. A format never goes back, so
0.1.0, which declares none, cannot continue a ledger of a later format.
"""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from libs.core.state.formats import FIRST, FORMAT_OF
from schemas import ledger as led

_CUT_SHORT = 10
"""More consecutive incomplete decisions about one input than crashes or loss of the writer's role explain."""


class Records(Subject):
    """A record continues the last valid one, and decides inputs after those already decided."""

    handlers: ClassVar = {
        led.InputRejected: "rejected", led.PlanDeclined: "declined", led.SegmentSealed: "sealed",
    }  # fmt: skip

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._head = 0
        self._format = FIRST
        """The last declared format."""
        self._decided_before = 0
        self._rejected = 0
        self._segment = 1
        """First sequence of the open segment."""
        self._open: tuple[int, str] | None = None
        """Time and writer of the incomplete decision."""
        self._cut_short = 0
        """Incomplete decisions about the current input so far."""
        self._last: led.LedgerEvent | None = None
        """The last event of this record."""

    def begin(self, record: led.LedgerRecord) -> None:
        books = self.books
        if record.prev_seq != self._head:
            books.broken("I10", f"names record {record.prev_seq} before it, the last valid one is {self._head}")
        if record.inbox_seq < books.inbox_seq:
            books.broken(
                "I10", f"decides the inbox up to {record.inbox_seq}, up to {books.inbox_seq} is decided already"
            )
        self._declared(record)
        self._last = record.events[-1] if record.events else None
        self._head = books.seq
        self._goes_on(record)
        self._decided_before, books.inbox_seq = books.inbox_seq, max(record.inbox_seq, books.inbox_seq)

    def _goes_on(self, record: led.LedgerRecord) -> None:
        """Follow-ups wait for the end of a decision, so none may continue for ever. A record that starts another
        decision, while one is incomplete, comes from a writer that decides the same input again; it is checked as such."""
        books, report, decided = self.books, self.books.report, record.inbox_seq > self.books.inbox_seq
        made = (record.t_us, record.writer)
        anew = made != self._open
        seals = isinstance(self._last, led.SegmentSealed)
        if self._open is not None and anew and not (record.more or decided or seals):
            begun = report.unfinished
            books.broken("I10", f"is not of the decision that record {begun} begins, which is not at its end")
        if decided or not record.more:
            self._cut_short = 0
        elif anew:
            self._cut_short += 1
            if self._cut_short == _CUT_SHORT:
                books.broken("I10", f"{_CUT_SHORT} decisions in a row begin, and none comes to its end")
        if record.more and not record.events:
            books.broken("I10", "says that its decision goes on, and tells nothing of it")
        if not record.more:
            report.unfinished = 0
        elif anew:
            report.unfinished = books.seq
        books.more, self._open = record.more, made if record.more else None

    def _declared(self, record: led.LedgerRecord) -> None:
        books, declared = self.books, record.format
        books.format = declared
        if (declared or FIRST) < self._format:
            books.broken("I10", f"is of format {declared or 'none'}, the ledger is of {self._format} already")
        self._format = max(self._format, declared or FIRST)
        newest = max((FORMAT_OF[event.kind] for event in record.events), default=FIRST)
        if declared is not None and newest > declared:
            books.broken("I10", f"is of format {declared}, and tells what came with {newest}")

    def rejected(self, e: led.InputRejected) -> None:
        self.books.report.rejected_inputs += 1
        if not max(self._rejected, self._decided_before) < e.inbox_seq <= self.books.inbox_seq:
            after, to = max(self._rejected, self._decided_before), self.books.inbox_seq
            self.books.broken(
                "I10", f"rejects inbox message {e.inbox_seq}, which is not among those after {after} to {to}"
            )
        self._rejected = max(self._rejected, e.inbox_seq)
        if e.request is not None and not e.request.known and e.request.job_id in self.books.jobs:
            self.books.broken("I3", f"{e.request.job_id} is told to be unknown, and it waits or runs")

    def sealed(self, e: led.SegmentSealed) -> None:
        broken, begins = self.books.broken, self.books.seq + 1
        if e.first_seq != self._segment:
            broken("I10", f"seals the segment from {e.first_seq} on, the one that is open begins with {self._segment}")
        if not e.next.endswith(f"-{begins:020}"):
            broken("I10", f"says that {e.next} is next, which does not begin with {begins}")
        if self._last is not e:
            broken("I10", "says more than that its segment is sealed")
        self._segment = begins

    def declined(self, e: led.PlanDeclined) -> None:
        self.books.report.declined_plans += 1
