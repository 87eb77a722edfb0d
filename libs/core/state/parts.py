"""Tables as a sequence of byte strings of bounded size, and back: how a projection is written to a snapshot.

A state is `about` (small, one JSON object) and tables (large, rows of JSON). The first part is `about`; each other part
is `[table, rows]` with at most `ROWS` rows. So neither encoding nor reading ever needs a second copy of the state.

What no later state changes may be `SharedParts`: many snapshots have them, and they are stored once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")

ROWS = 2000
"""Rows in one part: a few hundred KB, some milliseconds to encode."""
SHARED_ROWS = 16
"""Rows in `SharedParts`, each a block of some 100 KB."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Parts that no later state changes."""

    key: str
    """The hash of their content."""
    make: Callable[[], Iterable[bytes]] = field(compare=False)


Part = bytes | SharedParts


class SharedTable:
    """A table that only grows, of large rows: each `SHARED_ROWS` of them, from the first on, are `SharedParts`."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._keys: list[str] = []

    def rows(self, things: Sequence[T], dump: Callable[[T], Any]) -> Iterator[Any]:
        """For `write_sharing`. `dump` makes a row of a thing, the same one each time."""
        end = len(things) - len(things) % SHARED_ROWS
        for first in range(0, end, SHARED_ROWS):
            make = partial(self._made, things[first : first + SHARED_ROWS], dump)
            if first == len(self._keys) * SHARED_ROWS:
                digest = hashlib.sha256()
                for part in make():
                    digest.update(part)
                self._keys.append(digest.hexdigest())
            yield SharedParts(self._keys[first // SHARED_ROWS], make)
        yield from map(dump, things[end:])

    def _made(self, things: Sequence[T], dump: Callable[[T], Any]) -> Iterator[bytes]:
        return (_encode([self._table, [dump(one)]]) for one in things)


def whole(parts: Iterable[Part]) -> Iterator[bytes]:
    """The parts with those that are shared in their places."""
    for part in parts:
        if isinstance(part, SharedParts):
            yield from part.make()
        else:
            yield part


_NONE: Mapping[str, int] = MappingProxyType({})


def write(
    about: Mapping[str, Any],
    tables: Mapping[str, Iterable[Any]],
    rows: int = ROWS,
    *,
    largest: Mapping[str, int] = _NONE,
) -> Iterator[bytes]:
    """The parts, in the order of `tables` and of their rows. The tables must not change until the last part is taken.

    `largest`: the rows in one part of tables whose rows are so large that `rows` of them are too many.
    """
    return whole(write_sharing(about, tables, rows, largest=largest))


def write_sharing(
    about: Mapping[str, Any],
    tables: Mapping[str, Iterable[Any]],
    rows: int = ROWS,
    *,
    largest: Mapping[str, int] = _NONE,
) -> Iterator[Part]:
    """As `write`; what stands as `SharedParts` in the place of rows stays so."""
    yield _encode(about)
    for table, all_rows in tables.items():
        most = largest.get(table, rows)
        chunk: list[Any] = []
        for row in all_rows:
            shared = isinstance(row, SharedParts)
            if not shared:
                chunk.append(row)
            if chunk and (shared or len(chunk) >= most):
                yield _encode([table, chunk])
                chunk = []
            if shared:
                yield row
        if chunk:
            yield _encode([table, chunk])


def read(parts: Iterable[Part]) -> tuple[dict[str, Any], Iterator[tuple[str, list[Any]]]]:
    """`about`, and then (table, some of its rows) in the order in which they were written. Raises ValueError."""
    rest = whole(parts)
    first = next(rest, None)
    if first is None:
        raise ValueError("there is no part")
    return json.loads(first), ((table, rows) for table, rows in map(json.loads, rest))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
