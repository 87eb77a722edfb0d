"""The jobs of one queue by age, such that a place in it is found without walking it.

A plain ordered dict costs a sort for each job that comes back to its age, and a walk over all older jobs for each question how
many stand before one. Here both cost a bisection: the jobs lie in short sorted lists, one after another. Each list knows
the newest time at which one of its jobs was queued, so that those whose reservation is due are passed by list by list.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

LIST = 512
"""Jobs of one list."""


class Aged(Protocol):
    """What a line knows of a job. None of it changes while the job waits."""

    @property
    def id(self) -> str: ...
    @property
    def submitted_us(self) -> int: ...
    @property
    def queued_us(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def preemptions(self) -> int: ...


_AGE: Any = attrgetter("submitted_us", "id")


class Line:
    """Jobs, the oldest (lowest submitted_us, then id) first. Iterating gives their ids."""

    __slots__ = ("_length", "_lists", "_newest", "_size", "attempts", "preemptions")

    def __init__(self, length: int = LIST) -> None:
        """`length`: of each list; one of twice as many is divided."""
        self._length = length
        self._lists: list[list[Aged]] = []
        self._newest: list[int] = []
        """Of each list: the highest queued_us in it."""
        self._size = 0
        self.attempts = 0
        """Of all its jobs together; `preemptions` too."""
        self.preemptions = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        for one in self._lists:
            for job in one:
                yield job.id

    def __contains__(self, job: Aged) -> bool:
        which, at = self._find(job)
        return which < len(self._lists) and at < len(self._lists[which]) and self._lists[which][at].id == job.id

    def add(self, job: Aged) -> None:
        """The job, which does not stand here yet, gets its place."""
        self._size += 1
        self.attempts += job.attempts
        self.preemptions += job.preemptions
        if not self._lists:
            self._lists.append([job])
            self._newest.append(job.queued_us)
            return
        which = len(self._lists) - 1
        if _AGE(job) > _AGE(self._lists[which][-1]):  # nearly always: jobs come in order of age
            self._lists[which].append(job)
        else:
            which = min(self._find(job)[0], which)
            insort(self._lists[which], job, key=_AGE)
        if job.queued_us > self._newest[which]:
            self._newest[which] = job.queued_us
        if len(self._lists[which]) >= 2 * self._length:
            self._divide(which)

    def remove(self, job: Aged) -> None:
        """The job stands here no longer. Raises KeyError when it does not."""
        which, at = self._find(job)
        if which == len(self._lists) or at == len(self._lists[which]) or self._lists[which][at].id != job.id:
            raise KeyError(job.id)
        one = self._lists[which]
        queued_us = one.pop(at).queued_us
        self._size -= 1
        self.attempts -= job.attempts
        self.preemptions -= job.preemptions
        if not one:
            del self._lists[which], self._newest[which]
        elif (
            queued_us == self._newest[which] and queued_us != one[-1].queued_us
        ):  # many come with one record: all as new as it
            self._newest[which] = max(other.queued_us for other in one)

    def with_last(self, job: Aged) -> "Line":
        """A copy in which the job stands, at its age. Lists that it does not touch are shared, so neither may change."""
        copy = Line(self._length)
        copy._lists, copy._newest, copy._size = list(self._lists), list(self._newest), self._size
        copy.attempts, copy.preemptions = self.attempts, self.preemptions
        which = min(self._find(job)[0], len(copy._lists) - 1)
        for near in {which, len(copy._lists) - 1} if copy._lists else ():
            copy._lists[near] = list(copy._lists[near])
        copy.add(job)
        return copy

    def before(self, submitted_us: int, job_id: str) -> int:
        """How many stand before the place of a job of this age, whether it stands here or not."""
        which, at = self._place(submitted_us, job_id)
        return sum(map(len, islice(self._lists, which))) + at

    def queued_after(self, queued_us: int, submitted_us: int, job_id: str, but_not: Collection[str] = ()) -> int:
        """How many stand before the first job, none of `but_not`, that is at this place or behind and was queued after
        `queued_us`; all, without one."""
        which, at = self._place(submitted_us, job_id)
        passed = sum(map(len, islice(self._lists, which)))
        for number in range(which, len(self._lists)):
            if self._newest[number] > queued_us:
                one = self._lists[number]
                for place in range(at, len(one)):
                    if one[place].queued_us > queued_us and one[place].id not in but_not:
                        return passed + place
            passed += len(self._lists[number])
            at = 0
        return passed

    def last_queued_after(
        self, queued_us: int, submitted_us: int, job_id: str, but_not: Collection[str] = ()
    ) -> str | None:
        """The id of the last job, none of `but_not`, before this place that was queued after `queued_us`; None without one."""
        which, at = self._place(submitted_us, job_id)
        for number in range(min(which, len(self._lists) - 1), -1, -1):
            if self._newest[number] > queued_us:
                one = self._lists[number]
                for place in range((at if number == which else len(one)) - 1, -1, -1):
                    if one[place].queued_us > queued_us and one[place].id not in but_not:
                        return one[place].id
        return None

    def _find(self, job: Aged) -> tuple[int, int]:
        return self._place(job.submitted_us, job.id)

    def _place(self, submitted_us: int, job_id: str) -> tuple[int, int]:
        """(list, place in it) where a job of this age stands or would stand."""
        place = (submitted_us, job_id)
        if not self._lists:
            return 0, 0
        which = max(0, bisect_right(self._lists, place, key=_first) - 1) if len(self._lists) > 1 else 0
        at = bisect_left(self._lists[which], place, key=_AGE)
        if at == len(self._lists[which]) and which + 1 < len(self._lists):
            return which + 1, 0
        return which, at

    def _divide(self, which: int) -> None:
        one = self._lists[which]
        halves = [one[: self._length], one[self._length :]]
        self._lists[which : which + 1] = halves
        self._newest[which : which + 1] = [max(job.queued_us for job in half) for half in halves]


def _first(one: list[Aged]) -> tuple[int, str]:
    return one[0].submitted_us, one[0].id
