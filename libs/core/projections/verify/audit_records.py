"""Checks records for auditors (I13): lines of an operator's book follow each other, and refusals are counted
consistently."""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led
from schemas.audit import line_hash

KEPT_LINES = 4096
"""Lines kept per book, the newest."""


class AuditRecords(Subject):
    """A line may be repeated unchanged. Lines missing from the ledger leave a gap, which `baton audit verify` shows."""

    handlers: ClassVar = {led.OperatorActed: "acted", led.CommandRefused: "refused"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._lines: dict[str, dict[int, tuple[str, str]]] = {}
        """Book -> line number -> hash of the line, and its stated hash of the previous line."""

    def acted(self, e: led.OperatorActed) -> None:
        self.books.report.operator_actions += 1
        action, digest = e.action, line_hash(e.action)
        lines = self._lines.setdefault(action.book, {})
        where = f"line {action.number} of the book {action.book}"
        before, same, after = (lines.get(action.number + n) for n in (-1, 0, 1))
        if same is not None and same[0] != digest:
            self.books.broken("I13", f"{where} was another one before")
        if before is not None and before[0] != action.prev_hash:
            self.books.broken("I13", f"{where} does not follow the line before it")
        if after is not None and after[1] != digest:
            self.books.broken("I13", f"{where} is not the one that the next line follows")
        if (action.number == 1) is not (action.prev_hash == ""):
            self.books.broken("I13", f"{where} names {action.prev_hash[:12] or 'no line'} as the line before it")
        if e.team and not action.target.startswith(f"{e.team}/"):
            self.books.broken("I13", f"{where} says that team {e.team} did something to {action.target}")
        lines[action.number] = (digest, action.prev_hash)
        if len(lines) > KEPT_LINES:
            del lines[min(lines)]

    def refused(self, e: led.CommandRefused) -> None:
        self.books.report.refused_commands += 1 + e.command.more
        if (e.command.more == 0) is not (e.command.more_digest == ""):
            self.books.broken(
                "I13", f"{e.command.more} refusals of team {e.command.team} have no digest, or none has one"
            )
