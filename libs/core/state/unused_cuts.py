"""Cuts of MIG boards that were made for jobs of a team, and that no job of the team has used.

A board that is cut is out of placement for some seconds and then stays as it is for some minutes, so a team that has boards
cut and cancels its jobs keeps devices from others, and pays nothing. Each team has a bucket of cuts therefore. A cut takes one
out. It comes back as soon as a job of the team is granted an instance that the cut has made, or when the node did not carry
the cut out. Beside that, time fills the bucket.

Numbers that no operator sets: the checker holds the writer to them, and `baton explain` tells them, both from the ledger alone.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

AT_ONCE = 16
"""Cuts of one team that are not used: as many as one record has (`libs.core.scheduling.repartition.planner.AT_ONCE`). A team
whose jobs come to run has the next ones as soon as they do."""
EACH_US = 300_000_000
"""Time that fills one in: as long as a board rests by default. So who never uses any keeps one board from the others, and not
all of them."""

_Instance = tuple[str, int]
"""Profile, and first memory slice."""


class _Cut(NamedTuple):
    """The last cut of a board."""

    team: str
    made: frozenset[_Instance]
    at_us: int


class UnusedCuts:
    """Of all teams. Bounded: a team is forgotten once its bucket is full, which takes 80 minutes at the most, and a cut likewise, with
    the next cut of any board."""

    def __init__(self) -> None:
        self._full_us: dict[str, int] = {}
        """Team -> when its bucket is full, if it has no more boards cut."""
        self._cuts: dict[str, _Cut] = {}
        """Board -> its last cut, while that is not used."""

    def __bool__(self) -> bool:
        """Whether there is any cut that may still be used."""
        return bool(self._cuts)

    def left(self, team: str, t_us: int) -> int:
        """How many boards may be cut for the team now."""
        lacks_us = max(0, self._full_us.get(team, 0) - t_us)
        return max(0, AT_ONCE - -(-lacks_us // EACH_US))

    def next_us(self, team: str, t_us: int) -> int:
        """From when on a board may be cut for the team."""
        return max(t_us, self._full_us.get(team, 0) - (AT_ONCE - 1) * EACH_US)

    def unused_by(self, board: str) -> str:
        """For which team the board was cut last, if that has not used it; "" for none."""
        cut = self._cuts.get(board)
        return "" if cut is None else cut.team

    def made(self, board: str, team: str, instances: Iterable[_Instance], t_us: int) -> None:
        """The board is cut into these for a job of the team."""
        self._full_us[team] = max(t_us, self._full_us.get(team, 0)) + EACH_US
        self._cuts[board] = _Cut(team, frozenset(instances), t_us)
        self._full_us = {one: full_us for one, full_us in self._full_us.items() if full_us > t_us}
        self._cuts = {one: cut for one, cut in self._cuts.items() if cut.at_us > t_us - AT_ONCE * EACH_US}

    def used(self, board: str, team: str, instance: _Instance) -> None:
        """A job of the team is granted this instance of the board."""
        cut = self._cuts.get(board)
        if cut is not None and cut.team == team and instance in cut.made:
            self.give_back(board)

    def give_back(self, board: str) -> None:
        """The last cut of the board counts no longer: it is used, or its node has not carried it out."""
        cut = self._cuts.pop(board, None)
        if cut is not None and cut.team in self._full_us:
            self._full_us[cut.team] -= EACH_US

    def replaced(self, board: str) -> None:
        """The board is cut for a job that is not named."""
        self._cuts.pop(board, None)

    def dump(self) -> list[Any]:
        """For a snapshot, as JSON takes it."""
        cuts = [[board, cut.team, sorted(cut.made), cut.at_us] for board, cut in sorted(self._cuts.items())]
        return [dict(sorted(self._full_us.items())), cuts]

    @classmethod
    def load(cls, dumped: list[Any]) -> "UnusedCuts":
        """The inverse."""
        again = cls()
        again._full_us = dict(dumped[0])
        for board, team, made, at_us in dumped[1]:
            again._cuts[board] = _Cut(team, frozenset((profile, start) for profile, start in made), at_us)
        return again
