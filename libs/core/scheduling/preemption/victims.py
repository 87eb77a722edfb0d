"""Who gives way to whom: the cheapest set of whole gangs whose devices let the beneficiary run at once.

Solved on the would-be-free fleet first: nobody is evicted unless the whole placement then fits. Two steps:

1. *Where*: for each group of the narrowest level that could hold the beneficiary (node, then leaf, ...), victims are
   taken in order of cost per device that they would free there, until it fits (by bisection); each victim that turns
   out not to be needed is given back (most expensive first). The cheapest group of that level wins; groups whose lower
   bound is above it are not searched.
2. *Cost* of a victim: device-seconds since its last checkpoint (or its start) x its gang's size, plus a restart. What a
   gang has done since its checkpoint is redone by all of its devices, also those that nobody needs.

A gang is never cut: all of it gives way, also its parts elsewhere. Greedy with a clean-up pass is not always the
optimum of the underlying set-cover problem; it is within one victim per group of it. A group costs O(log victims)
searches and those of the clean-up, `_TRIES` at most.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

import numpy as np

from libs.core.placement import Placed, View, find
from libs.core.placement.context import context_of
from libs.core.placement.search.gang import usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.reactions import would_be_free
from libs.core.state.fleet import Bools, Ints
from libs.core.state.lifecycle import PREEMPTIBLE
from libs.core.state.model import Job, QueueKey, State
from schemas.ids import event_id
from schemas.inbox import PreemptionPlanned
from schemas.resources import WHOLE_MILLI

RESTART_S = 30.0
"""What a restart costs a gang besides lost work, s per device: start, load of the checkpoint, warm-up."""


_CENT = 1e-3
"""Costs closer than this, device-seconds, are equal: then the group that needs fewer victims is searched first."""


_TRIES = 32
"""Of so many victims each is tried to be given back. Of more, those go first from whom the beneficiary would get nothing,
all at once; then a quarter of so many are tried."""


@dataclass(frozen=True, slots=True)
class VictimChoice:
    """Victims and what they cost (device-seconds), and where the beneficiary would then run."""

    cost: float
    victims: tuple[Job, ...]
    placed: Placed


def plans(state: State, t_us: int, base_seq: int) -> list[PreemptionPlanned]:
    """Plans for the waiting jobs whose class may preempt and that do not fit now, highest priority and oldest first."""
    names = state.fleet.devices.names
    return [
        PreemptionPlanned(
            plan_id=event_id(f"{base_seq}", "preemption.plan", job.id),
            base_seq=base_seq,
            beneficiary=job.id,
            victims=tuple(victim.id for victim in choice.victims),
            devices=tuple(names[row] for row in choice.placed.rows.tolist()),
            cost_device_s=choice.cost,
            reason=f"priority {job.priority} of {job.spec.priority_class}",
        )
        for job, choice in choices(state, t_us)
    ]


def choice_for(state: State, job: Job, t_us: int) -> VictimChoice | None:
    """Who gives way to `job`, which waits in `state`, after those that come before it; None when nobody does."""
    if not job.preempts:
        return None
    return {beneficiary.id: choice for beneficiary, choice in choices(state, t_us, until=job.id)}.get(job.id)


def choices(state: State, t_us: int, until: str = "") -> Iterator[tuple[Job, VictimChoice]]:
    """Beneficiaries and who gives way to them, in order, none behind the job `until`.

    Each is chosen as if the earlier ones were carried out, so that two never count on the same device.
    """
    spent: set[str] = set()
    promised = np.zeros(len(state.fleet.up), dtype=np.bool_)
    tally = Tally(state)
    hopeless: set[QueueKey] = set()
    for job in _beneficiaries(state):
        if job.queue not in hopeless:
            request = tally.room(job).request
            requested = None if request is None else replace(job, shape=request)
            placed, choice = _place(state, requested, t_us, spent, promised) if requested is not None else (None, None)
            if placed is not None:
                promised[placed.rows] = True
            elif not job.shape.widen_us:  # what comes later finds less; only who has waited longer may look further
                hopeless.add(job.queue)
            if choice is not None:
                tally.take(job, choice.placed.rows.tolist())
                spent.update(victim.id for victim in choice.victims)
                yield requested or job, choice
        if job.id == until:
            return


def _place(
    state: State, job: Job, t_us: int, spent: set[str], promised: Bools
) -> tuple[Placed | None, VictimChoice | None]:
    """Where it goes: as things are, which the next cycle grants, or else after its victims."""
    view = View.of(state.fleet)
    view.blocked |= promised
    now = find(view, job.shape, context=context_of(state, job, t_us))
    if isinstance(now, Placed):
        return now, None
    choice = _cheapest(state, job, t_us, spent, promised)
    return (choice.placed, choice) if choice is not None else (None, None)


def cost_device_s(job: Job, t_us: int) -> float:
    """What preempting `job` now throws away, device-seconds: work since its checkpoint, and a restart, for each device."""
    attempt = job.current
    assert attempt is not None
    since_us = attempt.checkpoint_us or attempt.running_us or t_us
    return sum(c.milli for c in attempt.claims) / 1000 * ((t_us - since_us) / 1e6 + RESTART_S)


def _beneficiaries(state: State) -> list[Job]:
    waiting = [
        state.jobs[job_id]
        for (_, _, _), line in state.queues.items()
        for job_id in line
        if state.jobs[job_id].preempts and job_id not in state.holds
    ]
    return sorted(waiting, key=lambda j: (-j.priority, j.submitted_us, j.id))


def _cheapest(state: State, job: Job, t_us: int, spent: set[str], promised: Bools) -> VictimChoice | None:
    possible = usable(View.of(state.fleet), job.shape) & ~promised & (state.fleet.held < 0)
    victims = [
        v
        for v in state.jobs.values()
        if v.state in PREEMPTIBLE and v.priority < job.priority and v.id not in spent and v.current is not None
    ]
    rows = np.flatnonzero(possible)
    ground = _VictimIndex(state, job, t_us, victims, possible)
    levels = allowed_levels(job.shape, context_of(state, job, t_us))
    for level in levels:
        best: VictimChoice | None = None
        groups = _groups(rows, spans_at(state.fleet, level, rows, within=levels[-1]), job.shape.least)
        for (bound, _, _), group in sorted(((ground.bound(group), group) for group in groups), key=lambda g: g[0]):
            if bound == inf or (best is not None and bound >= best.cost - _CENT):
                break
            choice = _within(ground, group)
            if choice is not None and (best is None or _rank(choice) < _rank(best)):
                best = choice
        if best is not None:
            return best
    return None


def _rank(choice: VictimChoice) -> tuple[float, int, tuple[str, ...]]:
    return (choice.cost, len(choice.victims), tuple(v.id for v in choice.victims))


def _groups(rows: Ints, codes: Ints, least: int) -> list[Ints]:
    """`rows` of each code that has at least `least` of them."""
    order = np.argsort(codes, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(codes[order])) + 1, len(rows))
    starts = np.append(0, ends[:-1])
    large = (ends - starts >= least) & (ends > starts)
    return [rows[order[start:end]] for start, end in zip(starts[large].tolist(), ends[large].tolist(), strict=True)]


class _VictimIndex:
    """What victims would free where, looked up once for a whole search.

    `bound` is a cost that no victims within a group can beat. So groups are searched in order of promise, and most never
    are: on 1,000 full nodes that is the difference between seconds and milliseconds.
    """

    def __init__(self, state: State, job: Job, t_us: int, victims: list[Job], possible: Bools) -> None:
        self.victims = {victim.id: victim for victim in victims}
        self.cost = {victim.id: cost_device_s(victim, t_us) for victim in victims}
        self.empty = would_be_free(state, [])
        """What is free while nobody has given way."""
        self._state, self._job, self._t_us = state, job, t_us
        self._claims: dict[str, Ints] = {}
        self._need, self._whole = job.shape.least, job.shape.whole
        self._free = possible & (state.fleet.free_milli == WHOLE_MILLI)
        self._on_row: dict[int, list[str]] = {}
        for victim in victims:
            assert victim.current is not None
            for claim in victim.current.claims:
                self._on_row.setdefault(state.fleet.row(claim.device), []).append(victim.id)

    def claims(self, victim: Job) -> Ints:
        """What it would give back, a line for each device: row, node, milli, MiB, processors, host MiB; shape (n, 6)."""
        known = self._claims.get(victim.id)
        if known is None:
            fleet, parts = self._state.fleet, victim.current.parts.values() if victim.current else ()
            table = [
                (row, fleet.node[row], c.milli, c.memory_mib, c.cpu_milli, c.host_memory_mib)
                for part in parts
                if not part.freed
                for c in part.claims
                for row in (fleet.row(c.device),)
            ]
            known = self._claims[victim.id] = np.array(table, dtype=np.int64).reshape(len(table), 6)
        return known

    def fits(self, victims: list[Job], inside: Bools) -> Placed | None:
        """Where the job goes on the devices `inside` (mask of shape (D,)) when `victims` have given way, as a plan is
        checked: on what `would_be_free`."""
        view = self.empty.copy()
        if victims:
            row, node, milli, mib, cpu_milli, host_mib = np.concatenate([self.claims(v) for v in victims]).T
            np.add.at(view.free_milli, row, milli)
            np.add.at(view.free_mib, row, mib)
            np.add.at(view.free_cpu, node, cpu_milli)
            np.add.at(view.free_host, node, host_mib)
        view.blocked |= ~inside
        context = context_of(self._state, self._job, self._t_us, without={v.id for v in victims})
        placed = find(view, self._job.shape, context=context)
        return placed if isinstance(placed, Placed) else None

    def frees(self, rows: Ints) -> dict[str, int]:
        """Victim -> devices of `rows` that it holds (a share of)."""
        found: dict[str, int] = {}
        for row in rows.tolist():
            for victim in self._on_row.get(row, ()):
                found[victim] = found.get(victim, 0) + 1
        return found

    def missing(self, rows: Ints) -> int:
        """Devices of `rows` that victims must free at the least; 0 for a share, which may fit beside others."""
        return max(0, self._need - int(np.count_nonzero(self._free[rows]))) if self._whole else 0

    def bound(self, rows: Ints) -> tuple[float, int, int]:
        """(cost, victims, first row) to search groups by: the missing devices at the lowest costs per device, which is a
        fractional knapsack and so never too high; infinite when they are too few."""
        missing, frees, total, victims = self.missing(rows), self.frees(rows), 0.0, 0
        if missing == 0:
            return 0.0, 0, int(rows[0])
        for each, minus_count in sorted((self.cost[victim] / count, -count) for victim, count in frees.items()):
            taken = min(-minus_count, missing)
            total, missing, victims = total + each * taken, missing - taken, victims + 1
            if missing == 0:
                return round(total, 6), victims, int(rows[0])
        return inf, 0, int(rows[0])


def _within(ground: _VictimIndex, rows: Ints) -> VictimChoice | None:
    """The cheapest victims found that let the job run on the devices `rows` alone."""
    inside = np.zeros(len(ground.empty.blocked), dtype=np.bool_)
    inside[rows] = True
    frees, missing = ground.frees(rows), ground.missing(rows)
    in_order = sorted(frees, key=lambda v: (ground.cost[v] / frees[v], v))
    victims = [ground.victims[v] for v in in_order]
    freed = list(accumulate(frees[v] for v in in_order))
    least = bisect_left(freed, missing) + 1  # fewer cannot do
    count = _fewest(lambda n: ground.fits(victims[:n], inside) is not None, max(1, least), len(victims))
    if count is None:
        return None
    few = count <= _TRIES
    chosen, tries = (victims[:count], _TRIES) if few else (_touched(ground, victims[:count], inside), _TRIES // 4)
    spare = sum(frees[v.id] for v in chosen) - missing
    for victim in sorted(chosen, key=lambda v: -ground.cost[v.id]):
        rest = [v for v in chosen if v is not victim]
        if tries and rest and frees[victim.id] <= spare:  # else the others would free too few
            tries -= 1
            if ground.fits(rest, inside) is not None:
                chosen, spare = rest, spare - frees[victim.id]
    placed = ground.fits(chosen, inside)
    assert placed is not None
    return VictimChoice(sum(ground.cost[v.id] for v in chosen), tuple(chosen), placed)


def _touched(ground: _VictimIndex, victims: list[Job], inside: Bools) -> list[Job]:
    """Those of `victims` on whose devices the job would be placed, if they suffice."""
    placed = ground.fits(victims, inside)
    assert placed is not None
    rows = set(placed.rows.tolist())
    held = [v for v in victims if not rows.isdisjoint(ground.claims(v)[:, 0].tolist())]
    return held if ground.fits(held, inside) is not None else victims


def _fewest(works: Callable[[int], bool], least: int, most: int) -> int | None:
    """The least n of `least`..`most` for which `works`, which never stops working as n grows; None when it never does."""
    if least > most:
        return None
    if works(least):
        return least
    bad, good = least, most
    if bad == good or not works(good):
        return None
    while good - bad > 1:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if works(middle) else (middle, good)
    return good
