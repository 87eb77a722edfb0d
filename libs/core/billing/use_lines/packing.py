"""Packs tables keyed by job id: each id once, sorted, 16 bytes; other fields in compressed columns.

A row of a few numbers takes some 10 bytes besides its id, instead of a kilobyte as objects. A column stores the first
bytes of all its numbers, then the second bytes, and so on, because most of these are equal.
"""

import json
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from libs.core.state.by_job import packed_id
from schemas.ids import JOB_ID_DIGITS, JOB_ID_PREFIX

_WIDTH, _BYTES, _LENGTH_BYTES = JOB_ID_DIGITS // 2, 8, 4
"""Bytes of an id, of a number in a column, and of a length."""
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class JobIds:
    """Distinct job ids, numbered. `others`: names that are no job ids."""

    digits: bytes
    others: tuple[str, ...]

    @classmethod
    def of(cls, job_ids: Iterable[str]) -> "JobIds":
        """The set of these ids."""
        packed = set(map(packed_id, job_ids))
        numbers = sorted(one for one in packed if isinstance(one, int))
        others = sorted(one for one in packed if isinstance(one, str))
        return cls(b"".join(one.to_bytes(_WIDTH) for one in numbers), tuple(others))

    @classmethod
    def load(cls, row: Sequence[Any]) -> "JobIds":
        """The inverse of `dump`."""
        digits, others = row
        return cls(b64decode(digits), tuple(others))

    def dump(self) -> list[Any]:
        return [b64encode(self.digits).decode(), self.others]

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, str) and self.number(job_id) is not None

    def number(self, job_id: str) -> int | None:
        """The id's number; None if absent."""
        packed = packed_id(job_id)
        count = len(self.digits) // _WIDTH
        if isinstance(packed, str):
            return count + self.others.index(packed) if packed in self.others else None
        key = packed.to_bytes(_WIDTH)
        at = bisect_left(range(count), key, key=self._digits)
        return at if at < count and self._digits(at) == key else None

    def numbers(self) -> dict[str, int]:
        """Id -> number."""
        return {job_id: number for number, job_id in enumerate(self.all())}

    def all(self) -> list[str]:
        """Ids by number."""
        return [self.name(number) for number in range(len(self.digits) // _WIDTH + len(self.others))]

    def name(self, number: int) -> str:
        """The id of a number."""
        count = len(self.digits) // _WIDTH
        return JOB_ID_PREFIX + self._digits(number).hex() if number < count else self.others[number - count]

    def _digits(self, at: int) -> bytes:
        return self.digits[at * _WIDTH : (at + 1) * _WIDTH]


class Numbering(Generic[T]):
    """Numbers things in order of first use."""

    def __init__(self) -> None:
        self.all: dict[T, int] = {}

    def __call__(self, name: T) -> int:
        return self.all.setdefault(name, len(self.all))


Integers = npt.NDArray[np.int64] | npt.NDArray[np.object_]


def running_sums(column: Integers) -> Integers:
    """Exact running sums: Python integers where 64 bits might overflow."""
    sums: Integers
    if column.dtype == np.object_ or np.abs(column, dtype=np.float64).sum() < 2**62:
        sums = column.cumsum()
    else:
        sums = np.array(list(accumulate(column.tolist())), np.object_)
    return sums


def packed_columns(columns: Sequence[Sequence[int]], beside: Any) -> bytes:
    """Packs columns of equal length, with any JSON value `beside` them."""
    large: dict[int, Sequence[int]] = {}
    planes: list[bytes] = []
    for at, column in enumerate(columns):
        try:
            numbers = np.array(column, np.int64)
        except OverflowError:
            large[at] = column
        else:
            planes.append(numbers.view(np.uint8).reshape(-1, _BYTES).T.tobytes())
    head = json.dumps([len(columns), list(large.items()), beside], separators=(",", ":")).encode()
    return zlib.compress(b"".join((len(head).to_bytes(_LENGTH_BYTES), head, *planes)))


def unpacked_columns(packed: bytes) -> tuple[list[Integers], Any]:
    """The inverse of `packed_columns`; tuples in `beside` become lists."""
    raw = zlib.decompress(packed)
    start = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES])
    count, large_values, beside = json.loads(raw[_LENGTH_BYTES:start])
    large: dict[int, list[int]] = dict(large_values)
    size = (len(raw) - start) // max(1, count - len(large))
    columns: list[Integers] = []
    for at in range(count):
        if at in large:
            columns.append(np.array(large[at], np.object_))
            continue
        plane = np.frombuffer(raw, np.uint8, size, start).reshape(_BYTES, -1)
        columns.append(np.ascontiguousarray(plane.T).view(np.int64).reshape(-1))
        start += size
    return columns, beside
