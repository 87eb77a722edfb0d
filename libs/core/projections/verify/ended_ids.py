"""The checker's own memory of ended jobs, to find one that is queued a second time.

An id may be used again once its client key counts no more (`libs.core.state.ended`), so ids of the last full days within
that window are enough; at the bound, the newest ones. A second queueing beyond that is not found. Placement remembers
more and longer than this, so what is found here is never a lawful reuse.
"""

from collections import deque

from libs.core.state.ended import DAY_US, KEPT_US

REMEMBERED = 2_000_000
"""Ids kept, about 80 bytes each; a set per day may come on top."""
_AT_ONCE = 100_000
_SETS = REMEMBERED // _AT_ONCE + KEPT_US // DAY_US + 1


class EndedIds:
    """Sets of ids, each of one day and of `_AT_ONCE` ids at the most, dropped as a whole. Time is the ledger's."""

    def __init__(self) -> None:
        self._sets: deque[tuple[int, set[int]]] = deque(maxlen=_SETS)

    def add(self, job_id: str, t_us: int) -> None:
        """The job ended at `t_us`."""
        day = t_us // DAY_US
        if not self._sets or self._sets[-1][0] != day or len(self._sets[-1][1]) >= _AT_ONCE:
            self._sets.append((day, set()))
        self._sets[-1][1].add(_short(job_id))

    def has(self, job_id: str, t_us: int) -> bool:
        """Whether it ended lately. Nothing is said of the day that the window begins in: part of it is outside."""
        begins, short = (t_us - KEPT_US) // DAY_US, _short(job_id)
        while self._sets and self._sets[0][0] <= begins:
            self._sets.popleft()
        return any(short in ids for _, ids in self._sets)


def _short(job_id: str) -> int:
    """60 bits of an id, nearly all of them a hash: 32 bytes as an object."""
    return int(job_id[-15:], 16)
