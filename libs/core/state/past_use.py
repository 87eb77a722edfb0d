"""What teams held lately: their devices over time, where what is long ago counts less (Slurm's decayed usage, its half-life).

Integers alone, so that whoever folds the ledger has the same: time is cut into periods, of which `PERIODS` are a half-life, and
at each period's end all that was counted is multiplied by a fixed fraction. Between two changes of what a team holds nothing is
computed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

PERIODS = 64
"""In a half-life."""
_KEPT, _BITS = 4_248_701_965, 32
"""What is left of a period's count at its end: 2 ** -(1 / PERIODS), in fractions of 2 ** _BITS."""
_LOST = (1 << _BITS) - _KEPT
_FORGOTTEN = 40 * PERIODS
"""After so many periods nothing is left of a count."""
_SPARE = 64
"""So many teams, and as many again as were left the last time, are remembered before those are looked for of which nothing is
left."""

KindAmounts = Mapping[str, int]
"""Kind of device -> thousandths."""


class _Row(NamedTuple):
    at_us: int
    counted: dict[str, int]
    """Kind -> thousandths of devices times microseconds, decayed as of `at_us`."""


class PastUse:
    """Of every team. `half_life_us` 0: nothing is counted."""

    def __init__(self, half_life_us: int = 0) -> None:
        self._period_us = half_life_us // PERIODS
        self._rows: dict[str, _Row] = {}
        self._most = _SPARE

    def changes(self, team: str, held: KindAmounts, everyone: Mapping[str, KindAmounts], t_us: int) -> None:
        """From `t_us` on the team holds something else than `held`. `everyone`: what all teams hold: they are not forgotten."""
        if not self._period_us:
            return
        self._rows[team] = _Row(t_us, self._counted(team, held, t_us))
        if len(self._rows) > self._most:
            self._forget(everyone, t_us)
            self._most = 2 * len(self._rows) + _SPARE

    def begins(self, half_life_us: int, held: Mapping[str, KindAmounts], t_us: int) -> None:
        """From `t_us` on it is counted by this half-life. Averages of before stay what they were."""
        before, period_us = self._period_us, half_life_us // PERIODS
        if period_us == before:
            return
        rows = {team: self._counted(team, held.get(team, {}), t_us) for team in {*self._rows, *held}}
        self._period_us = period_us
        self._rows = {
            team: _Row(t_us, {kind: self._scaled(total, before, t_us) for kind, total in rows[team].items()})
            for team in sorted(rows)
            if period_us
        }

    def _scaled(self, total: int, before_us: int, t_us: int) -> int:
        """A count by periods of `before_us` as one by those of now: of the same average."""
        return total * _whole(self._period_us, t_us) // _whole(before_us, t_us) if before_us else 0

    def average(self, held: Mapping[str, KindAmounts], t_us: int) -> dict[str, dict[str, int]]:
        """Team -> kind -> thousandths of devices that it held in the mean of the last time; teams that `held` now what they
        hold."""
        return {team: self.average_of(team, held.get(team, {}), t_us) for team in self._rows}

    def average_of(self, team: str, held: KindAmounts, t_us: int) -> dict[str, int]:
        """`average` of one that holds this now; empty: nothing was counted."""
        row = self._rows.get(team)
        if row is None or not self._period_us:
            return {}
        now_us = max(t_us, row.at_us)
        whole = _whole(self._period_us, now_us)
        return {kind: total * _LOST // whole for kind, total in self._counted(team, held, now_us).items()}

    def dump(self) -> dict[str, Any]:
        """For a snapshot, as JSON takes it."""
        return {
            "period_us": self._period_us,
            "most": self._most,
            "rows": {team: list(row) for team, row in sorted(self._rows.items())},
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Self:
        """The inverse of `dump`; of nothing: nothing is counted."""
        past = cls(dumped.get("period_us", 0) * PERIODS)
        past._most = dumped.get("most", _SPARE)
        past._rows = {team: _Row(at_us, dict(counted)) for team, (at_us, counted) in dumped.get("rows", {}).items()}
        return past

    def _counted(self, team: str, held: KindAmounts, t_us: int) -> dict[str, int]:
        """The team's count as of `t_us`, when it held this since its row."""
        row = self._rows.get(team)
        if row is None:
            return dict.fromkeys(held, 0)
        kinds = {**row.counted, **held}
        counted = {kind: self._passed(row.counted.get(kind, 0), held.get(kind, 0), row.at_us, t_us) for kind in kinds}
        return {kind: total for kind, total in counted.items() if total or kind in held}

    def _passed(self, total: int, milli: int, from_us: int, to_us: int) -> int:
        """`total` after a time in which `milli` were held."""
        period_us = self._period_us
        if not total and not milli:
            return 0
        if to_us - from_us > _FORGOTTEN * period_us:
            total, from_us = 0, to_us - _FORGOTTEN * period_us
        while (end_us := (from_us // period_us + 1) * period_us) <= to_us:
            total = (total + milli * (end_us - from_us)) * _KEPT >> _BITS
            from_us = end_us
        return total + milli * max(0, to_us - from_us)

    def _forget(self, everyone: Mapping[str, KindAmounts], t_us: int) -> None:
        for team in [team for team in self._rows if team not in everyone]:
            if not any(self._counted(team, {}, t_us).values()):
                del self._rows[team]


def user_of(team: str, user: str) -> str:
    """What a user is called among all."""
    return f"{team}/{user}"


MOST_USERS = 20_000
"""Of a pool, that are remembered beside those that hold something."""


class UsersPastUse(PastUse):
    """Of every user (`user_of`): one is forgotten when less than a thousandth of a device is left, or, where more than
    `MOST_USERS` are left, because the others held more."""

    def _forget(self, everyone: Mapping[str, KindAmounts], t_us: int) -> None:
        left = {}
        for name in [name for name in self._rows if name not in everyone]:
            left[name] = sum(self.average_of(name, {}, t_us).values())
            if not left[name]:
                del self._rows[name]
        gone = sorted((milli, name) for name, milli in left.items() if milli)
        for _, name in gone[: max(0, len(gone) - MOST_USERS)]:
            del self._rows[name]


def _whole(period_us: int, t_us: int) -> int:
    """What a thousandth of a device counts at `t_us` that was always held, in fractions of 2 ** _BITS, times `_LOST`."""
    return period_us * _KEPT + t_us % period_us * _LOST
