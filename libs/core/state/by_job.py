"""A table by job, for readers that keep a little of each job that has not ended: most of what they take is the id.

An id is 36 characters, 96 bytes as a string that no other reader of the process shares; its digits as a number are 48.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from functools import lru_cache
from typing import TypeVar

from schemas.ids import JOB_ID_DIGITS, JOB_ID_PREFIX, is_job_id

V = TypeVar("V")

_LATELY = 256
"""Ids that are remembered: an event looks for its job several times, and its job's events follow each other."""


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
    """As a dict with job ids as its keys, in order of insertion."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int | str, V] = {}

    def __getitem__(self, job_id: str) -> V:
        found: V = self._of[packed_id(job_id)]
        return found

    def __setitem__(self, job_id: str, value: V) -> None:
        self._of[packed_id(job_id)] = value

    def fill(self, rows: Iterable[tuple[str, V]]) -> None:
        """Adds many of them, as a start does: none is looked for again soon."""
        self._of.update((_packed(job_id), value) for job_id, value in rows)

    def __delitem__(self, job_id: str) -> None:
        del self._of[packed_id(job_id)]

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, str) and packed_id(job_id) in self._of

    def __iter__(self) -> Iterator[str]:
        return map(unpacked_id, self._of)

    def __len__(self) -> int:
        return len(self._of)


class LatelyByJob(MutableMapping[str, V]):
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
