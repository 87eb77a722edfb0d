"""The valid records of ledger files, as often as they are asked for: for what reads a ledger twice."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from libs.ledger.chain import GENESIS, ChainEntry, Head, judge
from libs.ledger.export import BadLedgerFile, FileStart, LedgerFile, LedgerFileWriter
from libs.ledger.tail import Stored
from schemas.ledger import LedgerRecord, PeriodClosed, PricesApplied
from schemas.prices import ClosedPeriod

_MARKS = (b'"period.closed"', b'"prices.applied"', b"\\u")
"""One of these is in the payload of a record that closes a period or applies prices, however its JSON is written."""


class FiledLedger:
    """A ledger from its first record on, in one file of `baton ledger export` or in several that follow each other.

    All of it is read once at the start. Raises BadLedgerFile when a file is damaged, or does not follow the one before it.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths: list[Path] = []
        self.pool = ""
        self.head: Head = GENESIS
        self.last_seq = 0
        """Of the last message, void ones counted."""
        self.wall_us = 0
        """Of the last record."""
        self.closed: list[ClosedPeriod] = []
        self.currency = ""
        """Of the first price book; "": there is none."""
        for path in paths:
            self.add(path)

    def add(self, path: Path) -> None:
        """A file that follows the last one. Raises BadLedgerFile."""
        before = self.head
        newest: tuple[Head, Stored] | None = None
        for stored, head in self._of(path, self.last_seq, self.head):
            if head != before:
                newest = before, stored
                self._note(before, stored)
            before, self.last_seq = head, stored.seq
        self.head = before
        self.paths.append(path)
        if newest is not None:
            self.wall_us = wall_of(self._judged(*newest).record)

    def live(self, more: Callable[[], bool]) -> Callable[[], Iterator[tuple[int, LedgerRecord]]]:
        """Records of a ledger that grows. Those of the first call go on: after the last file `more` is called, which adds one
        and says True, or False to end them. Each later call gives those that are there."""
        waits = [more]
        return lambda: ((e.seq, e.record) for e in self._entries(waits.pop() if waits else _no_more))

    def join(self, path: Path) -> None:
        """Makes one file, at `path`, of all but the first, and removes them. Only `more` may: nobody is reading them then."""
        parts = self.paths[1:]
        start = LedgerFile(parts[0]).start
        with LedgerFileWriter(path, FileStart(start.pool, start.first_seq, start.head)) as out:
            for stored, _ in self._stored(_no_more, parts, start.first_seq - 1, start.head):
                out.add(stored)
            out.finish()
        self.paths[1:] = [path]
        for part in parts:
            part.unlink()

    @property
    def files(self) -> int:
        return len(self.paths)

    def __call__(self) -> Iterator[tuple[int, LedgerRecord]]:
        """(sequence, record), from the first one on."""
        return ((entry.seq, entry.record) for entry in self._entries())

    def at(self, seq: int) -> tuple[Head, int]:
        """The chain's head and the wall time at a record. Raises KeyError when there is no such record."""
        if seq == self.head.seq:
            return self.head, self.wall_us
        for entry in self._entries():
            if entry.seq == seq:
                return entry.head, wall_of(entry.record)
        raise KeyError(seq)

    def _note(self, head: Head, stored: Stored) -> None:
        """What a bill must know before it reads: seals and the currency. Few records are of these, so few are read in full."""
        if not any(mark in stored.payload for mark in _MARKS):
            return
        for event in self._judged(head, stored).record.events:
            if isinstance(event, PeriodClosed):
                self.closed.append(event.period)
            elif isinstance(event, PricesApplied):
                self.currency = self.currency or event.book.currency

    def _entries(self, more: Callable[[], bool] | None = None) -> Iterator[ChainEntry]:
        head = GENESIS
        for stored, _ in self._stored(more or _no_more, list(self.paths), 0, GENESIS):
            entry = self._judged(head, stored)
            if entry.valid:
                head = entry.head
                yield entry

    def _judged(self, head: Head, stored: Stored) -> ChainEntry:
        return judge(head, self.pool, stored.seq, stored.payload, stored.time_us)

    def _stored(
        self, more: Callable[[], bool], paths: Sequence[Path], last: int, head: Head
    ) -> Iterator[tuple[Stored, Head]]:
        """Each message of the files, and of those that `more` adds, and the chain's head after it."""
        for path in paths:
            for stored, after in self._of(path, last, head):
                yield stored, after
                last, head = stored.seq, after
        while more():
            for stored, after in self._of(self.paths[-1], last, head):
                yield stored, after
                last, head = stored.seq, after

    def _of(self, path: Path, last: int, head: Head) -> Iterator[tuple[Stored, Head]]:
        file = LedgerFile(path)
        if (file.start.first_seq, file.start.head) != (last + 1, head) or self.pool not in ("", file.start.pool):
            raise BadLedgerFile(
                f"{path}: begins with message {file.start.first_seq} of pool {file.start.pool}, wanted is message "
                f"{last + 1}, after record {head.seq}: give all files of one ledger, in order"
            )
        self.pool = file.start.pool
        for stored in file:
            yield stored, file.head


def _no_more() -> bool:
    return False


def wall_of(record: LedgerRecord) -> int:
    """By the broker's clock; of an old record its ledger time, which was that."""
    return record.wall_us if record.wall_us is not None else record.t_us
