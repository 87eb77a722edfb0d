"""Remembers ended jobs, to find one that is queued a second time.

An id may be used again once its client key has expired (`libs.core.state.ended`), so the ids of the last full days in
that window are enough, at most the newest `REMEMBERED`. A later second queueing is not found. Placement remembers more
and longer, so every finding is a violation.

The newest ids are a set. When it is full, or its day is over, it becomes a sorted array of 8 bytes per id.
"""

from array import array
from bisect import bisect_left
from collections import deque

from libs.core.state.ended import DAY_US, KEPT_US

REMEMBERED = 2_000_000
"""Ids kept, 8 bytes each: 16 MB. The newest, at most `_AT_ONCE`, take some 8 MB more."""
_AT_ONCE = 100_000
_PARTS = REMEMBERED // _AT_ONCE + KEPT_US // DAY_US + 1


class EndedIds:
    """Ids in parts, each of one day and at most `_AT_ONCE` ids; parts are dropped whole. Time is ledger time."""

    def __init__(self) -> None:
        self._day, self._newest = 0, set[int]()
        self._before: deque[tuple[int, array[int]]] = deque(maxlen=_PARTS - 1)
        """(day, sorted ids), oldest first."""

    def add(self, job_id: str, t_us: int) -> None:
        """Adds a job that ended at `t_us`."""
        day = t_us // DAY_US
        if self._newest and (self._day != day or len(self._newest) >= _AT_ONCE):
            self._before.append((self._day, array("Q", sorted(self._newest))))
            self._newest = set()
        self._day = day
        self._newest.add(_short(job_id))

    def has(self, job_id: str, t_us: int) -> bool:
        """Whether it ended recently. The window's first day is ignored, since part of it is outside."""
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
