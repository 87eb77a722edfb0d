"""A ledger as a file: every message of the stream as it is stored, so that anyone can check it without Baton.

One JSON object a line (docs/ledger-file.md has the format and the rule of the chain, for checkers in any language):

    {"baton_ledger": 1, "pool": "main", "first_seq": 1, "head_seq": 0, "head_hash": ""}
    {"seq": 1, "time_us": 1700000000000000, "payload": "{\\"v\\":1,\\"pool\\":\\"main\\", ...}"}
    ...
    {"end": {"last_seq": 9, "messages": 9, "head_seq": 9, "head_hash": "5f3c...", "sha256": "a01b..."}}

The first line names the head of the chain before the file, the last one the head after it, so that a ledger may lie in
several files. The payload is the text as stored, since its hash is what the next record names; a payload that is not
UTF-8 (it cannot be a record) is `payload_base64`. The end line makes a file that was cut short show, and its hash a void
message that was changed, which the chain does not cover. A name that ends in `.gz` means gzip.
"""

import base64
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from libs.ledger.chain import GENESIS, Head, next_head
from libs.ledger.tail import Stored
from libs.ports.private_files import sync_folder
from schemas.base import Name

FORMAT: Final = 1
_LONGEST_LINE = 16 * 1024 * 1024
"""A payload of 1 MiB takes at most six times as much when each of its characters must be escaped."""
_PUBLISHING = frozenset({"nats-msg-id", "nats-expected-last-sequence"})
"""Headers that only say how a record was published. They are not written: the first is the payload's hash."""
_POOL: TypeAdapter[str] = TypeAdapter(Name)


class BadLedgerFile(ValueError):
    """A file is not a whole ledger file; the text names the file and the line."""


@dataclass(frozen=True, slots=True)
class FileStart:
    """What a file begins with: the sequence of its first message, and the head of the chain before that."""

    pool: str
    first_seq: int = 1
    head: Head = GENESIS


@dataclass(frozen=True, slots=True)
class FileEnd:
    """What a file ends with: `sha256` is of all bytes before the last line, before compression."""

    last_seq: int
    messages: int
    head: Head
    sha256: str


class LedgerFileWriter:
    """Writes one file, which is there under its name only once it is whole: `finish` renames it.

    with LedgerFileWriter(path, FileStart("main")) as out:
        for stored in ...:
            out.add(stored)
        end = out.finish()
    """

    def __init__(self, path: Path, start: FileStart) -> None:
        self.path = path
        self.start = start
        self.head = start.head
        self.last_seq = start.first_seq - 1
        self.messages = 0
        self._sha = hashlib.sha256()
        self._part = path.with_name(path.name + ".part")
        self._file, self._out = _create(self._part, compressed=path.suffix == ".gz")

    def __enter__(self) -> Self:
        start = self.start
        self._line(
            {
                "baton_ledger": FORMAT,
                "pool": start.pool,
                "first_seq": start.first_seq,
                "head_seq": start.head.seq,
                "head_hash": start.head.hash,
            }
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:  # not finished
            for file in (self._out, self._file):
                with suppress(OSError):  # of a full disk, say: what raised first is told
                    file.close()
            with suppress(OSError):
                self._part.unlink()

    def add(self, stored: Stored) -> None:
        """The next message. Raises ValueError when it is not the one after the last."""
        if stored.seq != self.last_seq + 1:
            raise ValueError(f"message {stored.seq} follows {self.last_seq} in {self.path}")
        self._line(line_of(stored))
        self.head = next_head(self.head, self.start.pool, stored.seq, stored.payload)
        self.last_seq, self.messages = stored.seq, self.messages + 1

    def finish(self) -> FileEnd:
        """Writes the last line, makes the file durable and gives it its name."""
        end = FileEnd(self.last_seq, self.messages, self.head, self._sha.hexdigest())
        told = asdict(end) | {"head_seq": end.head.seq, "head_hash": end.head.hash}
        del told["head"]
        self._line({"end": told})
        if self._out is not self._file:
            self._out.close()  # closes the compression, not the file
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self.path)
        sync_folder(self.path.parent)
        return end

    def _line(self, value: dict[str, Any]) -> None:
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._sha.update(line)
        self._out.write(line)


def line_of(stored: Stored) -> dict[str, Any]:
    """A message as a file has it."""
    line: dict[str, Any] = {"seq": stored.seq, "time_us": stored.time_us}
    if headers := {name: text for name, text in stored.headers.items() if name.lower() not in _PUBLISHING}:
        line["headers"] = headers
    try:
        line["payload"] = stored.payload.decode()
    except UnicodeDecodeError:
        line["payload_base64"] = base64.b64encode(stored.payload).decode()
    return line


class LedgerFile:
    """Reads one file: `start` at once, each message as it is iterated, `end` once all are read.

    Raises BadLedgerFile for whatever is not such a file, or is cut short, or was changed where only `sha256` tells. That
    records continue the chain is not looked at here: see `libs.ledger.chain.judge`. `head` follows it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end: FileEnd | None = None
        self._number = 0
        self._line = b""
        """The line last read; `_sha` is of those before it."""
        self._sha = hashlib.sha256()
        self._in = cast(BinaryIO, gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb"))
        try:
            first = self._next()
            if first.get("baton_ledger") != FORMAT:
                raise self._bad(f"is no ledger file of format {FORMAT}: `baton ledger export` writes them")
            self.start = FileStart(
                self._pool(first),
                self._count(first, "first_seq"),
                Head(self._count(first, "head_seq"), self._text(first, "head_hash")),
            )
        except BaseException:
            self._in.close()
            raise
        self.head = self.start.head

    def __iter__(self) -> Iterator[Stored]:
        seq = self.start.first_seq - 1
        with self._in:
            while True:
                line = self._next()
                if "end" in line:
                    self.end = self._ended(line["end"], seq)
                    return
                seq += 1
                if self._count(line, "seq") != seq:
                    raise self._bad(f"is message {line['seq']}, and {seq} is missing")
                stored = Stored(seq, "", self._headers(line), self._payload(line), self._count(line, "time_us"))
                self.head = next_head(self.head, self.start.pool, seq, stored.payload)
                yield stored

    def _next(self) -> dict[str, Any]:
        self._sha.update(self._line)
        self._number += 1
        try:
            self._line = line = self._in.readline(_LONGEST_LINE)
        except (OSError, EOFError, zlib.error) as error:  # of gzip: cut short, or damaged
            raise self._bad(f"cannot be read ({error})") from error
        if not line.endswith(b"\n"):
            raise self._bad("is cut short, or longer than any record" if line else "is missing: the file is cut short")
        try:
            value = _parsed(line)
        except (ValueError, RecursionError) as error:
            raise self._bad(f"is not JSON ({error})") from error
        if not isinstance(value, dict):
            raise self._bad("is not a JSON object")
        return value

    def _ended(self, told: Any, seq: int) -> FileEnd:
        if not isinstance(told, dict):
            raise self._bad("has an `end` that is not a JSON object")
        head = Head(self._count(told, "head_seq"), self._text(told, "head_hash"))
        end = FileEnd(self._count(told, "last_seq"), self._count(told, "messages"), head, self._text(told, "sha256"))
        if (end.last_seq, end.messages) != (seq, seq - self.start.first_seq + 1):
            raise self._bad(f"says that the file ends with message {end.last_seq}, it ends with {seq}")
        if end.sha256 != self._sha.hexdigest():
            raise self._bad("has another SHA-256 than the lines before it: the file was changed after it was written")
        if end.head != self.head:
            raise self._bad(f"says that the chain ends with record {end.head.seq}, it ends with {self.head.seq}")
        if self._in.read(1):
            raise self._bad("is followed by more: nothing may follow the end")
        return end

    def _payload(self, line: dict[str, Any]) -> bytes:
        if "payload_base64" in line:
            text = self._text(line, "payload_base64")
            try:
                return base64.b64decode(text, validate=True)
            except ValueError as error:  # also what is not even ASCII
                raise self._bad(f"has a payload_base64 that is none ({error})") from error
        try:
            return self._text(line, "payload").encode()
        except UnicodeEncodeError as error:
            raise self._bad(f"has a payload that is no text ({error.reason})") from error

    def _headers(self, line: dict[str, Any]) -> dict[str, str]:
        value = line.get("headers", {})
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self._bad("has headers that are no object of texts")
        return value

    def _pool(self, line: dict[str, Any]) -> str:
        value = self._text(line, "pool")
        try:
            return _POOL.validate_python(value)
        except ValidationError:
            raise self._bad(f"names the pool {value!r}, which is no pool's name") from None

    def _text(self, line: dict[str, Any], name: str) -> str:
        value = line.get(name)
        if not isinstance(value, str):
            raise self._bad(f"has no text {name!r}")
        return value

    def _count(self, line: dict[str, Any], name: str) -> int:
        value = line.get(name)
        if type(value) is not int or value < 0:
            raise self._bad(f"has no number {name!r}")
        return value

    def _bad(self, what: str) -> BadLedgerFile:
        return BadLedgerFile(f"{self.path}: line {self._number} {what}")


def _parsed(line: bytes) -> Any:
    """A line's JSON, quickly; what the quick parser refuses, the exact one may read. Raises ValueError."""
    try:
        return from_json(line)
    except ValueError:
        return json.loads(line)


def _create(path: Path, *, compressed: bool) -> tuple[BinaryIO, BinaryIO]:
    """The file, and what to write to."""
    file = path.open("wb")
    if not compressed:
        return file, file
    # No name and no time inside: the same ledger gives the same bytes.
    return file, cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
