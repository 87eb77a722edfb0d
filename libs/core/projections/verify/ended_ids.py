"""The checker's own memory of ended jobs, to find one that is queued a second time.

An id may be used again once its client key counts no more (`libs.core.state.ended`), so ids of the last full days within
that window are enough; at the bound, the newest ones. A second queueing beyond that is not found. Placement remembers
more and longer than this, so what is found here is never a lawful reuse.

The newest ids are a set; once it is full, or its day is over, it is put down as a sorted array of 8 bytes for each.
"""

from array import array
from bisect import bisect_left
from collections import deque

from libs.core.state.ended import DAY_US, KEPT_US

REMEMBERED = 2_000_000
"""Ids kept, 8 bytes each: 16 MB. The newest of them, `_AT_ONCE` at the most, take some 8 MB more."""
_AT_ONCE = 100_000
_PARTS = REMEMBERED // _AT_ONCE + KEPT_US // DAY_US + 1


class EndedIds:
    """Ids in parts, each of one day and of `_AT_ONCE` ids at the most, dropped as a whole. Time is the ledger's."""

    def __init__(self) -> None:
        self._day, self._newest = 0, set[int]()
        self._before: deque[tuple[int, array[int]]] = deque(maxlen=_PARTS - 1)
        """Oldest first, each with its day, sorted."""

    def add(self, job_id: str, t_us: int) -> None:
        """The job ended at `t_us`."""
        day = t_us // DAY_US
        if self._newest and (self._day != day or len(self._newest) >= _AT_ONCE):
            self._before.append((self._day, array("Q", sorted(self._newest))))
            self._newest = set()
        self._day = day
        self._newest.add(_short(job_id))

    def has(self, job_id: str, t_us: int) -> bool:
        """Whether it ended lately. Nothing is said of the day that the window begins in: part of it is outside."""
        begins, short = (t_us - KEPT_US) // DAY_US, _short(job_id)
        while self._before and self._before[0][0] <= begins:
            self._before.popleft()
        if self._day <= begins:
            self._newest.clear()
        return short in self._newest or any(_holds(ids, short) for _, ids in self._before)


def _holds(ids: "array[int]", short: int) -> bool:
    at = bisect_left(ids, short)
    return at < len(ids) and ids[at] == short


def _short(job_id: str) -> int:
    """60 bits of an id, nearly all of them a hash."""
    return int(job_id[-15:], 16)
