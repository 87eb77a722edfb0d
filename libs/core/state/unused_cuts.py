"""Cuts of MIG boards that were made for jobs of a team, and that the team has not used.

A board that is cut is out of placement for some seconds and then stays as it is for some minutes. So a team that has boards cut
and cancels its jobs keeps devices from others, and pays nothing. Each team has a bucket of cuts therefore. A cut takes one out.
While a job of the team holds an instance that the cut has made, it is back in. It stays in if the team held such instances for
long enough, all together, or if the node did not carry the cut out. Beside that, time fills the bucket.

Numbers that no operator sets: the checker holds the writer to them, and `baton explain` tells them, both from the ledger alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

AT_ONCE = 16
"""Cuts of one team that are not used: as many as one record has (`libs.core.scheduling.repartition.planner.AT_ONCE`). A team
whose jobs come to run has the next ones as soon as they do."""
EACH_US = 300_000_000
"""Time that fills one in: as long as a board rests by default. So who never uses any keeps one board from the others, and not
all of them. A cut counts as used after that time, too: who had a board cut has paid for an instance as long as it rested."""
FULL_US = AT_ONCE * EACH_US
"""An empty bucket is full then. What was cut so long ago counts no longer."""

_MadePlace = tuple[str, int]
"""Profile, and first memory slice."""


@dataclass(slots=True)
class _UnusedCut:
    """The last cut of a board. `asked`: the instances that it brings, and `made`: the devices that they are, once the node has
    said so; `holds`: those that the team's jobs hold, device -> since when; `held_us`: for how long it held others."""

    node: str
    team: str
    asked: frozenset[_MadePlace]
    at_us: int
    made: tuple[str, ...] = ()
    held_us: int = 0
    holds: dict[str, int] = field(default_factory=dict)

    def held_by(self, t_us: int) -> int:
        return self.held_us + sum(t_us - since_us for since_us in self.holds.values())


class UnusedCuts:
    """Of all teams. Bounded: with the next cut of any board a team is forgotten whose bucket is full, and a cut that counts no
    longer."""

    def __init__(self) -> None:
        self._full_us: dict[str, int] = {}
        """Team -> when its bucket is full, if no more boards are cut for it."""
        self._cuts: dict[str, _UnusedCut] = {}
        """Board -> its last cut, until that is used."""
        self._board_of: dict[str, str] = {}
        """Devices that these cuts have made -> board."""

    def __bool__(self) -> bool:
        """Whether there is any cut that is not used."""
        return bool(self._cuts)

    def left(self, team: str, t_us: int) -> int:
        """How many boards may be cut for the team now."""
        lacks_us = max(0, self._full_us.get(team, 0) - t_us)
        return max(0, AT_ONCE - -(-lacks_us // EACH_US))

    def next_us(self, team: str, t_us: int) -> int:
        """From when on a board may be cut for the team."""
        return max(t_us, self._full_us.get(team, 0) - (FULL_US - EACH_US))

    def unused_by(self, board: str, t_us: int) -> str:
        """The team for which the board was cut last, if it has not used that; "": none."""
        cut = self._cut(board, t_us)
        return "" if cut is None or cut.held_by(t_us) >= EACH_US else cut.team

    def asked(self, board: str, node: str, team: str, instances: Iterable[_MadePlace], t_us: int) -> None:
        """The board is to be cut into these for a job of the team."""
        self.forget(board)
        self._take(team, t_us)
        self._full_us = {one: full_us for one, full_us in self._full_us.items() if full_us > t_us}
        for old in [one for one, cut in self._cuts.items() if cut.at_us <= t_us - FULL_US]:
            self.forget(old)
        self._cuts[board] = _UnusedCut(node, team, frozenset(instances), t_us)

    def done(self, board: str, instances: Mapping[str, _MadePlace]) -> None:
        """Its node has cut the board, which has these devices now. A node that lies may name one that another cut has made: it
        is of the last one then."""
        cut = self._cuts.get(board)
        if cut is None:
            return
        cut.made = tuple(device for device, place in instances.items() if place in cut.asked)
        for device in cut.made:
            if (before := self._board_of.get(device)) is not None:
                other = self._cuts[before]
                other.made = tuple(one for one in other.made if one != device)
            self._board_of[device] = board

    def granted(self, device: str, team: str, t_us: int) -> None:
        """A job of the team is granted the device."""
        cut = self._cut(self._board_of.get(device, ""), t_us)
        if cut is not None and cut.team == team:
            if not cut.holds:
                self._give_back(team)
            cut.holds[device] = t_us

    def freed(self, device: str, t_us: int) -> None:
        """The job that held it is gone from there."""
        board = self._board_of.get(device, "")
        cut = self._cut(board, t_us)
        if cut is None or device not in cut.holds:
            return
        cut.held_us += t_us - cut.holds.pop(device)
        if cut.held_us >= EACH_US:
            self.forget(board)
        elif not cut.holds:
            self._take(cut.team, t_us)

    def failed(self, board: str) -> None:
        """Its node has not carried out the last cut of the board, or is gone: nobody could use it."""
        cut = self._cuts.get(board)
        if cut is not None and not cut.holds:
            self._give_back(cut.team)
        self.forget(board)

    def node_begins_anew(self, node: str) -> None:
        """So does what is known of its boards."""
        for board in [board for board, cut in self._cuts.items() if cut.node == node]:
            self.failed(board)

    def forget(self, board: str) -> None:
        """The last cut of the board counts as it does now, for good."""
        cut = self._cuts.pop(board, None)
        for device in cut.made if cut is not None else ():
            del self._board_of[device]

    def _cut(self, board: str, t_us: int) -> _UnusedCut | None:
        cut = self._cuts.get(board)
        return cut if cut is not None and cut.at_us > t_us - FULL_US else None

    def _take(self, team: str, t_us: int) -> None:
        self._full_us[team] = max(t_us, self._full_us.get(team, 0)) + EACH_US

    def _give_back(self, team: str) -> None:
        if team in self._full_us:
            self._full_us[team] -= EACH_US

    def dump(self) -> list[Any]:
        """For a snapshot, as JSON takes it."""
        cuts = [
            [
                board,
                one.node,
                one.team,
                sorted(one.asked),
                one.at_us,
                one.made,
                one.held_us,
                dict(sorted(one.holds.items())),
            ]
            for board, one in sorted(self._cuts.items())
        ]
        return [dict(sorted(self._full_us.items())), cuts]

    @classmethod
    def load(cls, dumped: list[Any]) -> "UnusedCuts":
        """The inverse."""
        again = cls()
        again._full_us = dict(dumped[0])
        for board, node, team, asked, at_us, made, held_us, holds in dumped[1]:
            places = frozenset((profile, start) for profile, start in asked)
            again._cuts[board] = _UnusedCut(node, team, places, at_us, tuple(made), held_us, dict(holds))
            again._board_of.update(dict.fromkeys(made, board))
        return again
