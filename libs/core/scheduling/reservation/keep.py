"""Reserves devices on a view, gang by gang."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from libs.core.placement.context import context_of
from libs.core.placement.search.gang import usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import NOBODY, Context, View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import JobRank, Order, front, is_due, rank
from libs.core.scheduling.policy import Policy
from libs.core.state.fleet import Ints
from libs.core.state.model import Job, QueueKey, State
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI

_NONE: Ints = np.zeros(0, dtype=np.int64)
_FEW = 32
"""Queues that are looked at first: mostly their gangs keep as much as is kept at all."""


class Reservations:
    """The reservations of one cycle on its view. `last`: gang -> rows that the cycle before reserved; updated in place."""

    def __init__(
        self, state: State, view: View, t_us: int, policy: Policy, last: dict[str, Ints] | None = None
    ) -> None:
        self._state, self._view, self._t_us, self._policy = state, view, t_us, policy
        self._last = last if last is not None else {}
        self._made = 0

    def keep(self, job: Job, request: Shape | None) -> Ints:
        """Reserves devices for a job that does not fit, if its reservation is due. `request`: what its team's limits leave.

        Returns the rows that the last cycle reserved for it and that are open now: other jobs may fit there.
        """
        before = self._last.pop(job.id, _NONE)
        if (
            self._made < self._policy.reservations
            and is_due(job, self._t_us, self._policy)
            and request is not None
            and job.id not in self._state.holds
        ):
            rows = reserve(self._view, request, context_of(self._state, job, self._t_us))
            if len(rows):
                self._made += 1
                self._last[job.id] = rows
        return before[~self._view.blocked[before]]

    def end(self, job_id: str) -> Ints:
        """The job no longer waits. Returns the rows that were reserved for it."""
        return self._last.pop(job_id, _NONE)

    def restart(self) -> None:
        """Drops all reservations of this cycle."""
        self._view.blocked[:] = False
        self._made = 0


class KeptRows(NamedTuple):
    """What one gang keeps from all jobs that rank behind `rank`."""

    rank: JobRank
    rows: Ints
    queue: QueueKey
    """The gang's."""


def kept(view: View, state: State, t_us: int, policy: Policy, queues: Iterable[QueueKey]) -> list[KeptRows]:
    """What a cycle at `t_us` keeps on `view` for the gangs of `queues` in their order, if none of them fits.

    Only the first few keep anything. So the walk goes over the queues whose gangs rank first, and over all of them only when
    those keep too little.
    """
    due = sorted((first, key) for key in queues if (first := _due(state, key, t_us, policy)) is not None)
    found = _kept_of([key for _, key in due[:_FEW]], view, state, t_us, policy)
    if len(due) <= _FEW or (len(found) == policy.reservations and found[-1].rank < due[_FEW][0]):
        return found
    return _kept_of([key for _, key in due], view, state, t_us, policy)


def keep_ahead(view: View, rank: JobRank, by: Iterable[KeptRows]) -> None:
    """Keeps on `view` what is kept from a job of `rank`."""
    for one in by:
        if one.rank < rank:
            view.blocked[one.rows] = True


def _due(state: State, key: QueueKey, t_us: int, policy: Policy) -> JobRank | None:
    """The rank of the gang of a queue that may keep devices, or a lower one; None without such a gang."""
    if key.shape.devices <= 1:
        return None
    *_, job = front(state, key, policy)
    if job.id in state.holds or not is_due(job, t_us, policy):
        return None
    return rank(job, None, t_us, policy)


def _kept_of(queues: list[QueueKey], view: View, state: State, t_us: int, policy: Policy) -> list[KeptRows]:
    view.blocked[:] = False
    rows: dict[str, Ints] = {}
    reservations, tally = Reservations(state, view, t_us, policy, rows), Tally(state)
    order = Order(state, t_us, policy, queues)
    found: list[KeptRows] = []
    reach: JobRank | None = None
    while len(found) < policy.reservations and (gang := order.next()) is not None:
        here = rank(gang, order.shares, t_us, policy)
        reach = here if reach is None or here > reach else reach
        reservations.keep(gang, tally.room(gang).request)
        if gang.id in rows:
            found.append(KeptRows(reach, rows[gang.id], gang.queue))
        if gang.id in state.holds:
            order.passed(gang)
    return found


def reserve(view: View, shape: Shape, context: Context = Context()) -> Ints:
    """Keeps the devices where `shape` will fit soonest from others in this cycle. Returns their rows, none when it can
    never fit.

    Soonest is guessed as: in the nearest level that can hold the gang (or the least of an elastic one) at all, the group
    with the most free devices now; in it the freest nodes that suffice. How roles nest is not looked at. Devices that are held
    for a job go to that job, so none of them is kept.
    """
    fleet = view.fleet
    rows = np.flatnonzero(usable(view, shape) & ~view.blocked & (view.held == NOBODY))
    free = view.free_milli[rows] == WHOLE_MILLI
    levels = allowed_levels(shape, context)
    for level in levels:
        groups = spans_at(fleet, level, rows, within=levels[-1])
        enough = np.bincount(groups) >= shape.least
        if not enough.any():
            continue
        inside = groups == int(np.argmax(np.where(enough, np.bincount(groups, weights=free), -1)))
        capacity = np.bincount(fleet.node[rows[inside]])
        members = np.flatnonzero(capacity)
        free_there = np.bincount(fleet.node[rows[inside]], weights=free[inside])[members]
        members = members[np.argsort(-free_there, kind="stable")]
        needed = int(np.searchsorted(np.cumsum(capacity[members]), shape.least)) + 1
        kept: Ints = rows[inside & np.isin(fleet.node[rows], members[:needed])]
        view.blocked[kept] = True
        return kept
    return _NONE
