"""Queues that are ordered by a number per job: their waiting jobs, the lowest number first."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator

from libs.core.state.job import QueueKey

PlaceInLine = tuple[int, int, str]
"""Number (thousandths), submitted_us, job id."""


class NumberedLines:
    """A line for each queue. A job stands in one of them at the most."""

    def __init__(self) -> None:
        self._places: dict[str, PlaceInLine] = {}
        self._lines: dict[QueueKey, list[PlaceInLine]] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._places

    def __iter__(self) -> Iterator[str]:
        """All that stand, in the order in which `renumber` takes numbers."""
        return (job_id for line in self._lines.values() for _, _, job_id in line)

    def stand(self, key: QueueKey, place: PlaceInLine) -> None:
        self._places[place[2]] = place
        insort(self._lines.setdefault(key, []), place)

    def leave(self, key: QueueKey, job_id: str) -> None:
        place = self._places.pop(job_id, None)
        if place is not None:
            line = self._lines[key]
            del line[bisect_left(line, place)]
            if not line:
                del self._lines[key]

    def renumber(self, numbers: Iterable[int]) -> None:
        """Another number for each, in the order of `__iter__`."""
        fresh = iter(numbers)
        for line in self._lines.values():
            line[:] = [(next(fresh), submitted_us, job_id) for _, submitted_us, job_id in line]
            line.sort()
            self._places.update((place[2], place) for place in line)

    def clear(self) -> None:
        self._places.clear()
        self._lines.clear()

    def number(self, job_id: str) -> int | None:
        """None: it does not stand here."""
        place = self._places.get(job_id)
        return None if place is None else place[0]

    def of(self, key: QueueKey) -> Iterator[str]:
        """The jobs of a queue in their order."""
        for _, _, job_id in self._lines.get(key, ()):
            yield job_id

    def before_job(self, key: QueueKey, job_id: str | None, but: Collection[str]) -> int:
        """How many of a queue's line stand before a job in it (None: behind all), `but` not counted."""
        return self.before(key, None if job_id is None else self._places[job_id], but)

    def before(self, key: QueueKey, place: PlaceInLine | None, but: Collection[str]) -> int:
        """How many of a queue's line stand before this number, age and id (None: behind all), `but` not counted."""
        line = self._lines.get(key, [])
        stop = len(line) if place is None else bisect_left(line, place)
        left_out = [self._places[job_id] for job_id in but if job_id in self._places]
        return stop - sum(_stands(line, one) for one in left_out if place is None or one < place)


def _stands(line: list[PlaceInLine], place: PlaceInLine) -> bool:
    at = bisect_left(line, place)
    return at < len(line) and line[at] == place
