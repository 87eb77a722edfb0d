"""When jobs of a pool were preempted lately: as far as a limit may look back."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from schemas.queues import LONGEST_PER_POOL_S

_KEPT_US = LONGEST_PER_POOL_S * 1_000_000


class RecentPreemptions:
    """Moments with how many gave way then, and for which teams, the oldest first. Bounded by what the limit lets through in
    that time."""

    def __init__(self, counts: Iterable[tuple[int, int]] = (), for_teams: Iterable[tuple[int, str, int]] = ()) -> None:
        self._counts = deque(counts)
        self._for_teams = deque(for_teams)

    def note(self, t_us: int, team: str) -> None:
        """One more gives way at `t_us`, for a job of `team`."""
        counts, for_teams = self._counts, self._for_teams
        known = counts.pop()[1] if counts and counts[-1][0] == t_us else 0
        counts.append((t_us, known + 1))
        known = for_teams.pop()[2] if for_teams and for_teams[-1][:2] == (t_us, team) else 0
        for_teams.append((t_us, team, known + 1))
        while counts[0][0] <= t_us - _KEPT_US:
            counts.popleft()
        while for_teams[0][0] <= t_us - _KEPT_US:
            for_teams.popleft()

    def within(self, t_us: int, within_us: int) -> int:
        """How many gave way within this time before `t_us`."""
        total = 0
        for at_us, count in reversed(self._counts):
            if at_us <= t_us - within_us:
                break
            total += count
        return total

    def for_team(self, team: str, t_us: int, within_us: int) -> int:
        """How many gave way for jobs of `team` within this time before `t_us`."""
        return sum(count for at_us, whose, count in self._for_teams if whose == team and at_us > t_us - within_us)

    def left_after(self, t_us: int, within_us: int, team: str) -> Iterator[tuple[int, int, int]]:
        """From when on the oldest, the two oldest, ... will not have been within this time before; and how many are then, and
        how many of those gave way for jobs of `team`."""
        gone, own = self.within(t_us, within_us), self.for_team(team, t_us, within_us)
        for_team: dict[int, int] = {}
        for at_us, whose, count in self._for_teams:
            if whose == team:
                for_team[at_us] = for_team.get(at_us, 0) + count
        for at_us, count in self._counts:
            if at_us > t_us - within_us:
                gone, own = gone - count, own - for_team.get(at_us, 0)
                yield at_us + within_us, gone, own

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

    def dump_for_teams(self) -> list[list[Any]]:
        """For whom, likewise."""
        return [list(one) for one in self._for_teams]

    @classmethod
    def load(cls, dumped: Iterable[Iterable[int]], for_teams: Iterable[Iterable[Any]]) -> "RecentPreemptions":
        """The inverse of both."""
        of_teams = ((at_us, team, count) for at_us, team, count in for_teams)
        return cls(((at_us, count) for at_us, count in dumped), of_teams)
