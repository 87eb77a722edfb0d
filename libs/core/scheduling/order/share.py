"""How well teams are served, as the order compares them.

In a pool without queues: by what each holds, in whole accelerators, by the same weights as limits
(`libs.core.accelerators.kinds`), so that seven `1g` slices of seven are one board. With queues: by their standing
(`libs.core.scheduling.queues`). Where the order of a team's jobs is fair share, its users are compared beneath it
(`QueueTree.by_user`): by what each holds, and held lately, as a part of the pool.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from libs.core.accelerators.kinds import grains, is_cpu
from libs.core.scheduling.order.users import UserAmounts
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import OrderRule
from libs.core.scheduling.queues import WITHIN, QueueLevel, Standings
from libs.core.state.job import QueueKey
from libs.core.state.model import State
from libs.core.state.shape import Shape
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


class UserLevel(NamedTuple):
    """A user beside the others of its team: the lower comes first, of equals the older job."""

    amount: Fraction
    """The part of the pool that the user holds, of the type of which it is the largest part; where the tree has a half-life,
    with that held in the mean of the last time."""


HowServed = tuple[Any, ...]
"""A `Share`, or a `Standing` where the pool has queues; behind it a `UserLevel` where the users of the team share. The lower
comes first; those of a pool with queues and of one without are never compared."""


class Shares:
    """How well teams and their users are served while a plan is made. Begins with what `state` says; reads it, and changes only
    itself."""

    def __init__(self, state: State, policy: Policy = Policy()) -> None:
        self._state, self._turns = state, policy.precedence
        self._share: dict[str, Share] = {}
        self._standings = None
        if len(state.tree):
            lately = state.past_use.average(state.used, state.t_us)
            self._standings = Standings(state.tree, state.all_committed(), state.fleet.capacity(), lately)
        self._served: dict[tuple[str, str, tuple[str, ...]], HowServed] = {}
        self._users = UserAmounts(state)

    def of(self, key: QueueKey) -> HowServed:
        """Of the jobs of a queue."""
        like = key.team, key.user, kinds_asked(key.shape)
        found = self._served.get(like)
        if found is None:
            found = self._served[like] = (*self._of_queue(key), *self._of_user(key))
        return found

    def may_overtake(self, key: QueueKey) -> bool:
        """Whether gangs of a queue come before others when their reservations are due. In a tree of queues only for what is
        guaranteed, and before other users only if none of these is served worse: or who has many gangs would have the pool
        for itself. They keep devices from who is behind them all the same."""
        served = self.of(key)
        if not all(level.tier == WITHIN for level in served if isinstance(level, QueueLevel)):
            return False
        return not isinstance(served[-1] if served else None, UserLevel) or self._users.is_last(key)

    def got(self, key: QueueKey, kinds: Mapping[str, int]) -> None:
        """A job of the queue got these: kind of device -> thousandths."""
        self._users.got(key.team, key.user, kinds)
        if self._standings is None:
            self._share[key.team] = self._of_team(key.team).plus(share_of(kinds))
        else:
            self._standings.took(key.team, kinds)
        self._served.clear()

    def gave(self, key: QueueKey, kinds: Mapping[str, int]) -> None:
        """The inverse of `got`."""
        self.got(key, {kind: -milli for kind, milli in kinds.items()})

    def of_user(self, key: QueueKey) -> Fraction:
        """What the user of a queue holds, as `UserLevel` has it; 0 where users do not share."""
        return self._users.amount(key.team, key.user) if self._by_user(key) else Fraction(0)

    def _of_queue(self, key: QueueKey) -> HowServed:
        if self._turns is not None and self._turns.rules.flat:
            return NOTHING
        if self._standings is not None:
            return self._standings.of(key.team, kinds_asked(key.shape))
        return self._of_team(key.team)

    def _of_user(self, key: QueueKey) -> HowServed:
        return (UserLevel(self._users.amount(key.team, key.user)),) if self._by_user(key) else ()

    def _by_user(self, key: QueueKey) -> bool:
        """Whether the users of its team share: there are some, and the rule that orders its jobs is fair share."""
        if not key.user and not (self._users.known(key.team) and self._state.tree.by_user(key.team)):
            return False
        return self._turns is None or self._turns.rules.of(key.team) is OrderRule.FAIR_SHARE

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
