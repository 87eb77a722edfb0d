"""What each team's attempts hold, device by device, and until when: what would be free if the other teams held nothing.

A device that is held whole has one holder, so that is in columns of the fleet. What is shared is kept by team and device.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from libs.core.state.fleet import NEVER_US, Bools, Fleet, Ints
from schemas.jobs import JobSpec
from schemas.resources import WHOLE_MILLI, Claim

START_US = 30_000_000
"""From its grant until it runs, when its time limit begins to count: few attempts take longer to start."""

_Amounts = tuple[int, int, int, int]
"""Thousandths of a device, MiB of it, and beside it thousandths of its node's processors and MiB of its node's memory."""


def longest_us(spec: JobSpec) -> int:
    """For how long an attempt holds its devices: to start, up to its time limit, and to save its work and stop;
    `NEVER_US` without a limit."""
    if not spec.time_limit_s:
        return NEVER_US
    graces_s = spec.stop_grace_s + (spec.checkpoint.grace_s if spec.checkpoint is not None else 0.0)
    return START_US + int((spec.time_limit_s + graces_s) * 1_000_000)


class Held(NamedTuple):
    """What one team holds of a fleet, a row for each device."""

    rows: Ints
    milli: Ints
    mib: Ints
    cpu_milli: Ints
    host_mib: Ints


class TeamClaims:
    """Of all teams that hold anything."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        """Of teams that hold anything, in `Fleet.holder`, from 1 on."""
        self._last = 0
        """The number that was given last: none is given twice."""
        self._claims: dict[str, int] = {}
        """How many each team has."""
        self._shared: dict[str, dict[int, _Amounts]] = {}
        """Team -> row of the fleet -> what it holds of a device that may be shared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TeamClaims) and self._claims == other._claims and self._shared == other._shared

    def take(self, fleet: Fleet, team: str, claims: Iterable[Claim], since_us: int, spec: JobSpec) -> None:
        """An attempt of a job of that spec was granted these devices then."""
        number, end_us = self._number(team), since_us + longest_us(spec)
        for claim in claims:
            row = fleet.row(claim.device)
            self._claims[team] = self._claims.get(team, 0) + 1
            if claim.milli < WHOLE_MILLI:
                self._share(team, row, claim, 1)
                continue
            fleet.holder[row], fleet.since_us[row], fleet.end_us[row] = number, since_us, end_us
            fleet.beside_cpu[row], fleet.beside_host[row] = claim.cpu_milli, claim.host_memory_mib

    def give_back(self, fleet: Fleet, team: str, claims: Iterable[Claim]) -> None:
        """An attempt of the team no longer holds these devices."""
        for claim in claims:
            row = fleet.row(claim.device)
            self._claims[team] -= 1
            if claim.milli < WHOLE_MILLI:
                self._share(team, row, claim, -1)
            else:
                fleet.holder[row] = fleet.end_us[row] = 0
        if not self._claims[team]:
            del self._claims[team], self._numbers[team]
            self._shared.pop(team, None)

    def of(self, fleet: Fleet, team: str, but: Bools) -> Held | None:
        """What a team holds, without the devices of the mask `but`, shape (D,), that it holds whole; None: nothing."""
        if team not in self._claims:
            return None
        whole = np.flatnonzero((fleet.holder == self._numbers[team]) & ~but)
        shared = self._shared.get(team, {})
        of_shared = np.array(list(shared.values()), dtype=np.int64).reshape(len(shared), 4).T
        of_whole = (
            np.full(len(whole), WHOLE_MILLI),
            fleet.memory_mib[whole],
            fleet.beside_cpu[whole],
            fleet.beside_host[whole],
        )
        rows = np.concatenate([whole, np.fromiter(shared, np.int64, len(shared))])
        return Held(rows, *(np.concatenate(pair) for pair in zip(of_whole, of_shared, strict=True)))

    def _number(self, team: str) -> int:
        if team not in self._numbers:
            self._last += 1
            self._numbers[team] = self._last
        return self._numbers[team]

    def _share(self, team: str, row: int, claim: Claim, sign: int) -> None:
        of_team = self._shared.setdefault(team, {})
        milli, mib, cpu_milli, host_mib = of_team.get(row, (0, 0, 0, 0))
        now = (
            milli + sign * claim.milli,
            mib + sign * claim.memory_mib,
            cpu_milli + sign * claim.cpu_milli,
            host_mib + sign * claim.host_memory_mib,
        )
        if any(now):
            of_team[row] = now
        else:
            del of_team[row]
            if not of_team:
                del self._shared[team]
