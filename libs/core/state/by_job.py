"""A table by job, for readers that keep a little of each job that has not ended: most of what they take is the id.

An id is 36 characters, 96 bytes as a string that no other reader of the process shares; its digits as a number are 48, and a
dict has another 50 for each entry. Of many jobs the digits lie one after the other as bytes: 30 for all of it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import ge
from typing import Generic, TypeVar

from schemas.ids import JOB_ID_DIGITS, JOB_ID_PREFIX, is_job_id

V = TypeVar("V")

_LATELY = 256
"""Ids that are remembered: an event looks for its job several times, and its job's events follow each other."""
_FRESH = 1024
"""Jobs in a dict, which is quicker."""
_WIDTH, _MOST = JOB_ID_DIGITS // 2, 128
"""Bytes of an id's digits, and ids in a block."""


@lru_cache(maxsize=_LATELY)
def packed_id(job_id: str) -> int | str:
    """The digits of an id as a number; anything else as it is."""
    return _packed(job_id)


def _packed(job_id: str) -> int | str:
    return int(job_id.removeprefix(JOB_ID_PREFIX), 16) if is_job_id(job_id) else job_id


def unpacked_id(packed: int | str) -> str:
    """The inverse of `packed_id`."""
    return f"{JOB_ID_PREFIX}{packed:0{JOB_ID_DIGITS}x}" if isinstance(packed, int) else packed


class ByJob(MutableMapping[str, V]):
    """As a dict with job ids as its keys. The first `_FRESH` and those that came last lie in one, in order of insertion; behind
    them, and before them in the order, those of `_Blocks`."""

    __slots__ = ("_fresh", "_full", "_old")

    def __init__(self) -> None:
        self._fresh: dict[int | str, V] = {}
        self._full = _FRESH
        self._old: _Blocks[V] = _Blocks()

    def __getitem__(self, job_id: str) -> V:
        packed = packed_id(job_id)
        try:
            return self._fresh[packed]
        except KeyError:
            return self._old[packed]

    def __setitem__(self, job_id: str, value: V) -> None:
        self._set(packed_id(job_id), value)

    def fill(self, rows: Iterable[tuple[str, V]]) -> None:
        """Adds many of them, as a start does: none is looked for again soon."""
        added = [(_packed(job_id), value) for job_id, value in rows]
        many = len(added) >= _FRESH
        if many:
            self._move()
        if not (many and self._old.put_last(added)):
            for packed, value in added:
                self._set(packed, value)

    def __delitem__(self, job_id: str) -> None:
        packed = packed_id(job_id)
        try:
            del self._fresh[packed]
        except KeyError:
            del self._old[packed]

    def __contains__(self, job_id: object) -> bool:
        if not isinstance(job_id, str):
            return False
        packed = packed_id(job_id)
        return packed in self._fresh or packed in self._old

    def __iter__(self) -> Iterator[str]:
        for packed in self._old:
            yield unpacked_id(packed)
        for fresh in self._fresh:
            yield unpacked_id(fresh)

    def __len__(self) -> int:
        return len(self._old) + len(self._fresh)

    def _set(self, packed: int | str, value: V) -> None:
        if not self._old.put_in_place(packed, value):
            self._fresh[packed] = value
            if len(self._fresh) >= self._full:
                self._move()

    def _move(self) -> None:
        """All that is fresh lies in blocks from now on, but what is no job's id."""
        others: dict[int | str, V] = {}
        for packed, value in self._fresh.items():
            if isinstance(packed, int):
                self._old.put_new(packed, value)
            else:
                others[packed] = value
        self._fresh, self._full = others, _FRESH + len(others)


class _Blocks(Generic[V]):
    """Values by number of 128 bits. The numbers lie as bytes in blocks of at most `_MOST`, and each block has those from its
    first bound up to the next block's; within, they are in no order. A full block is halved at its median, so nobody who
    chooses the numbers can make a long one."""

    __slots__ = ("_bounds", "_count", "_keys", "_values")

    def __init__(self) -> None:
        self._bounds: list[bytes] = [b""]  # the least number that may lie in the block, ascending
        self._keys: list[bytearray] = [bytearray()]
        self._values: list[list[V]] = [[]]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Ascending."""
        for keys in self._keys:
            for key in sorted(_split(keys)):
                yield int.from_bytes(key)

    def __contains__(self, number: int | str) -> bool:
        return self._find(number) is not None

    def __getitem__(self, number: int | str) -> V:
        found = self._find(number)
        if found is None:
            raise KeyError(number)
        block, place = found
        return self._values[block][place]

    def put_in_place(self, number: int | str, value: V) -> bool:
        """Whether the number is here, which then has this value."""
        found = self._find(number)
        if found is None:
            return False
        block, place = found
        self._values[block][place] = value
        return True

    def put_new(self, number: int, value: V) -> None:
        """A number that is not here."""
        key = number.to_bytes(_WIDTH)
        block = bisect_right(self._bounds, key) - 1
        self._keys[block] += key
        self._values[block].append(value)
        self._count += 1
        if len(self._values[block]) > _MOST:
            self._halve(block)

    def put_last(self, added: Sequence[tuple[int | str, V]]) -> bool:
        """Whether these are numbers, ascending, and above all that are here: they are here then."""
        keys = [number.to_bytes(_WIDTH) for number, _ in added if isinstance(number, int)]
        last = max(_split(self._keys[-1]), default=self._bounds[-1])
        if len(keys) < len(added) or any(map(ge, chain((last,), keys), keys)):
            return False
        for start in range(0, len(keys), _MOST // 2):
            end = start + _MOST // 2
            self._bounds.append(keys[start])
            self._keys.append(bytearray().join(keys[start:end]))
            self._values.append([value for _, value in added[start:end]])
        self._count += len(keys)
        return True

    def __delitem__(self, number: int | str) -> None:
        found = self._find(number)
        if found is None:
            raise KeyError(number)
        block, place = found
        keys, values = self._keys[block], self._values[block]
        keys[place * _WIDTH : (place + 1) * _WIDTH] = keys[-_WIDTH:]
        del keys[-_WIDTH:]
        values[place] = values[-1]
        del values[-1]
        self._count -= 1
        if block and len(values) + len(self._values[block - 1]) < _MOST // 2:
            self._join(block)

    def _find(self, number: int | str) -> tuple[int, int] | None:
        """(block, place in it)."""
        if not self._count or not isinstance(number, int):
            return None
        key = number.to_bytes(_WIDTH)
        block = bisect_right(self._bounds, key) - 1
        keys = self._keys[block]
        at = keys.find(key)
        while at % _WIDTH and at > 0:  # across two others
            at = keys.find(key, at + 1)
        return None if at < 0 else (block, at // _WIDTH)

    def _halve(self, block: int) -> None:
        keys, values = _split(self._keys[block]), self._values[block]
        ascending = sorted(range(len(keys)), key=keys.__getitem__)
        low, high = ascending[: len(keys) // 2], ascending[len(keys) // 2 :]
        self._bounds.insert(block + 1, keys[high[0]])
        self._keys[block : block + 1] = [bytearray().join(keys[place] for place in part) for part in (low, high)]
        self._values[block : block + 1] = [[values[place] for place in part] for part in (low, high)]

    def _join(self, block: int) -> None:
        """Its content goes to the block before it."""
        self._keys[block - 1] += self._keys.pop(block)
        self._values[block - 1] += self._values.pop(block)
        del self._bounds[block]


def _split(keys: bytearray) -> list[bytes]:
    return [bytes(keys[at : at + _WIDTH]) for at in range(0, len(keys), _WIDTH)]


class RecentByJob(MutableMapping[str, V]):
    """As a `ByJob` of the jobs that were added last, `most` at the most and half as many at the least: there are two
    generations, and the older one goes as a whole."""

    def __init__(self, most: int) -> None:
        self._each = max(1, most // 2)
        self._new: ByJob[V] = ByJob()
        self._old: ByJob[V] = ByJob()

    def __getitem__(self, job_id: str) -> V:
        return self._new[job_id] if job_id in self._new else self._old[job_id]

    def __setitem__(self, job_id: str, value: V) -> None:
        if len(self._new) >= self._each and job_id not in self._new:
            self._old, self._new = self._new, ByJob()
        self._new[job_id] = value

    def __delitem__(self, job_id: str) -> None:
        found = [one for one in (self._new, self._old) if job_id in one]
        if not found:
            raise KeyError(job_id)
        for one in found:
            del one[job_id]

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._new or job_id in self._old

    def __iter__(self) -> Iterator[str]:
        yield from (job for job in self._old if job not in self._new)
        yield from self._new

    def __len__(self) -> int:
        return sum(1 for _ in self)
