"""Who gives way to whom within a class: an exchange of running jobs for a waiting one whose number is much smaller.

**What it decides.** A waiting job (the beneficiary) does not fit now. On a node, or on as many as its groups need, enough
devices are free or with jobs whose number exceeds its own by the factor and the losses of `OrderKnobs`; they are the
victims. Chosen are the nodes on which the victim with the smallest number has the largest one (nothing better placed is
disturbed), of equals those where the fewest devices beyond the need are freed. Nobody gives way unless the whole gang then
fits, and what is freed is held for it: the plan is a `PreemptionPlanned` like any other, checked by `preemption.check`.

A gang that gets no room so may have it where jobs that stand before it are in the way and find as many free devices
elsewhere (`moves`): where the fewest devices move, if what that loses is less than what is left of the gang.

At a limit of the team, or of a queue above it, devices alone do not help. There those with the largest numbers give way,
wherever they run, until the whole gang fits below the limit as well; who is moved frees nothing there.

**What it leaves alone.** Jobs that share a device, jobs of several device models or with limits of their own (their plans
are those of `libs.core.scheduling.preemption`), jobs of other classes and other teams, jobs that have run less than
`min_run_s` and jobs that were let in for their age, for `slice_s`.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from libs.core.accelerators.kinds import weight
from libs.core.placement.view import NOBODY
from libs.core.scheduling.limits import BudgetShort, Reached, Tally
from libs.core.scheduling.precedence.moves import MoveTargets, needs
from libs.core.scheduling.precedence.served import Floats, Ints
from libs.core.scheduling.precedence.turns import Precedence
from libs.core.scheduling.preemption_guard import PreemptionGuard
from libs.core.state.fleet import Bools
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas.ids import event_id
from schemas.inbox import MOST_VICTIMS, PreemptionPlanned

CONSIDERED = 32
"""Waiting jobs that one call looks at: the first of as many queues."""


_TRIES = 8
"""Nodes more than needed that a plan with movers looks at."""
_WHY = {False: "much less is left of it", True: "others find devices elsewhere"}


def exchanges(
    state: State, precedence: Precedence, t_us: int, base_seq: int, tried: set[str] | None = None
) -> list[PreemptionPlanned]:
    """Plans for waiting jobs that others of their class should give way to now. Changes nothing but `tried`: jobs that were
    looked at before and found nothing, and that nothing can have helped since; those that are due are looked at always."""
    if not precedence.rules.preempts or not state.queues:
        return []
    waiting = _first(state, precedence, t_us)[:CONSIDERED]
    if tried is not None:
        waiting = [(number, job) for number, job in waiting if number <= 0 or job.id not in tried]
        tried.update(job.id for _, job in waiting)
    if not waiting:
        return []
    served = precedence.served
    slots = np.flatnonzero(served.running & (served.rule > 0))
    guard = PreemptionGuard(state, t_us)
    if guard.exchanges:
        asked = [
            slot for slot in slots.tolist() if not guard.until_us(state.jobs[served.ids[slot]], lent=False, own=True)
        ]
        slots = np.array(asked, dtype=np.int64)
    if not len(slots):
        return []
    board = _ExchangeBoard(state, precedence, slots, t_us)
    tally = Tally(state)
    found: list[PreemptionPlanned] = []
    for number, job in waiting:
        if board.most <= number and job.shape.devices == 1:
            continue
        need = needs(job.shape)
        if need is None:
            continue
        plan = board.plan(job, number, need, tally)
        gone = sum(len(made.victims) for made in found)
        for_team = sum(len(made.victims) for made in found if state.jobs[made.beneficiary].team == job.team)
        if plan is None or len(plan.victims) > MOST_VICTIMS:
            continue
        if guard.exchanges and not guard.together(len(plan.victims), job.team, gone, for_team):
            continue
        board.carry_out(plan)
        rows, victims = plan.rows, plan.victims
        tally.keep(job, rows.tolist(), board.jobs(plan.givers))
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
                reason=f"{precedence.rules.of(job.team).value}: {_WHY[bool(plan.movers)]}",
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
        for job_id in precedence.turn(key) if precedence.rules.by_number(key.team) else ():
            if job_id in state.holds:
                continue
            job = state.jobs[job_id]
            number = precedence.rank_number(job_id, t_us)
            found.append((number, job.submitted_us, job_id))
            break
    return [(number, state.jobs[job_id]) for number, _, job_id in sorted(found)]


@dataclass(slots=True)
class _ByNode:
    """Devices of jobs that may leave them, by node, on each those of the largest number first, shape (V,)."""

    rows: Ints
    slots: Ints
    limit: Floats
    """A beneficiary with a number below this makes the job give way; with another it is moved."""
    node: Ints
    begin: Ints
    """Shape (N + 1,): where each node's devices begin."""

    @classmethod
    def made(cls, rows: Ints, slots: Ints, limit: Floats, node: Ints, nodes: int) -> "_ByNode":
        return cls(rows, slots, limit, node, np.searchsorted(node, np.arange(nodes + 1)))

    def only(self, mask: Bools) -> "_ByNode":
        """Some of them."""
        if mask.all():
            return self
        nodes = len(self.begin) - 1
        return _ByNode.made(self.rows[mask], self.slots[mask], self.limit[mask], self.node[mask], nodes)

    def nodes(self, free: Ints, open_: Bools, size: int, number: float) -> Ints:
        """Nodes on which so many devices are free or may be left, the best first: where the fewest move, then where the
        last to give way is the least urgent."""
        missing = np.maximum(0, size - free)
        here = np.diff(self.begin)
        give_way = np.bincount(self.node[self.limit > number], minlength=len(here))
        last = np.clip(self.begin[:-1] + np.minimum(missing, give_way) - 1, 0, max(0, len(self.limit) - 1))
        limit = np.where(missing == 0, np.inf, self.limit[last] if len(self.limit) else -np.inf)
        able = np.flatnonzero((free + here >= size) & open_)
        best: Ints = able[np.lexsort((free[able], -limit[able], np.maximum(0, missing - give_way)[able]))]
        return best

    def leave(self, node: int, missing: int, number: float) -> dict[int, list[int]]:
        """Who leaves a node so that so many devices more are free, each with its rows there: those that give way first,
        then of those that are moved the smallest that does, or else the largest."""
        there: dict[int, list[int]] = {}
        move: dict[int, list[int]] = {}
        for at in range(int(self.begin[node]), int(self.begin[node + 1])):
            into = there if self.limit[at] > number else move
            into.setdefault(int(self.slots[at]), []).append(int(self.rows[at]))
        found: dict[int, list[int]] = {}
        for slot, rows in there.items():
            if missing <= 0:
                break
            found[slot] = rows
            missing -= len(rows)
        while missing > 0 and move:
            enough = [slot for slot, rows in move.items() if len(rows) >= missing]
            slot = min(enough, key=lambda one: len(move[one])) if enough else max(move, key=lambda one: len(move[one]))
            found[slot] = move.pop(slot)
            missing -= len(found[slot])
        return found


@dataclass(frozen=True, slots=True)
class _ExchangePlan:
    """Rows for the beneficiary, the slots of all who leave them, and which of those are moved."""

    rows: Ints
    victims: list[int]
    movers: list[int]

    @property
    def givers(self) -> list[int]:
        """Those that are not moved."""
        return [slot for slot in self.victims if slot not in self.movers]


class _ExchangeBoard:
    """Free devices and those of jobs that may give way, as plans are made one after the other."""

    def __init__(self, state: State, precedence: Precedence, slots: Ints, t_us: int) -> None:
        self._state, self._precedence, self._fleet = state, precedence, state.fleet
        self._limit = np.full(len(precedence.served.width), -np.inf)
        self._limit[slots] = precedence.numbers.limits(slots, t_us)
        self.most = float(self._limit[slots].max())
        self._may_move = np.zeros(len(self._limit), dtype=np.bool_)
        self._may_move[slots[precedence.numbers.settled(slots, t_us) & precedence.served.movable[slots]]] = True
        self._elsewhere = MoveTargets(state)
        self._sorted: dict[tuple[str, int], _ByNode] = {}

    def plan(self, job: Job, number: float, need: tuple[tuple[int, int], ...], tally: Tally) -> _ExchangePlan | None:
        """What helps the job; None when no exchange does."""
        free, everybody = self._elsewhere.free(job.shape), self._devices(job)
        devices = everybody.only(self._elsewhere.usable(job.shape)[everybody.rows])
        give_way = devices.limit > number
        plan = self._plan(number, need, free, devices.only(give_way)) if self.most > number else None
        if plan is None and job.shape.devices > 1 and len(free) + int(give_way.sum()) >= job.shape.devices:
            plan = self._plan(number, need, free, devices.only(give_way | self._may_move[devices.slots]))
        if plan is not None and tally.limited(job.team):
            plan = self._below_limits(job, plan, everybody.only(everybody.limit > number), tally)
        return plan if plan is not None and plan.victims else None

    def _below_limits(self, job: Job, plan: _ExchangePlan, others: _ByNode, tally: Tally) -> _ExchangePlan | None:
        """The plan with as many victims more, the largest numbers first, as the whole gang takes below the limits of its team;
        None: all together are too few, or a budget is short, which nobody refills by giving way."""
        below: _ExchangePlan | None = plan
        while below is not None:
            over = tally.exceeded(job, below.rows.tolist(), self.jobs(below.givers))
            if over is None:
                return below
            below = None if isinstance(over, BudgetShort) else self._clear(job, below, over, others, tally)
        return None

    def _clear(
        self, job: Job, plan: _ExchangePlan, over: Reached, others: _ByNode, tally: Tally
    ) -> _ExchangePlan | None:  # fmt: skip
        """The plan with the fewest victims more with which the job does not reach this limit; None: all are too few."""
        rows, line = plan.rows.tolist(), (over.queue, over.key)
        counted = [weight(over.key, self._fleet.kind(row)) > 0 for row in others.rows.tolist()]
        slots, limit = others.slots[counted], others.limit[counted]
        by_number = slots[np.lexsort((slots, -limit))].tolist()
        more = [slot for slot in dict.fromkeys(by_number) if slot not in plan.victims][:MOST_VICTIMS]

        def clears(count: int) -> bool:
            still = tally.exceeded(job, rows, self.jobs([*plan.givers, *more[:count]]))
            return not isinstance(still, Reached) or (still.queue, still.key) != line

        fewest = bisect_left(range(len(more) + 1), True, key=clears)
        if fewest > len(more):
            return None
        return _ExchangePlan(plan.rows, [*plan.victims, *more[:fewest]], plan.movers)

    def carry_out(self, plan: _ExchangePlan) -> None:
        """The plan is made: others are made of what it leaves."""
        self._elsewhere.give(plan.rows)
        self._elsewhere.take_all(self.jobs(plan.movers))
        self._limit[plan.victims] = -np.inf
        self._sorted.clear()

    def _plan(
        self, number: float, need: tuple[tuple[int, int], ...], free: Ints, devices: _ByNode
    ) -> _ExchangePlan | None:  # fmt: skip
        node = self._fleet.node
        free_count = np.bincount(node[free], minlength=len(self._fleet.node_names))
        open_ = np.ones(len(free_count), dtype=np.bool_)
        worth_s = number if number >= 0 else np.inf
        rows: list[int] = []
        victims: dict[int, None] = {}
        movers: list[int] = []
        for groups, size in need:
            missing = groups
            for at in devices.nodes(free_count, open_, size, number)[: groups + _TRIES].tolist():
                mine = free[node[free] == at][:size].tolist()
                leave = devices.leave(at, size - len(mine), number)
                moved = [slot for slot in leave if self._limit[slot] <= number]
                left = [row for there in leave.values() for row in there]
                if moved and not self._move([*movers, *moved], [*rows, *mine, *left], worth_s):
                    continue
                rows += (mine + left)[:size]
                victims.update(dict.fromkeys(leave))
                movers += moved
                open_[at] = False
                missing -= 1
                if not missing:
                    break
            if missing:
                return None
        return _ExchangePlan(np.array(rows, dtype=np.int64), list(victims), movers)

    def _move(self, slots: list[int], without: list[int], worth_s: float) -> bool:
        """Whether these find devices elsewhere, and lose less by it than it is worth."""
        lost_s = self._precedence.knobs.loss_s * int(self._precedence.served.width[slots].sum())
        return lost_s <= worth_s and self._elsewhere.without(without).take_all(self.jobs(slots))

    def jobs(self, slots: list[int]) -> list[Job]:
        """Of these slots."""
        return [self._state.jobs[self._precedence.served.ids[slot]] for slot in slots]

    def _devices(self, job: Job) -> _ByNode:
        """Those of jobs of the same class and team."""
        known = self._sorted.get((job.team, job.priority))
        if known is not None:
            return known
        fleet, served = self._fleet, self._precedence.served
        rows = np.flatnonzero(served.owner >= 0)
        slots = served.owner[rows]
        mine = np.isfinite(self._limit) & (served.peers == served.peers_of(job))
        kept = mine[slots] & (fleet.held[rows] == NOBODY)
        rows, slots = rows[kept], slots[kept]
        # By node, then the largest number, then the slot: one key, because a sort by three takes three times as long.
        there = np.flatnonzero(mine)
        place = np.zeros(len(mine), dtype=np.int64)
        place[there[np.lexsort((there, -self._limit[there]))]] = np.arange(len(there))
        order = np.argsort(fleet.node[rows] * max(1, len(there)) + place[slots], kind="stable")
        rows, slots = rows[order], slots[order]
        made = _ByNode.made(rows, slots, self._limit[slots], fleet.node[rows], len(fleet.node_names))
        self._sorted[(job.team, job.priority)] = made
        return made
