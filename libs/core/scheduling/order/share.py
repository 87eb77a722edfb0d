"""How well teams are served, as the order compares them.

In a pool without queues: by what each holds, in whole accelerators, by the same weights as limits
(`libs.core.accelerators.kinds`), so that seven `1g` slices of seven are one board. With queues: by their standing
(`libs.core.scheduling.queues`).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from libs.core.accelerators.kinds import grains, is_cpu
from libs.core.scheduling.queues import WITHIN, QueueLevel, Standing, Standings
from libs.core.state.model import QueueKey, Shape, State
from schemas.resources import ANY_ACCELERATOR, kind_of, parts_of


class Share(NamedTuple):
    """Compared in this order, exactly: both are integers."""

    grains: int = 0
    """Grains of whole accelerators; processors count as none."""
    processors_milli: int = 0
    """Thousandths of processors: what decides between teams that hold as much of accelerators."""

    def plus(self, other: "Share") -> "Share":
        return Share(self.grains + other.grains, self.processors_milli + other.processors_milli)


NOTHING = Share()


def share_of(held: Mapping[str, int]) -> Share:
    """`held`: kind of device -> thousandths of devices."""
    total = NOTHING
    for kind, milli in held.items():
        total = total.plus(_of(kind, milli))
    return total


@lru_cache(maxsize=4096)  # few kinds, and of each few amounts: asked for every grant
def _of(kind: str, milli: int) -> Share:
    return Share(grains(ANY_ACCELERATOR, {kind: milli}), milli if is_cpu(parts_of(kind)[0]) else 0)


HowServed = tuple[Any, ...]
"""A `Share`, or a `Standing` where the pool has queues. The lower comes first; the two are never compared."""


def may_overtake(share: HowServed) -> bool:
    """Whether gangs of a team that is served so come before other teams when their reservations are due. In a tree of queues
    only for what is guaranteed: or a team with many gangs would have the pool for itself. They keep devices from who is behind
    them all the same."""
    return all(level.tier == WITHIN for level in share if isinstance(level, QueueLevel))


class Shares:
    """How well teams are served while a plan is made. Begins with what `state` says; reads it, and changes only itself."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._share: dict[str, Share] = {}
        self._standings = None
        if len(state.tree):
            lately = state.past_use.average(state.used, state.t_us)
            self._standings = Standings(state.tree, state.all_committed(), state.fleet.capacity(), lately)
            self._standing: dict[QueueKey, Standing] = {}

    def of(self, key: QueueKey) -> HowServed:
        """Of the jobs of a queue."""
        if self._standings is None:
            return self._of_team(key.team)
        found = self._standing.get(key)
        if found is None:
            found = self._standing[key] = self._standings.of(key.team, kinds_asked(key.shape))
        return found

    def got(self, team: str, kinds: Mapping[str, int]) -> None:
        """A job of `team` got these: kind of device -> thousandths."""
        if self._standings is None:
            self._share[team] = self._of_team(team).plus(share_of(kinds))
        else:
            self._standings.took(team, kinds)
            self._standing.clear()

    def gave(self, team: str, kinds: Mapping[str, int]) -> None:
        """The inverse of `got`."""
        self.got(team, {kind: -milli for kind, milli in kinds.items()})

    def _of_team(self, team: str) -> Share:
        share = self._share.get(team)
        if share is None:
            share = self._share[team] = share_of(self._state.committed(team))
        return share


@lru_cache(maxsize=4096)
def kinds_asked(shape: Shape) -> tuple[str, ...]:
    """The kinds of device that a request names; none: any accelerator."""
    if shape.roles:
        return tuple(dict.fromkeys(model for role in shape.roles for model in role.types))
    return tuple(kind_of(model, shape.profile) for model in shape.types)
