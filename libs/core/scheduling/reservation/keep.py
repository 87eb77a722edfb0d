"""Reserves devices on a view, job by job: mostly for gangs (`parted` says for which other jobs)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.gang import SEARCH_BUDGET, shrink, usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import NOBODY, Context, SearchBudget, View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import JobRank, Order, front, rank
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reservation.parted import PartedDevices, is_kept_for
from libs.core.state.fleet import NEVER_US, Bools, Ints
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from libs.core.state.shape import Shape
from libs.core.state.team_claims import longest_us
from schemas.resources import WHOLE_MILLI

_NONE: Ints = np.zeros(0, dtype=np.int64)
_FEW = 32
"""Queues that are looked at first: mostly their gangs keep as much as is kept at all."""
_OWN = 4
"""Times `Policy.reservations`, which are a team's: so many gangs of all teams keep devices from their own teams only. Each
costs some searches."""


class KeptDevices(NamedTuple):
    """What is kept for one job."""

    rows: Ints
    """Of the fleet."""
    team: str = ""
    """The only team from whose jobs it is kept; "": from everybody's."""
    until_us: int = 0
    """It is open to jobs that have ended by then: the gang was promised no earlier start. 0: to none."""

    def closed_to(self, team: str, end_us: int) -> bool:
        """Whether it is kept from a job of `team` that has ended at `end_us`, if it starts now."""
        return self.team in ("", team) and end_us > self.until_us

    def covers(self, other: "KeptDevices") -> bool:
        """Whether it is kept from all from whom `other` is."""
        return self.team in ("", other.team) and self.until_us <= other.until_us


class Reservations:
    """The reservations of one cycle on its view. `last`: job -> what the cycle before kept for it; updated in place."""

    def __init__(
        self, state: State, view: View, t_us: int, policy: Policy, last: dict[str, KeptDevices] | None = None
    ) -> None:
        """What is blocked on `view` is closed to everybody, also what comes to be blocked there."""
        self._state, self._view, self._t_us, self._policy = state, view, t_us, policy
        self._last = last if last is not None else {}
        self._closed = view.blocked
        self._parted = PartedDevices(state.fleet)
        self._kept: list[KeptDevices] = []
        self._search_budgets: dict[str, SearchBudget] = {}
        self._from_all = 0
        """For how many jobs devices are kept from everybody."""
        self._from_own: Counter[str] = Counter()
        """Team -> how many keep them from its own jobs only."""
        self._beside: dict[str, View | None] = {}
        """Team -> see `_beside_own`."""

    @property
    def full(self) -> bool:
        """Whether no further gang keeps anything."""
        return self._from_all >= self._policy.reservations

    def closed_to(self, job: Job) -> Bools:
        """The devices that are kept from a job, mask of shape (D,). Not to be written to."""
        if not self._kept:
            return self._closed
        end_us = _end_us(job, self._t_us) if any(one.until_us for one in self._kept) else NEVER_US
        closed = self._closed.copy()
        for one in self._kept:
            if one.closed_to(job.team, end_us):
                closed[one.rows] = True
        return closed

    def show_to(self, job: Job) -> None:
        """The view has from here on what is kept from a job."""
        self._view.blocked = self.closed_to(job)

    def keep(self, job: Job, request: Shape | None) -> Ints:
        """Reserves devices for a job that does not fit, if any are kept for it. `request`: what its team's limits leave.

        Returns the rows that were kept for it in the last cycle, and are open now to some from whom they were kept.
        """
        before = self._last.pop(job.id, None)
        if (
            not self.full
            and is_kept_for(job, self._t_us, self._policy, self._parted)
            and request is not None
            and job.id not in self._state.holds
            and len((now := self._place(job, request)).rows)
        ):
            if now.team:
                self._from_own[now.team] += 1
            else:
                self._from_all += 1
            self._kept.append(now)
            self._last[job.id] = now
        return _NONE if before is None else self._opened(before)

    def _opened(self, before: KeptDevices) -> Ints:
        closed = self._closed.copy()
        for one in self._kept:
            if one.covers(before):
                closed[one.rows] = True
        return before.rows[~closed[before.rows]]

    def end(self, job_id: str) -> Ints:
        """The job no longer waits. Returns the rows that were reserved for it."""
        return self._last.pop(job_id, KeptDevices(_NONE)).rows

    def restart(self) -> None:
        """Drops all reservations of this cycle."""
        self._kept.clear()
        self._from_all = 0
        self._from_own.clear()

    def _place(self, job: Job, request: Shape) -> KeptDevices:
        """Where the gang will fit soonest beside what its own team holds, kept from everybody. Where jobs of its own team must
        end first, it keeps devices from no other team; those that went before it, once its start was promised, are in nobody's
        way."""
        state, team, fleet = self._state, job.team, self._state.fleet
        promised = self._policy.precedence.book.of.get(job.id) if self._policy.precedence is not None else None
        until_us, told_us = (0, 0) if promised is None else (promised.last.start_us, promised.told_us)
        self.show_to(job)
        context = context_of(state, job, self._t_us)
        went_before = (fleet.since_us > told_us) & (fleet.end_us > 0) & (fleet.end_us <= until_us)
        own = self._beside_own(team, went_before)
        if own is None:
            return KeptDevices(reserve(self._view, request, context, until_us=until_us), until_us=until_us)
        rows = reserve(self._view, request, context, own, until_us)
        if len(rows) and not self._in_the_way(own, job, request, context, rows):
            return KeptDevices(rows, until_us=until_us)
        most = self._policy.reservations
        if self._from_own[team] >= most or self._from_own.total() >= _OWN * most:
            return KeptDevices(_NONE)
        return KeptDevices(reserve(self._view, request, context, until_us=until_us), team, until_us)

    def _beside_own(self, team: str, went_before: Bools) -> View | None:
        """What is free beside jobs of the team, but for those that went before the gang; None: it has none. Worked out once for
        all its gangs before which none went: hundreds may be due."""
        none_went = not went_before.any()
        if none_went and team in self._beside:
            return self._beside[team]
        own, held = None, self._state.team_claims.of(self._state.fleet, team, but=went_before)
        if held is not None:
            own = View.of_empty(self._state.fleet)
            own.hold(held)
        if none_went:
            self._beside[team] = own
        return own

    def _in_the_way(self, own: View, job: Job, request: Shape, context: Context, rows: Ints) -> bool:
        """Whether jobs of its own team keep the gang from `rows`: it would fit there if all were free, and does not beside
        what is taken in `own`."""
        least = shrink(request, request.least) or request
        if least.roles:
            budget = self._search_budgets.setdefault(job.team, SearchBudget(SEARCH_BUDGET))
            context = replace(context, search_budget=budget)
        closed = np.ones_like(self._closed)
        closed[rows] = False
        if isinstance(find(replace(own, blocked=closed), least, context=context), Placed):
            return False
        empty = replace(View.of_empty(self._state.fleet), blocked=closed)
        return isinstance(find(empty, least, context=replace(context, avoid=())), Placed)


class KeptRows(NamedTuple):
    """What one job keeps from jobs that rank behind `rank`."""

    rank: JobRank
    kept: KeptDevices
    queue: QueueKey
    """The job's."""

    def closed_to(self, rank: JobRank, job: Job, t_us: int) -> bool:
        """Whether it is kept at `t_us` from a job of that rank."""
        return self.rank < rank and self.kept.closed_to(job.team, _end_us(job, t_us))


def kept(view: View, state: State, t_us: int, policy: Policy, queues: Iterable[QueueKey]) -> list[KeptRows]:
    """What a cycle at `t_us` keeps on `view` for the gangs of `queues` in their order, if none of them fits.

    Only the first few keep anything. So the walk goes over the queues whose gangs rank first, and over all of them only when
    those keep too little.
    """
    parted = PartedDevices(state.fleet)
    due = sorted((first, key) for key in queues if (first := _due(state, key, t_us, policy, parted)) is not None)
    found, full = _kept_of([key for _, key in due[:_FEW]], view, state, t_us, policy)
    if len(due) <= _FEW or (full and found[-1].rank < due[_FEW][0]):
        return found
    return _kept_of([key for _, key in due], view, state, t_us, policy)[0]


def keep_ahead(view: View, rank: JobRank, job: Job, t_us: int, by: Iterable[KeptRows]) -> None:
    """Keeps on `view` what is kept at `t_us` from a job of `rank`."""
    for one in by:
        if one.closed_to(rank, job, t_us):
            view.blocked[one.kept.rows] = True


def _end_us(job: Job, t_us: int) -> int:
    """By when a job has ended that starts at `t_us`."""
    return t_us + longest_us(job.spec)


def _due(state: State, key: QueueKey, t_us: int, policy: Policy, parted: PartedDevices) -> JobRank | None:
    """The rank of the job of a queue for which devices may be kept, or a lower one; None without such a job."""
    if key.shape.devices <= 1 and not parted and policy.precedence is None:
        return None
    *_, job = front(state, key, policy)
    if job.id in state.holds or not is_kept_for(job, t_us, policy, parted):
        return None
    return rank(job, None, t_us, policy)


def _kept_of(
    queues: list[QueueKey], view: View, state: State, t_us: int, policy: Policy
) -> tuple[list[KeptRows], bool]:
    """What they keep, and whether no further gang would keep anything."""
    view.blocked = np.zeros_like(view.blocked)
    kept: dict[str, KeptDevices] = {}
    reservations, tally = Reservations(state, view, t_us, policy, kept), Tally(state)
    order = Order(state, t_us, policy, queues)
    found: list[KeptRows] = []
    reach: JobRank | None = None
    while not reservations.full and (gang := order.next()) is not None:
        here = rank(gang, order.shares, t_us, policy)
        reach = here if reach is None or here > reach else reach
        reservations.keep(gang, tally.room(gang).request)
        if gang.id in kept:
            found.append(KeptRows(reach, kept[gang.id], gang.queue))
        if gang.id in state.holds:
            order.passed(gang)
    return found, reservations.full


def reserve(
    view: View, shape: Shape, context: Context = Context(), beside: View | None = None, until_us: int = 0
) -> Ints:
    """The devices where `shape` will fit soonest: their rows, none when it can never fit. `beside`: what is free when all jobs
    have ended but those that it must not count on; only devices with room there are kept. `until_us`: what is given back by
    then is as good as free.

    Soonest is guessed as: in the nearest level that can hold the gang (or the least of an elastic one) at all, the group
    with the most free devices now; in it the freest nodes that suffice. How roles nest is not looked at. Devices that are held
    for a job go to that job, so none of them is kept.
    """
    fleet = view.fleet
    mask = usable(view, shape) & ~view.blocked & (view.held == NOBODY)
    if beside is not None:
        mask &= beside.free_milli >= shape.milli
        if shape.cpu_milli:
            mask &= (beside.free_cpu >= shape.cpu_milli)[fleet.node]
        if shape.host_mib:
            mask &= (beside.free_host >= shape.host_mib)[fleet.node]
    rows = np.flatnonzero(mask)
    end_us = fleet.end_us[rows]
    free = (view.free_milli[rows] == WHOLE_MILLI) | ((end_us > 0) & (end_us <= until_us))
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
        return kept
    return _NONE
