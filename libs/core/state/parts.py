"""Tables as a sequence of byte strings of bounded size, and back: how a projection is written to a snapshot.

A state is `about` (small, one JSON object) and tables (large, rows of JSON). The first part is `about`; each other part
is `[table, rows]` with at most `ROWS` rows. So neither encoding nor reading ever needs a second copy of the state.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

ROWS = 2000
"""Rows in one part: a few hundred KB, some milliseconds to encode."""


def write(
    about: Mapping[str, Any],
    tables: Mapping[str, Iterable[Any]],
    rows: int = ROWS,
    *,
    largest: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[bytes]:
    """The parts, in the order of `tables` and of their rows. The tables must not change until the last part is taken.

    `largest`: the rows in one part of tables whose rows are so large that `rows` of them are too many.
    """
    yield _encode(about)
    for table, all_rows in tables.items():
        most = largest.get(table, rows)
        chunk: list[Any] = []
        for row in all_rows:
            chunk.append(row)
            if len(chunk) >= most:
                yield _encode([table, chunk])
                chunk = []
        if chunk:
            yield _encode([table, chunk])


def read(parts: Iterable[bytes]) -> tuple[dict[str, Any], Iterator[tuple[str, list[Any]]]]:
    """`about`, and then (table, some of its rows) in the order in which they were written. Raises ValueError."""
    rest = iter(parts)
    first = next(rest, None)
    if first is None:
        raise ValueError("there is no part")
    return json.loads(first), ((table, rows) for table, rows in map(json.loads, rest))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
