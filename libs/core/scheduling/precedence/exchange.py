"""Who gives way to whom within a class: an exchange of running jobs for a waiting one whose number is much smaller.

**What it decides.** A waiting job (the beneficiary) does not fit now. On a node, or on as many as its groups need, enough
devices are free or with jobs whose number exceeds its own by the factor and the losses of `OrderKnobs`; they are the
victims. Chosen are the nodes on which the victim with the smallest number has the largest one (nothing better placed is
disturbed), of equals those where the fewest devices beyond the need are freed. Nobody gives way unless the whole gang then
fits, and what is freed is held for it: the plan is a `PreemptionPlanned` like any other, checked by `preemption.check`.

**What it leaves alone.** Jobs that share a device, jobs of several device models or with limits of their own (their plans
are those of `libs.core.scheduling.preemption`), jobs of other classes and other teams, jobs that have run less than
`min_run_s` and jobs that were let in for their age, for `slice_s`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from libs.core.placement.search.gang import usable
from libs.core.placement.view import NOBODY, View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.precedence.served import Floats, Ints
from libs.core.scheduling.precedence.turns import Precedence
from libs.core.scheduling.spared import Spared
from libs.core.state.fleet import Bools
from libs.core.state.model import Job, Shape, State
from schemas.ids import event_id
from schemas.inbox import MOST_VICTIMS, PreemptionPlanned
from schemas.resources import WHOLE_MILLI, Level

CONSIDERED = 32
"""Waiting jobs that one call looks at: the first of as many queues."""


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


def exchanges(state: State, precedence: Precedence, t_us: int, base_seq: int) -> list[PreemptionPlanned]:
    """Plans for waiting jobs that others of their class should give way to now. Changes nothing."""
    if not precedence.preempts or not state.queues:
        return []
    waiting = _first(state, precedence, t_us)
    served = precedence.served
    slots = np.flatnonzero(served.running & (served.guarded_us <= t_us) & (served.rule > 0))
    spared = Spared(state, t_us)
    if spared.exchanges:
        asked = [slot for slot in slots.tolist() if not spared.until_us(state.jobs[served.ids[slot]], lent=False)]
        slots = np.array(asked, dtype=np.int64)
    if not waiting or not len(slots):
        return []
    board = _ExchangeBoard(state, precedence, slots, t_us)
    tally = Tally(state)
    found: list[PreemptionPlanned] = []
    for number, job in waiting[:CONSIDERED]:
        if board.most <= number:
            break
        need, room = needs(job.shape), tally.room(job)
        if need is None or room.request != job.shape:
            continue
        plan = board.plan(job, number, need)
        if plan is None:
            continue
        rows, victims = plan
        gone = sum(len(made.victims) for made in found)
        if len(victims) > MOST_VICTIMS or (spared.exchanges and not spared.together(len(victims), gone)):
            continue
        tally.take(job, rows.tolist())
        costs = tuple(precedence.knobs.loss_s * int(served.width[slot]) for slot in victims)
        found.append(
            PreemptionPlanned(
                plan_id=event_id(f"{base_seq}", "preemption.exchange", job.id),
                base_seq=base_seq,
                beneficiary=job.id,
                victims=tuple(served.ids[slot] for slot in victims),
                devices=tuple(state.fleet.devices.names[row] for row in rows.tolist()),
                cost_device_s=sum(costs),
                costs_device_s=costs,
                reason=f"{precedence.rule_of(job.team).value}: much less is left of it",
            )
        )
    return found


def apart(
    plans: Iterable[PreemptionPlanned], others: Iterable[PreemptionPlanned], waiting: Collection[str] = ()
) -> list[PreemptionPlanned]:
    """The plans that have nothing to do with `others`, nor with each other's; none for those of `waiting`."""
    taken: set[str] = set(waiting)
    for other in others:
        taken |= {other.beneficiary, *other.victims, *other.devices}
    found = []
    for plan in plans:
        names = {plan.beneficiary, *plan.victims, *plan.devices}
        if taken.isdisjoint(names):
            found.append(plan)
            taken |= names
    return found


def _first(state: State, precedence: Precedence, t_us: int) -> list[tuple[float, Job]]:
    """The first job of each queue for which nothing is held, the smallest number first; one that is due counts as 0."""
    found = []
    for key in state.queues:
        for job_id in precedence.turn(key) if precedence.orders(key.team) else ():
            if job_id in state.holds:
                continue
            job = state.jobs[job_id]
            number = precedence.rank_number(job_id, t_us)
            found.append((number, job.submitted_us, job_id))
            break
    return [(number, state.jobs[job_id]) for number, _, job_id in sorted(found)]


@dataclass(slots=True)
class _ByNode:
    """Devices of jobs that may give way, by node, on each those of the largest number first, shape (V,)."""

    rows: Ints
    slots: Ints
    limit: Floats
    """The number that the beneficiary must stay below."""
    begin: Ints
    """Shape (N + 1,): where each node's devices begin."""


class _ExchangeBoard:
    """Free devices and those of jobs that may give way, as plans are made one after the other."""

    def __init__(self, state: State, precedence: Precedence, slots: Ints, t_us: int) -> None:
        self._state, self._precedence, self._fleet = state, precedence, state.fleet
        self._limit = np.full(len(precedence.served.width), -np.inf)
        self._limit[slots] = precedence.limits(slots, t_us)
        self.most = float(self._limit[slots].max())
        fleet = state.fleet
        self._view = View.of(fleet)
        self._taken = np.zeros(len(fleet.up), dtype=np.bool_)
        self._usable: dict[Shape, tuple[Ints, Bools]] = {}
        self._sorted: dict[tuple[str, int], _ByNode] = {}

    def plan(self, job: Job, number: float, need: tuple[tuple[int, int], ...]) -> tuple[Ints, list[int]] | None:
        """Rows for the job and the slots of those who give way; None when no exchange helps it."""
        free, usable_mask = self._free(job.shape)
        devices = self._devices(job)
        nodes = len(self._fleet.node_names)
        free_count = np.bincount(self._fleet.node[free], minlength=nodes)
        chosen: list[tuple[int, int]] = []
        open_ = np.ones(nodes, dtype=np.bool_)
        for groups, size in need:
            for node in self._nodes(devices, free_count, open_, groups, size, number):
                open_[node] = False
                chosen.append((node, size))
        if len(chosen) < sum(groups for groups, _ in need):
            return None
        rows: list[int] = []
        victims: dict[int, None] = {}
        for node, size in chosen:
            mine = free[self._fleet.node[free] == node][:size].tolist()
            begin, end = int(devices.begin[node]), int(devices.begin[node + 1])
            missing = size - len(mine)
            for at in range(begin, end):
                if missing <= 0:
                    break
                row, slot = int(devices.rows[at]), int(devices.slots[at])
                if usable_mask[row]:
                    mine.append(row)
                    victims[slot] = None
                    missing -= 1
            if missing > 0:
                return None
            rows.extend(mine)
        if not victims:
            return None
        taken = np.array(rows, dtype=np.int64)
        self._taken[taken] = True
        for slot in victims:
            self._limit[slot] = -np.inf
        self._sorted.clear()
        return taken, list(victims)

    def _nodes(
        self, devices: _ByNode, free: Ints, open_: Bools, groups: int, size: int,
        number: float,
    ) -> list[int]:  # fmt: skip
        """The best nodes for so many groups of this size; fewer when there are not enough."""
        missing = size - free
        last = devices.begin[:-1] + missing - 1
        enough = (missing <= 0) | (last < devices.begin[1:])
        at = np.clip(last, 0, max(0, len(devices.limit) - 1))
        limit = np.where(missing <= 0, np.inf, devices.limit[at] if len(devices.limit) else -np.inf)
        able = np.flatnonzero(enough & open_ & (limit > number) & (free + np.diff(devices.begin) >= size))
        best = able[np.lexsort((free[able], -limit[able]))][:groups]
        return [int(node) for node in best]

    def _free(self, shape: Shape) -> tuple[Ints, Bools]:
        mask = usable(self._view, shape)
        fleet = self._fleet
        free = mask & (fleet.free_milli == WHOLE_MILLI) & (fleet.held == NOBODY) & ~self._taken
        return np.flatnonzero(free), mask

    def _devices(self, job: Job) -> _ByNode:
        known = self._sorted.get((job.team, job.priority))
        if known is not None:
            return known
        fleet, owner = self._fleet, self._precedence.served.owner
        rows = np.flatnonzero(owner >= 0)
        rows = rows[~self._taken[rows] & (fleet.held[rows] == NOBODY)]
        rows = rows[np.isfinite(self._limit[owner[rows]])]
        rows = self._of_class(rows, job)
        slots = owner[rows]
        order = np.lexsort((slots, -self._limit[slots], fleet.node[rows]))
        rows, slots = rows[order], slots[order]
        begin = np.searchsorted(fleet.node[rows], np.arange(len(fleet.node_names) + 1))
        made = self._sorted[(job.team, job.priority)] = _ByNode(rows, slots, self._limit[slots], begin)
        return made

    def _of_class(self, rows: Ints, job: Job) -> Ints:
        """Those of jobs of the same class and team."""
        owner, ids, jobs = self._precedence.served.owner, self._precedence.served.ids, self._state.jobs
        slots = np.unique(owner[rows])
        mine = [
            slot for slot in slots.tolist() if (v := jobs[ids[slot]]).priority == job.priority and v.team == job.team
        ]
        return rows if len(mine) == len(slots) else rows[np.isin(owner[rows], mine)]
