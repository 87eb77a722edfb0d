"""What each victim would free, and where. Worked out once per computation, since a search tries hundreds of sets."""

from collections.abc import Callable, Collection, Iterable
from functools import cached_property

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.view import View
from libs.core.scheduling.preemption.check import would_be_free
from libs.core.scheduling.preemption.cost import ClassCosts, cost_device_s, in_thousandths
from libs.core.scheduling.spared import Spared
from libs.core.state.fleet import Bools, Ints
from libs.core.state.lifecycle import PREEMPTIBLE
from libs.core.state.model import Job, State, running
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI

Bound = tuple[ClassCosts, int, int]
"""What a group is searched by: the least that its victims can cost, how many victims that needs, its first row."""


Together = Callable[[Iterable[Job]], list[Job]]

RoomWithout = Callable[[Shape, Collection[Job]], Shape | None]
"""A request and victims -> how much of it the limits leave when these have given way; None: not even its least."""


class Holdings:
    """What the jobs that can give way at `t_us` hold: the same for all beneficiaries of one computation.

    Each part is made on first use, because most computations find that no job needs to give way.
    """

    def __init__(self, state: State, t_us: int, spared: Spared | None = None) -> None:
        """`spared`: who need not give way; None: as the limits of `state` say."""
        self.state, self.t_us = state, t_us
        self.spared = spared if spared is not None else Spared(state, t_us)

    @cached_property
    def jobs(self) -> dict[str, Job]:
        return {j.id: j for j in running(self.state) if j.state in PREEMPTIBLE and j.current is not None}

    @cached_property
    def cost_s(self) -> dict[str, float]:
        """Of each of `jobs`, device-seconds."""
        return {job.id: cost_device_s(job, self.t_us) for job in self.jobs.values()}

    @cached_property
    def empty(self) -> View:
        """What is free before any job gives way. Not to be written to."""
        return would_be_free(self.state, [])

    @cached_property
    def claims(self) -> dict[str, Ints]:
        """What each of `jobs` would give back, a row per device: fleet row, node, milli, MiB, processors, host MiB; (n, 6)."""
        held = [
            [c for part in job.current.parts.values() if not part.freed for c in part.claims] if job.current else []
            for job in self.jobs.values()
        ]
        fleet, find_row = self.state.fleet, self.state.fleet.devices.find
        given = [
            (find_row(c.device), c.milli, c.memory_mib, c.cpu_milli, c.host_memory_mib)
            for claims in held
            for c in claims
        ]
        columns = np.array(given, dtype=np.int64).reshape(len(given), 5)
        table = np.insert(columns, 1, fleet.node[columns[:, 0]], axis=1)
        ends = np.cumsum([len(claims) for claims in held], dtype=np.int64).tolist()
        return {job: table[end - len(claims) : end] for job, claims, end in zip(self.jobs, held, ends, strict=True)}

    @cached_property
    def on_row(self) -> dict[int, list[str]]:
        """Row -> those of `jobs` that hold (a share of) it."""
        found: dict[int, list[str]] = {}
        for job_id, table in self.claims.items():
            for row in table[:, 0].tolist():
                found.setdefault(row, []).append(job_id)
        return found


class VictimIndex:
    """Who can give way to `job` and what that would free.

    `bound` is a cost that no victims within a group can beat. So groups are searched in order of promise, and most never
    are: on 1,000 full nodes that is the difference between seconds and milliseconds.
    """

    def __init__(
        self,
        holdings: Holdings,
        job: Job,
        victims: Iterable[Job],
        possible: Bools,
        admitted: Together = list,
        room: RoomWithout | None = None,
    ) -> None:
        """`victims` are of `holdings` and may give way; `possible`: devices that may become the job's, shape (D,).

        `admitted`: of victims in order, those that may give way together; any part of its answer may as well. `room`: the job
        waits at a limit, and gets what that leaves it without victims; None: it gets what it asks for."""
        self.admitted = admitted
        self.room = room
        self.victims = {victim.id: victim for victim in victims}
        self.cost = {victim: in_thousandths(holdings.cost_s[victim]) for victim in self.victims}
        """Thousandths of device-seconds."""
        self.classes = sorted({victim.priority for victim in self.victims.values()}, reverse=True)
        """Priorities that occur, highest first: the places of `ClassCosts`."""
        self._place = {priority: place for place, priority in enumerate(self.classes)}
        self.possible = possible
        self._holdings, self._job = holdings, job
        self._need, self._whole = job.shape.least, job.shape.whole
        self._free = possible & (holdings.state.fleet.free_milli == WHOLE_MILLI)

    def up_to(self, priority: int) -> "VictimIndex":
        """The same for victims of at most `priority`."""
        victims = [victim for victim in self.victims.values() if victim.priority <= priority]
        return VictimIndex(self._holdings, self._job, victims, self.possible, self.admitted, self.room)

    def claims(self, victim: str) -> Ints:
        """What it would give back; see `Holdings.claims`."""
        return self._holdings.claims[victim]

    def costs(self, victims: Iterable[Job]) -> ClassCosts:
        """What `victims` cost together."""
        total = [0] * len(self.classes)
        for victim in victims:
            total[self._place[victim.priority]] += self.cost[victim.id]
        return tuple(total)

    def fits(self, victims: Collection[Job], inside: Bools) -> Placed | None:
        """Where the job goes on the devices `inside` (mask of shape (D,)) when `victims` have given way: the question
        that a plan is checked by, on what `would_be_free` and within its limits."""
        shape = self._job.shape if self.room is None else self.room(self._job.shape, victims)
        if shape is None:
            return None
        view, gone = self._holdings.empty.copy(), [victim.id for victim in victims]
        if gone:
            row, node, milli, mib, cpu_milli, host_mib = np.concatenate([self.claims(v) for v in gone]).T
            np.add.at(view.free_milli, row, milli)
            np.add.at(view.free_mib, row, mib)
            np.add.at(view.free_cpu, node, cpu_milli)
            np.add.at(view.free_host, node, host_mib)
        view.blocked |= ~inside
        context = context_of(self._holdings.state, self._job, self._holdings.t_us, without=set(gone))
        placed = find(view, shape, context=context)
        return placed if isinstance(placed, Placed) else None

    def elsewhere(self, rows: Ints) -> list[str]:
        """Those that hold nothing of `rows`, for a job that waits at a limit: what they give back makes room below it. Lowest
        class first, then cost per device."""
        if self.room is None:
            return []
        near, cost = self.frees(rows), self.cost
        far = [victim for victim in self.victims if victim not in near]
        return sorted(far, key=lambda v: (self.victims[v].priority, cost[v] / max(1, len(self.claims(v))), v))

    def frees(self, rows: Ints) -> dict[str, int]:
        """Victim -> devices of `rows` that it holds (a share of)."""
        found: dict[str, int] = {}
        on_row = self._holdings.on_row
        for row in rows.tolist():
            for victim in on_row.get(row, ()):
                if victim in self.victims:
                    found[victim] = found.get(victim, 0) + 1
        return found

    def missing(self, rows: Ints) -> int:
        """Devices of `rows` that victims must free at the least; 0 for a share, which may fit beside others."""
        return max(0, self._need - int(np.count_nonzero(self._free[rows]))) if self._whole else 0

    def in_order(self, frees: dict[str, int]) -> list[str]:
        """Victims in the order in which they are taken: lowest class first, then cost per device that they free."""
        return sorted(frees, key=lambda v: (self.victims[v].priority, self.cost[v] / frees[v], v))

    def bound(self, rows: Ints) -> Bound | None:
        """A lower bound of what any victims that make room within `rows` cost; None when all of them are too few.

        The missing devices at the lowest classes first and the lowest cost per device within a class, the last victim
        in part: a fractional knapsack. No set of victims can do with less of the highest class that this needs. One that
        costs as little there frees as few devices there (each more costs at least a restart), and so needs all victims
        of the lower classes, as this does. When no device is missing (a share, or processors that lack) the cheapest
        single victim is the bound: nobody would be asked if the job fitted as it is.
        """
        frees, missing, first = self.frees(rows), self.missing(rows), int(rows[0])
        total = [0] * len(self.classes)
        if missing == 0:
            cheapest = min(
                frees if self.room is None else self.victims,
                key=lambda v: (self.victims[v].priority, self.cost[v]),
                default=None,
            )
            return (self.costs([self.victims[cheapest]]), 1, first) if cheapest is not None else None
        for number, victim in enumerate(self.in_order(frees), 1):
            taken = min(frees[victim], missing)
            total[self._place[self.victims[victim].priority]] += self.cost[victim] * taken // frees[victim]
            missing -= taken
            if missing == 0:
                return tuple(total), number, first
        return None
