"""Moves: a job with less left than the one that waits is stopped where it is in the way and started elsewhere at once
(defragmentation).

Jobs that came at different times leave holes that no gang fits into, however much is free in all. A gang may take the devices
of a job that is *before* it in the order when that job finds as many free ones at that moment. The moved job loses what any
preemption loses, waits at the head of its queue, and takes the free devices in the next decision; so it keeps its place in the
order.

The planner, which looks for jobs to move, and the ledger's writer, which checks the plan, use one rule: `MoveTargets` places
them one by one, the widest first, each on the node that it fills up best.
"""

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from libs.core.placement.search.gang import usable
from libs.core.placement.view import NOBODY, View
from libs.core.state.fleet import Bools, Ints
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI, Level


def needs(shape: Shape) -> tuple[tuple[int, int], ...] | None:
    """(groups, devices of each) that must each lie on one node, the larger first; None: not a job that is exchanged."""
    if not shape.devices or not shape.whole or shape.min_devices or shape.torus or shape.spread[0] or shape.caps:
        return None
    if shape.cpu_milli or shape.host_mib or shape.profile:
        return None
    if shape.roles:
        if any(role.level is not Level.NODE or role.count != role.min_count for role in shape.roles):
            return None
        return tuple(sorted(((role.count, role.devices) for role in shape.roles), key=lambda need: -need[1]))
    return ((1, shape.devices),) if shape.level is Level.NODE else None


def movable(shape: Shape) -> bool:
    """It lies on one node, so there is one place to look for."""
    need = needs(shape)
    return need is not None and len(need) == 1 and need[0][0] == 1


class MoveTargets:
    """Free devices, as those who are moved take them. `given`: rows of the fleet that somebody else gets."""

    def __init__(self, state: State, given: Sequence[int] = ()) -> None:
        self._fleet, self._view = state.fleet, View.of(state.fleet)
        self._free: Bools = (state.fleet.free_milli == WHOLE_MILLI) & (state.fleet.held == NOBODY)
        self._usable: dict[Shape, Bools] = {}
        self.give(given)

    def give(self, rows: Sequence[int] | Ints) -> None:
        """Somebody else gets these."""
        self._free[np.asarray(rows, dtype=np.int64)] = False

    def without(self, rows: Sequence[int]) -> "MoveTargets":
        """One to try with, in which somebody else got `rows`."""
        tried = copy(self)
        tried._free = self._free.copy()
        tried.give(rows)
        return tried

    def usable(self, shape: Shape) -> Bools:
        """Devices (mask of shape (D,)) that the shape could run on if all were free."""
        known = self._usable.get(shape)
        if known is None:
            known = self._usable[shape] = usable(self._view, shape)
        return known

    def free(self, shape: Shape) -> Ints:
        """Rows that are free and usable."""
        return np.flatnonzero(self._free & self.usable(shape))

    def take_all(self, movers: Iterable[Job]) -> bool:
        """Whether each finds devices on one node, the widest first; they are taken then."""
        for job in sorted(movers, key=lambda job: (-job.shape.devices, job.id)):
            rows = self.free(job.shape)
            count = np.bincount(self._fleet.node[rows], minlength=len(self._fleet.node_names))
            able = np.flatnonzero(count >= job.shape.devices)
            if not len(able):
                return False
            best = able[np.argmin(count[able])]
            self._free[rows[self._fleet.node[rows] == best][: job.shape.devices]] = False
        return True
