"""Jobs that an operator raised above their class for a time, and how many a team has had of its budget."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from schemas.queues import MOST_BOOSTS

_LONGEST_US = 366 * 86_400 * 1_000_000
"""No budget looks back further."""


class Boost(NamedTuple):
    """Of a job that has not ended."""

    own_priority: int
    """That of its class, which it has again afterwards."""
    until_us: int
    reason: str = ""
    user: str = ""


class BoostsHad:
    """Team -> when its last boosts were, us. Rows of which no budget knows any more are forgotten with the next boost."""

    def __init__(self, rows: Mapping[str, Iterable[int]] | None = None) -> None:
        self._rows = {team: tuple(times) for team, times in (rows or {}).items()}

    def note(self, team: str, t_us: int) -> None:
        """One of the team's jobs is raised."""
        self._rows[team] = (*self._rows.get(team, ()), t_us)[-MOST_BOOSTS:]
        self._rows = {one: times for one, times in self._rows.items() if times[-1] > t_us - _LONGEST_US}

    def within(self, team: str, t_us: int, within_us: int) -> int:
        """How many were within this time before `t_us`."""
        return sum(at_us > t_us - within_us for at_us in self._rows.get(team, ()))

    def first_us(self, team: str, t_us: int, within_us: int) -> int:
        """When the first of these was; `t_us` without any."""
        return min((at_us for at_us in self._rows.get(team, ()) if at_us > t_us - within_us), default=t_us)

    def dump(self) -> dict[str, list[int]]:
        """For a snapshot, as JSON takes it."""
        return {team: list(times) for team, times in sorted(self._rows.items())}
