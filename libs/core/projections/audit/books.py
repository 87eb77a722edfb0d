"""Operators' books, in files and in the ledger: whether each is whole, and whether both tell the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.audit import OperatorAction, line_hash


@dataclass(frozen=True, slots=True)
class BookProblem:
    """The first fault of a book: `number` is the line's, `seq` the record that tells it, 0: none does."""

    book: str
    number: int
    seq: int
    problem: str

    def __str__(self) -> str:
        where = f" (record {self.seq})" if self.seq else ""
        return f"book {self.book}, line {self.number}{where}: {self.problem}"


ToldLine = tuple[int, OperatorAction]
"""A record's place, and a line that it tells."""


def compare(
    told: Iterable[ToldLine], files: Mapping[str, Iterable[OperatorAction]], *, whole: bool = True
) -> list[BookProblem]:
    """The first fault of each book that the ledger tells of, or that there is a file of. `files`: book -> its lines. Without
    the `whole` ledger no line is missing: records that were not read may tell it."""
    books: dict[str, list[ToldLine]] = {}
    for seq, action in told:
        books.setdefault(action.book, []).append((seq, action))
    out = []
    for book in sorted(books.keys() | files.keys()):
        found = _told_fault(book, books.get(book, []), whole)
        if book in files:
            found = _first(found, _file_fault(book, list(files[book]), books.get(book, [])))
        if found is not None:
            out.append(found)
    return out


def untold(
    told: Iterable[ToldLine], files: Mapping[str, Iterable[OperatorAction]], *, whole: bool = True
) -> dict[str, int]:
    """How many lines of each book's file are later than all that the ledger tells of it: no fault, they wait to be told. Books
    without any are left out; so are, without the `whole` ledger, those that it tells nothing of: who knows."""
    last: dict[str, int] = {}
    for _, action in told:
        last[action.book] = max(action.number, last.get(action.book, 0))
    known = {book: sum(1 for _ in lines) for book, lines in files.items() if whole or book in last}
    return {book: count - last.get(book, 0) for book, count in known.items() if count > last.get(book, 0)}


def _first(*found: BookProblem | None) -> BookProblem | None:
    return min((one for one in found if one is not None), key=lambda one: one.number, default=None)


def _told_fault(book: str, told: Iterable[ToldLine], whole: bool) -> BookProblem | None:
    """Of what the ledger says alone: a line that is two, is missing, or does not follow."""
    lines: dict[int, ToldLine] = {}
    for seq, action in told:
        before = lines.setdefault(action.number, (seq, action))
        if before[1] != action:
            return BookProblem(book, action.number, seq, f"record {before[0]} tells it otherwise")
    prev_hash: str | None = ""
    for number in range(1, max(lines, default=0) + 1):
        if number not in lines:
            if whole:
                return BookProblem(book, number, 0, "the ledger tells later lines and not this one: `baton audit push`")
            prev_hash = None  # who knows
            continue
        seq, action = lines[number]
        if prev_hash is not None and action.prev_hash != prev_hash:
            return BookProblem(book, number, seq, "it does not follow the line before it")
        prev_hash = line_hash(action)
    return None


def _file_fault(book: str, file: list[OperatorAction], told: Iterable[ToldLine]) -> BookProblem | None:
    """Of a file: broken by itself, or other than the ledger says. A line that the ledger does not tell is a fault of the
    ledger's, when it tells later ones; else it waits to be told (`untold`)."""
    known = {action.number: (seq, action) for seq, action in told}
    prev_hash = ""
    for number, action in enumerate(file, 1):
        seq, said = known.get(number, (0, None))
        if action.number != number or action.prev_hash != prev_hash:
            return BookProblem(book, number, seq, "in the file it does not follow the line before it")
        if said is not None and said != action:
            return BookProblem(book, number, seq, "the file has another line than the ledger")
        prev_hash = line_hash(action)
    if (last := max(known, default=0)) > len(file):
        return BookProblem(book, len(file) + 1, known.get(len(file) + 1, (0, None))[0],
                           f"the file ends before it, the ledger tells {last} lines")  # fmt: skip
    return None
