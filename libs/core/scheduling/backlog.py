"""Which waiting queues are worth another search, so that the cost of a cycle depends on what changed and not on what waits.

A queue that was tried stays blocked until something changes that could help it. This is sound because a request that did not
fit does not fit after devices were taken either, but where that brings it before a job for which devices are kept: that is
looked at once a second. So a cycle that skips the blocked queues grants the same as one that tries them all again
(`tests/core/test_backlog.py` compares the two).

A backlog is a cache of one decider, not ledger state. With an empty one the next cycle looks at everything. It is dropped with
the state when a record is not committed, and after a record of another writer.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from libs.core.placement.answer import Blocked, BlockReason
from libs.core.placement.search.gang import usable_of
from libs.core.placement.view import NOBODY, View, processors_among
from libs.core.scheduling.changes import Changes
from libs.core.scheduling.order import Shares, due_us, front, is_due, is_due_alone, rank
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reservation import KeptDevices, PartedDevices
from libs.core.state.fleet import Fleet, Ints
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from libs.core.state.shape import Shape

_NEVER = 1 << 62
_KEPT = frozenset({BlockReason.RESERVED, BlockReason.CPU, BlockReason.HOST_MEMORY})
_LOOK_US = 1_000_000
_AT_ONCE = 64
_PRICES_US = 10_000_000
"""Who waits for a budget is looked at again so soon, which costs no search: prices change by the calendar, and no event says
so."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A queue whose front does not fit."""

    jobs: tuple[str, ...] = ()
    """The jobs that were tried: the first of the queue, and the next one whenever devices are held for the one before."""
    limited: bool = False
    """The team's limits leave one of these jobs less than it asks for."""
    shut: bool = False
    """The limits leave each of these jobs nothing, so no device helps."""
    due: bool = False
    """One of these jobs is a gang whose reservation is due."""
    alone: bool = False
    """One of them wants one device, and has waited as long: it is kept one where others take parts of such devices."""
    again_us: int = _NEVER
    """When the queue may fit because time has passed, us."""
    behind: int = 0
    """Behind so many jobs that kept devices it was tried."""


class Backlog:
    """Brought up to date by each cycle of the decider that it belongs to."""

    def __init__(self) -> None:
        self.changes = Changes()
        """What was decided since the last cycle. The reactions note it here."""
        self.waiting: dict[QueueKey, Blocked] = {}
        """Why each queue waits, as of the last time that it was tried."""
        self.reserved: dict[str, KeptDevices] = {}
        """Job -> what the last cycle kept for it."""
        self._tried: dict[QueueKey, _Tried] = {}
        self._untried: set[QueueKey] = set()
        self._now: dict[QueueKey, _Tried] = {}
        """Queues that this cycle has tried. `_seen` are those that it will not come back to."""
        self._seen: set[QueueKey] = set()
        self._soonest_us = _NEVER
        """The earliest `again_us` of all queues."""
        self._moved = False
        """Free devices changed since reservations were last worked out."""
        self._shared, self._looked_us = False, -_LOOK_US
        """What teams hold changed since it was looked at who has come before jobs that keep devices; and when that was."""
        self.changes.anything = True

    # ------------------------------------------------------------------------------------------------ before a cycle

    def to_consider(self, state: State, t_us: int, policy: Policy = Policy()) -> set[QueueKey]:
        """The queues that a cycle at `t_us` must look at; none: there is nothing to do.

        These are the queues that changes or time may help. If reservations may have moved, the queues for whose jobs
        devices may be kept are among them: no search is made for these, but what they keep from others is worked out again.
        """
        if self.changes.anything:
            self._retry_all(state)
        else:
            self._note_time(t_us)
            self._note_changes(state, policy)
            self._note_shares(state, t_us, policy)
        self.changes.clear()
        self._note_gone(state, policy)
        due = self._due(PartedDevices.of(state)) if self._moved or self._untried else set()
        self._moved = self._moved and bool(due)
        return self._untried | due

    def _due(self, parted: PartedDevices) -> set[QueueKey]:
        """The queues for whose jobs a cycle may keep devices, and those for which the last one did."""
        return {
            key
            for key, tried in self._tried.items()
            if tried.due
            or (tried.alone and (parted.serve(key.shape) or not self.reserved.keys().isdisjoint(tried.jobs)))
        }

    def _note_time(self, t_us: int) -> None:
        if t_us >= self._soonest_us:
            self._retry([key for key, tried in self._tried.items() if t_us >= tried.again_us])
            self._soonest_us = min((tried.again_us for tried in self._tried.values()), default=_NEVER)

    def _note_changes(self, state: State, policy: Policy) -> None:
        if not self.changes:
            return
        self._moved = True
        came = {state.jobs[job_id].queue for job_id in self.changes.queued if job_id in state.jobs}
        for key in came | self.changes.fronts | self.changes.held:
            if key not in state.queues:
                self._forget(key)
            elif key in self.changes.held or self._tried.get(key, _Tried()).jobs != tuple(
                job.id for job in front(state, key, policy)
            ):
                self._retry([key])
        if self.changes.order:
            self._note_order(state, policy)
        if self._tried:
            helped = _Help(state, self.changes)
            self._retry([key for key, tried in self._tried.items() if helped.reaches(key, tried)])

    def _note_shares(self, state: State, t_us: int, policy: Policy) -> None:
        """What teams and users hold is another: of who lacks what is kept for others, some may come before one of these by now.
        Looked at once in a while, since each costs its place in the order."""
        self._shared = self._shared or bool(self.changes.teams)
        if not (self._shared and self.reserved) or t_us < self._looked_us + _LOOK_US:
            return
        self._shared, self._looked_us = False, t_us
        behind = [
            (key, tried.behind)
            for key, tried in self._tried.items()
            if tried.behind and key in state.queues and _kept_out(self.waiting[key])
        ]
        if not behind:
            return
        shares = Shares(state, policy)
        kept = sorted(rank(state.jobs[job], shares, t_us, policy) for job in self.reserved if job in state.jobs)
        ahead = []
        for key, before in behind:
            *_, job = front(state, key, policy)
            here = rank(job, shares, t_us, policy)
            if bisect_left(kept, here) < before:
                ahead.append((here, key))
        self._retry(key for _, key in sorted(ahead)[:_AT_ONCE])

    def _note_order(self, state: State, policy: Policy) -> None:
        """Another order helps only who is the first of its queue now, and may have waited longer: it frees nothing, and brings
        nobody before a gang for which devices are kept."""
        for key, tried in list(self._tried.items()):
            if key in state.queues and tried.jobs != tuple(job.id for job in front(state, key, policy)):
                self._retry([key])

    def _note_gone(self, state: State, policy: Policy) -> None:
        """Opens the reservations of gangs that no cycle will look at any more, and retries the queues that this may help."""
        for gang in list(self.reserved):
            job = state.jobs.get(gang)
            if job is None or all(other.id != gang for other in front(state, job.queue, policy)):
                rows = self.reserved.pop(gang).reach(state.fleet)
                self._retry(self._usable(state.fleet, rows, state.fleet.free_milli, state.fleet.held))

    # --------------------------------------------------------------------------------------------------- in a cycle

    def outcome(self, job: Job) -> Blocked | None:
        """Why a job does not fit, if it was tried and nothing has changed since; None: it must be tried."""
        return self.waiting[job.queue] if job.queue in self._tried else None

    def blocked(
        self,
        job: Job,
        request: Shape | None,
        outcome: Blocked,
        t_us: int,
        policy: Policy,
        *,
        held: bool = False,
        behind: int = 0,
    ) -> None:
        """The job waits. `request`: what its team may have of what it asks for; `held`: it waits for its own devices; `behind`:
        so many before it keep devices."""
        key = job.queue
        before = self._now.get(key) or self._tried.get(key) or _Tried()
        again_us = min(before.again_us, t_us + policy.reconsider_after_us, *_turns(job, t_us, policy))
        if outcome.reason is BlockReason.BUDGET:
            again_us = min(again_us, t_us + _PRICES_US)
        self._now[key] = _Tried(
            jobs=before.jobs if job.id in before.jobs else (*before.jobs, job.id),
            limited=before.limited or request != job.shape,
            shut=request is None and (before.shut or not before.jobs),
            due=before.due or is_due(job, t_us, policy),
            alone=before.alone or is_due_alone(job, t_us, policy),
            again_us=again_us,
            behind=before.behind if key in self._tried else max(before.behind, behind),
        )
        self.waiting[key] = outcome
        self._soonest_us = min(self._soonest_us, again_us)
        if not held:
            self._seen.add(key)

    def opened(self, view: View, rows: Ints) -> list[QueueKey]:
        """`rows` are no longer reserved for a job. Returns the queues behind it that this may help, to be tried again.

        Queues ahead of the job are not among them: the reservation kept nothing from them."""
        helped = [key for key in self._usable(view.fleet, rows, view.free_milli, view.held) if key not in self._seen]
        for key in helped:
            del self._tried[key]
            self._untried.add(key)
            if key not in self._now:
                del self.waiting[key]
        return helped

    def restart(self, state: State) -> None:
        """Every queue is to be tried again."""
        self._retry_all(state)

    def finish(self, complete: bool, granted: bool) -> None:
        """The cycle is over; if it is not `complete`, it has not looked at all queues."""
        for key, tried in self._now.items():
            if complete or key in self._seen:
                self._tried[key] = tried
                self._untried.discard(key)
        if complete:
            self._untried.clear()
        self._moved = granted or not complete
        self._shared = self._shared or granted
        self._now.clear()
        self._seen.clear()

    # -----------------------------------------------------------------------------------------------------------------

    def _retry(self, queues: Iterable[QueueKey]) -> None:
        for key in queues:
            self._forget(key)
            self._untried.add(key)

    def _retry_all(self, state: State) -> None:
        self._tried.clear()
        self.waiting.clear()
        self._now.clear()
        self._seen.clear()
        self._untried, self._moved = set(state.queues), True

    def _forget(self, key: QueueKey) -> None:
        self._tried.pop(key, None)
        self.waiting.pop(key, None)
        self._untried.discard(key)

    def _usable(self, fleet: Fleet, rows: Ints, free_milli: Ints, held: Ints) -> list[QueueKey]:
        """The queues that wait for devices and could use one of `rows`."""
        if not len(rows):
            return []
        rows = rows[held[rows] == NOBODY]
        return [
            key for key, tried in self._tried.items() if not tried.shut and _serve(fleet, rows, free_milli, key.shape)
        ]


class _Help:
    """Which queues a set of changes may help. Names are looked up once."""

    def __init__(self, state: State, changes: Changes) -> None:
        fleet = state.fleet
        self._state, self._changes = state, changes
        self._capped = bool(fleet.rack_w.any())
        rows = {fleet.row(device) for device in changes.devices}
        for name in changes.joined:
            rows.update(fleet.nodes[name].rows)
        near = rows.union(*(fleet.nodes[name].rows for name in changes.nodes if name in fleet.nodes))
        self._free: dict[int, int] = {}
        self._rows, self._near = _array(rows), _array(near)
        processors = self._near[processors_among(fleet, self._near)]  # accelerators use the same processors
        self._rows = np.union1d(self._rows, processors)
        if self._capped and len(near):  # the power that they no longer draw is open to the whole leaf
            leaf = fleet.leaf[fleet.node]
            self._near = np.flatnonzero(np.isin(leaf, leaf[self._near]))

    def reaches(self, key: QueueKey, tried: _Tried) -> bool:
        """Whether a queue that was tried may fit now."""
        team, shape = key.team, key.shape
        if tried.limited and (self._changes.joined or self._less_used(team)):
            return True
        if tried.shut or not (self._changes.joined or self._enough(shape, tried)):
            return False
        if shape.spread[0] and (team, shape.spread[0]) in self._changes.peers:
            return True
        if self._changes.joined and (self._capped or shape.spread[0] or shape.torus):  # depends on other nodes, too
            return True
        fleet, beside = self._state.fleet, self._capped or shape.cpu_milli or shape.host_mib or shape.roles
        rows = self._near if beside else self._rows
        if not any(job_id in self._state.holds for job_id in tried.jobs):
            rows = rows[fleet.held[rows] == NOBODY]
        return _serve(fleet, rows, fleet.free_milli, shape)

    def _enough(self, shape: Shape, tried: _Tried) -> bool:
        """Whether the pool has as many devices free as the least that `shape` asks for, wherever they are. Counted once for all
        queues, so wide gangs that wait cost next to nothing while it has not."""
        if any(job_id in self._state.holds for job_id in tried.jobs):
            return True
        if shape.milli not in self._free:
            fleet = self._state.fleet
            free = fleet.up & (fleet.held == NOBODY) & (fleet.free_milli >= shape.milli)
            self._free[shape.milli] = int(np.count_nonzero(free))
        return self._free[shape.milli] >= shape.least

    def _less_used(self, team: str) -> bool:
        back, state = self._changes.teams, self._state
        return not back.isdisjoint(state.tree.bounded_with(team)) or state.budgets.helped(team, back)


def _serve(fleet: Fleet, rows: Ints, free_milli: Ints, shape: Shape) -> bool:
    """Whether one of `rows` has room for one device of `shape`, which could run there."""
    rows = rows[free_milli[rows] >= shape.milli]
    return bool(len(rows)) and bool(usable_of(fleet, shape, rows).any())


def _kept_out(why: Blocked) -> bool:
    """Whether it may lack what is kept for another job."""
    return any(reason in _KEPT for reason, _ in why.removed)


def _turns(job: Job, t_us: int, policy: Policy) -> list[int]:
    """Times after `t_us` at which the job may fit because it waited: its topology widens, or its reservation falls due."""
    waits = {job.shape.widen_us, *(role.widen_us for role in job.shape.roles)}
    times = [*(job.queued_us + wait for wait in waits), due_us(job, policy)]
    return [at for at in times if at > t_us]


def _array(rows: set[int]) -> Ints:
    return np.array(sorted(rows), dtype=np.int64)
