"""An operator's book: what was done on this host that no command to Baton says, one line an action, chained by hashes.

    audit.jsonl         the lines (`schemas.audit.OperatorAction`); a line names the hash of the one before it
    audit.open/         one file for each action that is under way; its process holds a lock on it
    audit.told.json     <pool>.<book> -> how many lines of that book the pool's ledger was told

It lies beside `keys.json`, or where there is none in the user's own state folder. Whoever may write here can write a book anew;
what was told to a ledger cannot be taken back, so lines are told as soon as they are there (`libs.cli.operator_action`).
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from libs.ports.private_files import open_lock, write_private
from schemas.audit import ActionOutcome, OperatorAction, line_hash, line_of

BOOK_FILE = "audit.jsonl"
_OPEN = "audit.open"
_TOLD = "audit.told.json"
_BLOCK = 65_536


class BrokenBook(ValueError):
    """A line of a book is not what the rule says; the text names the file, the line and what to do."""


class Book:
    """The book in `folder`, which is made when the first line is written. Several processes may write at one time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / BOOK_FILE

    def make(self) -> None:
        """Makes the folder, as `entry` does. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / _OPEN).mkdir(mode=0o700, exist_ok=True)

    def lines(self) -> list[OperatorAction]:
        """All lines, in order, as they stand there: see `libs.core.projections.audit.compare` for whether they are whole.

        Raises BrokenBook when one cannot be read.
        """
        return [self._read(number, line) for number, line in enumerate(self._written(), 1)]

    def __len__(self) -> int:
        """How many lines there are; none of them is read."""
        return len(self._written())

    def _written(self) -> list[bytes]:
        try:
            return self.file.read_bytes().splitlines()
        except FileNotFoundError:
            return []

    def _newest(self) -> Iterator[OperatorAction]:
        """The lines from the last one on, as many as are asked for: an admin's and a flood's lines come by the million, and
        whoever writes one has others to look after. Raises BrokenBook at one that cannot be read."""
        last: OperatorAction | None = None
        for line in _backwards(self.file):
            try:
                last = OperatorAction.model_validate_json(line)
            except ValueError:
                last = self._read(last.number - 1 if last else len(self), line)  # it says where that is
            yield last

    def _read(self, number: int, line: bytes) -> OperatorAction:
        try:
            return OperatorAction.model_validate_json(line)
        except ValueError as e:
            raise BrokenBook(f"{self.file}, line {number} cannot be read: {str(e).splitlines()[0]}; "
                             "keep the file, and move it away: a new book is begun, and the ledger has what was told"
                             ) from None  # fmt: skip

    @contextmanager
    def entry(self, said: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        """An action with the fields `said` (what, target, reason, at_us, host, login, tool): its line is written when the block
        ends, `done` or `failed`; when its process dies in it, the next one writes `unfinished`. The block may set `detail` and
        `digest` in what it is given."""
        more: dict[str, str] = {}
        with self._under_way(said) as mark:
            try:
                yield more
            except BaseException as e:
                why = f"{type(e).__name__}: {e}".splitlines()[0]
                self._finish(mark, {**said, "detail": why[:1024], "outcome": ActionOutcome.FAILED})
                raise
            self._finish(mark, {**said, **more, "outcome": ActionOutcome.DONE})

    @contextmanager
    def _under_way(self, said: Mapping[str, Any]) -> Iterator[Path]:
        self.make()
        mark = self.folder / _OPEN / f"{said['at_us']:020}-{secrets.token_hex(4)}"
        with open(os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(said))
            file.flush()
            os.fsync(file.fileno())
            yield mark

    def _finish(self, mark: Path, said: Mapping[str, Any]) -> None:
        with self._writing():
            self._append(said)
            mark.unlink(missing_ok=True)

    def settle(self) -> None:
        """Writes the lines of actions whose process ended before it could."""
        for mark in sorted((self.folder / _OPEN).glob("*")):
            with suppress(FileNotFoundError), open(mark, "r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # it is under way
                with suppress(ValueError), self._writing():  # cut short: its action had not begun
                    if mark.exists():
                        self._append({**json.load(file), "outcome": ActionOutcome.UNFINISHED})
                mark.unlink(missing_ok=True)

    def _append(self, said: Mapping[str, Any]) -> None:
        last = next(self._newest(), None)
        book = last.book if last else secrets.token_hex(8)
        prev_hash = line_hash(last) if last else ""
        number = last.number + 1 if last else 1
        action = OperatorAction.model_validate({**said, "book": book, "number": number, "prev_hash": prev_hash})
        with open(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(line_of(action) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with open_lock(self.folder / f"{BOOK_FILE}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def untold(self, pool: str) -> list[OperatorAction]:
        """The lines that the pool's ledger was not told yet. Raises BrokenBook when one of them, or the last one, cannot be
        read."""
        marks, found = self._told(), list[OperatorAction]()
        for line in self._newest():
            if line.number <= marks.get(f"{pool}.{line.book}", marks.get(pool, 0)):
                break
            found.append(line)
        return found[::-1]

    def told(self, pool: str, line: OperatorAction) -> None:
        """The pool's inbox has the lines of that book up to this one."""
        with self._writing():
            marks = self._told()
            known = max(line.number, marks.get(f"{pool}.{line.book}", marks.get(pool, 0)))
            self._mark({**_others(marks, pool), f"{pool}.{line.book}": known})

    def tell_again(self, pool: str) -> None:
        """All lines count as not told: a ledger was begun anew, or left some out."""
        with self._writing():
            self._mark(_others(self._told(), pool))

    def _mark(self, marks: Mapping[str, int]) -> None:
        write_private(self.folder / _TOLD, json.dumps(marks) + "\n")

    def _told(self) -> dict[str, int]:
        try:
            return dict(json.loads((self.folder / _TOLD).read_text()))
        except (FileNotFoundError, ValueError):
            return {}  # telling a line twice does no harm


def _backwards(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last one first; it is read as far as they are asked for."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        at, rest = file.seek(0, os.SEEK_END), b""
        while at:
            before, at = at, max(0, at - _BLOCK)
            file.seek(at)
            first, *lines = (file.read(before - at) + rest).split(b"\n")
            yield from filter(None, reversed(lines))
            rest = first
        if rest:
            yield rest


def _others(marks: Mapping[str, int], pool: str) -> dict[str, int]:
    """Those of the other pools. A mark without a book is of before there were several."""
    return {known: number for known, number in marks.items() if known.partition(".")[0] != pool}
