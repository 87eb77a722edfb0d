"""When jobs of a pool were preempted lately: as far as a limit may look back."""

from collections import deque
from collections.abc import Iterable

from schemas.queues import LONGEST_PER_POOL_S

_KEPT_US = LONGEST_PER_POOL_S * 1_000_000


class RecentPreemptions:
    """Moments with how many gave way then, the oldest first. Bounded by what the limit lets through in that time."""

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        self._counts = deque(counts)

    def note(self, t_us: int) -> None:
        """One more gives way at `t_us`."""
        counts = self._counts
        known = counts.pop()[1] if counts and counts[-1][0] == t_us else 0
        counts.append((t_us, known + 1))
        while counts[0][0] <= t_us - _KEPT_US:
            counts.popleft()

    def within(self, t_us: int, within_us: int) -> int:
        """How many gave way within this time before `t_us`."""
        total = 0
        for at_us, count in reversed(self._counts):
            if at_us <= t_us - within_us:
                break
            total += count
        return total

    def until_us(self, t_us: int, within_us: int, at_most: int) -> int:
        """From when on at most so many will have given way within this time before."""
        total = 0
        for at_us, count in reversed(self._counts):
            total += count
            if total > at_most:
                return at_us + within_us
        return t_us

    def dump(self) -> list[list[int]]:
        """For a snapshot, as JSON takes it."""
        return [list(one) for one in self._counts]

    @classmethod
    def load(cls, dumped: Iterable[Iterable[int]]) -> "RecentPreemptions":
        """The inverse of `dump`."""
        return cls((at_us, count) for at_us, count in dumped)
