"""Reserves devices on a view, job by job: mostly for gangs (`parted` says for which other jobs)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from libs.core.placement.answer import Blocked, Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.gang import SEARCH_BUDGET, shrink
from libs.core.placement.view import Context, SearchBudget, View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import JobRank, Order, front, rank
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reservation.host import NO_HOST, KeptHost, host_for, rows_on, take_out, within_free
from libs.core.scheduling.reservation.parted import PartedDevices, is_kept_for
from libs.core.scheduling.reservation.soonest import Fits, reserve
from libs.core.state.fleet import NEVER_US, Bools, Fleet, Ints
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from libs.core.state.shape import Shape
from libs.core.state.team_claims import longest_us

_NONE: Ints = np.zeros(0, dtype=np.int64)
_FEW = 32
"""Queues that are looked at first: mostly their gangs keep as much as is kept at all."""
_TRIES = 64
"""In a cycle: so often it is looked whether gangs fit on what could be kept for them."""
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
    host: KeptHost = NO_HOST
    """What the job will need of the nodes of `rows`."""

    def reach(self, fleet: Fleet) -> Ints:
        """The rows on which others may run once it is not kept any more."""
        return np.union1d(self.rows, rows_on(fleet, self.host.nodes)) if len(self.host.nodes) else self.rows

    def closed_to(self, team: str, end_us: int) -> bool:
        """Whether it is kept from a job of `team` that has ended at `end_us`, if it starts now."""
        return self.team in ("", team) and end_us > self.until_us

    def covers(self, other: "KeptDevices") -> bool:
        """Whether it is kept from all from whom `other` is."""
        return self.team in ("", other.team) and self.until_us <= other.until_us


class Closed(NamedTuple):
    """What is kept from one job."""

    rows: Bools
    """Mask of shape (D,). Not to be written to."""
    host: tuple[KeptHost, ...] = ()

    def in_view(self, view: View) -> None:
        """`view` has from here on what the job may use."""
        view.blocked = view.blocked | self.rows
        if self.host:
            take_out(view, self.host)


class Reservations:
    """The reservations of one cycle on its view. `last`: job -> what the cycle before kept for it; updated in place."""

    def __init__(
        self, state: State, view: View, t_us: int, policy: Policy, last: dict[str, KeptDevices] | None = None
    ) -> None:
        """What is blocked on `view` is closed to everybody, also what comes to be blocked there."""
        self._state, self._view, self._t_us, self._policy = state, view, t_us, policy
        self._last = last if last is not None else {}
        self._closed = view.blocked
        self._parted = PartedDevices.of(state)
        self._kept: list[KeptDevices] = []
        self._search_budgets: dict[str, SearchBudget] = {}
        self._from_all = 0
        """For how many jobs devices are kept from everybody."""
        self._from_own: Counter[str] = Counter()
        """Team -> how many keep them from its own jobs only."""
        self._out: tuple[KeptHost, ...] = ()
        """What is out of the view."""
        self._beside: dict[str, View | None] = {}
        """Team -> see `_beside_own`."""
        self._tries = _TRIES

    @property
    def full(self) -> bool:
        """Whether no further gang keeps anything."""
        return self._from_all >= self._policy.reservations

    def closed_to(self, job: Job) -> Closed:
        """What is kept from a job."""
        if not self._kept:
            return Closed(self._closed)
        end_us = _end_us(job, self._t_us) if any(one.until_us for one in self._kept) else NEVER_US
        theirs = [one for one in self._kept if one.closed_to(job.team, end_us)]
        closed = self._closed.copy()
        for one in theirs:
            closed[one.rows] = True
        host = tuple(one.host for one in theirs if len(one.host.nodes))
        return Closed(closed, self._but_for_held(host) if job.id in self._state.holds else host)

    def _but_for_held(self, host: tuple[KeptHost, ...]) -> tuple[KeptHost, ...]:
        """Of `host`, what is kept from a job for which devices are held: nothing of what these need, for which others have
        stopped."""
        if not host:
            return host
        open_ = replace(self._view)
        take_out(open_, (), back=self._out)
        return tuple(within_free(host, open_.free_cpu, open_.free_host))

    def show_to(self, job: Job) -> None:
        """The view has from here on what a job may use."""
        closed = self.closed_to(job)
        self._view.blocked = closed.rows
        self._take_out(closed.host)

    def _take_out(self, host: tuple[KeptHost, ...]) -> None:
        """Takes these out of the view, and gives the others back; mostly they are those of the job before, and one more."""
        now, before = set(map(id, host)), set(map(id, self._out))
        if now != before:
            take_out(
                self._view,
                (one for one in host if id(one) not in before),
                back=(one for one in self._out if id(one) not in now),
            )
            self._out = host

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
        closed, instead = self._closed.copy(), [one for one in self._kept if one.covers(before)]
        for one in instead:
            closed[one.rows] = True
        return np.union1d(
            before.rows[~closed[before.rows]],
            rows_on(self._state.fleet, before.host.beyond([one.host for one in instead])),
        )

    def end(self, job_id: str) -> Ints:
        """The job no longer waits. Returns the rows of whatever was reserved for it."""
        return self._last.pop(job_id, KeptDevices(_NONE)).reach(self._state.fleet)

    def restart(self) -> None:
        """Drops all reservations of this cycle: devices that were held are open."""
        self._kept.clear()
        self._from_all = 0
        self._from_own.clear()
        self._take_out(())
        self._parted = PartedDevices(self._view.copy())

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
        rows, whose = (
            reserve(self._view, request, context, own, until_us, fits=self._together(job, request, context, own)),
            "",
        )
        if own is not None and (not len(rows) or self._in_the_way(own, job, request, context, rows)):
            most = self._policy.reservations
            if self._from_own[team] >= most or self._from_own.total() >= _OWN * most:
                return KeptDevices(_NONE)
            fits = self._together(job, request, context, None)
            rows, whose = reserve(self._view, request, context, until_us=until_us, fits=fits), team
        return KeptDevices(rows, whose, until_us, host_for(self._view, rows, request))

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
        if isinstance(self._found(own, job, request, rows, context), Placed):
            return False
        empty = View.of_empty(self._state.fleet)
        return isinstance(self._found(empty, job, request, rows, replace(context, avoid=())), Placed)

    def _together(self, job: Job, request: Shape, context: Context, own: View | None) -> Fits | None:
        """For a gang with roles, or beneath power caps: where it fits if all but what is taken in `own` were free. When it was
        looked often enough in this cycle, it is what was asked about."""
        if not (request.roles or self._state.fleet.rack_w.any()):
            return None
        view, context = View.of_empty(self._state.fleet) if own is None else own, replace(context, avoid=())
        budget = self._search_budgets.setdefault(job.team, SearchBudget(SEARCH_BUDGET))

        def fits(rows: Ints) -> Ints:
            if self._tries <= 0 or budget.left <= 0:
                return rows
            self._tries -= 1
            found = self._found(view, job, request, rows, context)
            return found.rows if isinstance(found, Placed) else _NONE

        return fits

    def _found(self, view: View, job: Job, request: Shape, rows: Ints, context: Context) -> Placed | Blocked:
        """Where the least of what it asks for fits among `rows` of `view`."""
        least = shrink(request, request.least) or request
        if least.roles:
            budget = self._search_budgets.setdefault(job.team, SearchBudget(SEARCH_BUDGET))
            context = replace(context, search_budget=budget)
        closed = np.ones_like(self._closed)
        closed[rows] = False
        return find(replace(view, blocked=closed), least, context=context)


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
    parted = PartedDevices.of(state)
    due = sorted((first, key) for key in queues if (first := _due(state, key, t_us, policy, parted)) is not None)
    found, full = _kept_of([key for _, key in due[:_FEW]], view, state, t_us, policy)
    if len(due) <= _FEW or (full and found[-1].rank < due[_FEW][0]):
        return found
    return _kept_of([key for _, key in due], view, state, t_us, policy)[0]


def keep_ahead(view: View, rank: JobRank, job: Job, t_us: int, by: Iterable[KeptRows], *, held: bool = False) -> None:
    """Keeps on `view` what is kept at `t_us` from a job of `rank`. `held`: devices are held for it."""
    theirs = [one.kept for one in by if one.closed_to(rank, job, t_us)]
    for one in theirs:
        view.blocked[one.rows] = True
    host: Iterable[KeptHost] = [one.host for one in theirs if len(one.host.nodes)]
    if host:
        take_out(view, within_free(host, view.free_cpu, view.free_host) if held else host)


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
