"""A table as it was at one moment, encoded little by little while it goes on changing.

A state of 500,000 jobs takes seconds to encode, and a decision may not wait for that. To copy it first would take as long.
So the cut shares all rows with the table, and a row that is about to change is encoded first (copy on write, by row). The
price is one dict copy at the start, and the encoding of each row that changes before its turn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")
V = TypeVar("V")
E = TypeVar("E")

ROWS = 100
"""Rows in one part, so that a part takes some milliseconds."""


class Cut(Generic[V, E]):
    """The rows of `table`, each as `encode` (key and row) has it, in the table's order; `join` makes a part of some of them.

    What `encode` gives must not change when the row does.
    """

    def __init__(
        self, table: dict[str, V], encode: Callable[[str, V], E], join: Callable[[Iterable[E]], bytes]
    ) -> None:
        self._order = list(table)
        self._left = table.copy()
        self._encode = encode
        self._join = join
        self._early: dict[str, E] = {}

    def before_change(self, key: str) -> None:
        """Row `key` of the table is about to change or to go."""
        row = self._left.pop(key, None)
        if row is not None:
            self._early[key] = self._encode(key, row)

    def parts(self) -> Iterator[bytes]:
        """Up to `ROWS` rows each; to be read once."""
        for keys in chunks(self._order, ROWS):
            yield self._join(map(self._take, keys))

    def _take(self, key: str) -> E:
        row = self._left.pop(key, None)
        return self._early.pop(key) if row is None else self._encode(key, row)


class Cuts(Generic[V]):
    """The cuts of one table that are not read to their end. They are held weakly: a cut without a reader disappears."""

    def __init__(self) -> None:
        self._open: list[ref[Cut[V, Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def take(
        self, table: dict[str, V], encode: Callable[[str, V], E], join: Callable[[Iterable[E]], bytes]
    ) -> Cut[V, E]:
        """A cut of `table` as it is now."""
        cut = Cut(table, encode, join)
        self._open.append(ref(cut, self._open.remove))
        return cut

    def before_change(self, key: str) -> None:
        for reference in tuple(self._open):
            if (cut := reference()) is not None:
                cut.before_change(key)


def chunks(rows: Sequence[T], size: int = ROWS) -> Iterator[Sequence[T]]:
    """`rows` in order, up to `size` at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
