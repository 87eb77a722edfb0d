"""A projection small enough to see through: which records it was given, in parts of three."""

import json
from collections.abc import Iterable, Iterator
from typing import ClassVar

from schemas.ledger import EVENT_KINDS, LedgerRecord


class Tally:
    """`seen`: (sequence, the record's t_us), None for a void one. Refuses to be given anything twice or out of order."""

    version: ClassVar[int] = 1
    handled: ClassVar[frozenset[str]] = frozenset(EVENT_KINDS)
    ignored: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def apply(self, record: LedgerRecord, seq: int) -> str:
        self._next(seq)
        self.seen.append((seq, record.t_us))
        return f"told of {seq}"

    def skip(self, seq: int) -> None:
        self._next(seq)
        self.seen.append((seq, None))

    def _next(self, seq: int) -> None:
        assert seq == len(self.seen) + 1, f"{seq} comes after {len(self.seen)}"

    def dump(self) -> Iterator[bytes]:
        for start in range(0, len(self.seen), 3):
            yield json.dumps(self.seen[start : start + 3]).encode()

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "Tally":
        tally = cls()
        tally.seen = [(seq, t_us) for part in parts for seq, t_us in json.loads(part)]
        return tally
