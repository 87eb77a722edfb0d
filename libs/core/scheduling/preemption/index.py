"""What each victim would free, and where. Worked out once per computation, since a search tries hundreds of sets."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.gang import SEARCH_BUDGET
from libs.core.placement.view import Context, SearchBudget, View
from libs.core.scheduling.preemption.check import would_be_free
from libs.core.scheduling.preemption.cost import ClassCosts, cost_device_s, in_thousandths
from libs.core.scheduling.preemption_guard import PreemptionGuard
from libs.core.scheduling.reservation import Closed
from libs.core.state.fleet import Bools, Ints
from libs.core.state.job import Job
from libs.core.state.lifecycle import PREEMPTIBLE
from libs.core.state.model import State, running
from libs.core.state.shape import Shape
from schemas.inbox import MOST_VICTIMS
from schemas.resources import WHOLE_MILLI

Bound = tuple[ClassCosts, int, int]
"""What a group is searched by: the least that its victims can cost, how many victims that needs, its first row."""


Floats = npt.NDArray[np.float64]

Together = Callable[[Iterable[Job]], list[Job]]

RoomWithout = Callable[[Shape, Collection[Job]], Shape | None]
"""A request and victims -> how much of it the limits leave when these have given way; None: not even its least."""


class Holdings:
    """What the jobs that can give way at `t_us` hold: the same for all beneficiaries of one computation.

    Each part is made on first use, because most computations find that no job needs to give way.
    """

    def __init__(self, state: State, t_us: int, guard: PreemptionGuard | None = None) -> None:
        """`guard`: the limits of preemption; None: those of `state`."""
        self.state, self.t_us = state, t_us
        self.guard = guard if guard is not None else PreemptionGuard(state, t_us)
        self._lower: dict[int, list[Job]] = {}
        self._search_budgets: dict[str, SearchBudget] = {}

    def first_search(self, job: Job) -> Context:
        """What bears on two questions: whether `job` fits now, and whether it would if all gave way who may be asked. What a
        team's nested gangs may look at for two noes is bounded, as in a cycle. A search among victims is not: it ends in a
        plan."""
        context = context_of(self.state, job, self.t_us)
        if not job.shape.roles:
            return context
        return replace(context, search_budget=self._search_budgets.setdefault(job.team, SearchBudget(SEARCH_BUDGET)))

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

    def lower(self, priority: int) -> list[Job]:
        """Those of `jobs` that are below `priority`, and that no limit spares from a higher class."""
        found = self._lower.get(priority)
        if found is None:
            found = self._lower[priority] = [
                job
                for job in self.jobs.values()
                if job.priority < priority and not self.guard.until_us(job, lent=False)
            ]
        return found

    @cached_property
    def place(self) -> dict[str, int]:
        """Of each of `jobs`, its place among them."""
        return {job: place for place, job in enumerate(self.jobs)}

    @cached_property
    def cost(self) -> dict[str, int]:
        """Of each of `jobs`, thousandths of device-seconds."""
        return {job: in_thousandths(cost_s) for job, cost_s in self.cost_s.items()}

    @cached_property
    def claims(self) -> Ints:
        """What `jobs` would give back, a row per device: place of the job, fleet row, node, milli, MiB, processors, host MiB;
        (n, 7), in the order of `jobs`."""
        find_row = self.state.fleet.devices.find
        given = [
            (place, find_row(c.device), 0, c.milli, c.memory_mib, c.cpu_milli, c.host_memory_mib)
            for place, job in enumerate(self.jobs.values())
            if job.current is not None
            for part in job.current.parts.values()
            if not part.freed
            for c in part.claims
        ]
        table = np.array(given, dtype=np.int64).reshape(len(given), 7)
        table[:, 2] = self.state.fleet.node[table[:, 1]]
        return table

    @cached_property
    def on_row(self) -> dict[int, list[str]]:
        """Row -> those of `jobs` that hold (a share of) it."""
        found: dict[int, list[str]] = {}
        ids = list(self.jobs)
        for place, row in self.claims[:, :2].tolist():
            found.setdefault(row, []).append(ids[place])
        return found

    def without(self, victims: Iterable[str]) -> View:
        """What is free when `victims` have given way. A view of its own."""
        view, gone = self.empty.copy(), np.zeros(len(self.jobs), dtype=np.bool_)
        gone[[self.place[victim] for victim in victims]] = True
        _, row, node, milli, mib, cpu_milli, host_mib = self.claims[gone[self.claims[:, 0]]].T
        np.add.at(view.free_milli, row, milli)
        np.add.at(view.free_mib, row, mib)
        np.add.at(view.free_cpu, node, cpu_milli)
        np.add.at(view.free_host, node, host_mib)
        return view


class Candidates:
    """Jobs that may give way. Many beneficiaries ask the same ones, so what is known of them all is worked out once."""

    def __init__(self, holdings: Holdings, victims: Iterable[Job]) -> None:
        """`victims` are of `holdings`."""
        self.holdings = holdings
        self.victims = {victim.id: victim for victim in victims}

    @cached_property
    def classes(self) -> list[int]:
        """Priorities that occur, highest first: the places of `ClassCosts`."""
        return sorted({victim.priority for victim in self.victims.values()}, reverse=True)

    @cached_property
    def gone(self) -> View:
        """What is free when all of them have given way. Not to be written to."""
        return self.holdings.without(self.victims)

    @cached_property
    def frees(self) -> Bools:
        """Devices that are not free, and are when all of them have given way; shape (D,)."""
        freed: Bools = (self.gone.free_milli == WHOLE_MILLI) & (self.holdings.empty.free_milli < WHOLE_MILLI)
        return freed

    @cached_property
    def part_of(self) -> Floats:
        """How many victims a device takes, shape (D,): each counts with its part, the more devices it holds the less. So no
        devices can be freed by fewer victims than these numbers' sum, wherever they are."""
        row, part, _ = self._held
        return np.bincount(row, weights=part, minlength=len(self.frees)).astype(np.float64)

    @cached_property
    def cost_of(self) -> Ints:
        """The same for what victims cost, class by class, highest first; shape (D, classes)."""
        row, part, owner = self._held
        place = {priority: place for place, priority in enumerate(self.classes)}
        jobs = list(self.holdings.jobs.values())
        found = np.zeros((len(self.frees), len(self.classes)), dtype=np.int64)
        which = np.array([place[jobs[one].priority] for one in owner.tolist()], dtype=np.int64)
        cost = np.array([self.holdings.cost[jobs[one].id] for one in owner.tolist()], dtype=np.int64)
        np.add.at(found, (row, which), cost // np.rint(1 / part).astype(np.int64))
        return found

    @cached_property
    def _held(self) -> tuple[Ints, Floats, Ints]:
        """Of each device (or share) that one of them holds: its row, its part of what that job holds, the job's place."""
        owner, row = self.holdings.claims[:, 0], self.holdings.claims[:, 1]
        there = np.zeros(len(self.holdings.jobs), dtype=np.bool_)
        there[[self.holdings.place[victim] for victim in self.victims]] = True
        part = 1 / np.bincount(owner, minlength=len(self.holdings.jobs))[owner]
        mine = there[owner]
        return row[mine], part[mine], owner[mine]

    def up_to(self, priority: int) -> "Candidates":
        """Those of at most `priority`."""
        if not self.classes or priority >= self.classes[0]:
            return self
        return Candidates(self.holdings, (v for v in self.victims.values() if v.priority <= priority))


class Possible(NamedTuple):
    """What may become a job's."""

    rows: Bools
    """Devices, mask of shape (D,)."""
    closed: Closed
    """What others keep: no devices of `rows`, but maybe processors and memory of their nodes."""


class VictimIndex:
    """Who can give way to `job` and what that would free.

    `bound` is a cost that no victims within a group can beat. So groups are searched in order of promise, and most never
    are: on 1,000 full nodes that is the difference between seconds and milliseconds.
    """

    def __init__(
        self,
        job: Job,
        candidates: Candidates,
        possible: Possible,
        admitted: Together = list,
        room: RoomWithout | None = None,
    ) -> None:
        """`admitted`: of victims in order, those that may give way together; any part of its answer may as well. `room`: the
        job waits at a limit, and gets what that leaves it without victims; None: it gets what it asks for."""
        self.admitted = admitted
        self.room = room
        self.candidates, self.victims, self.classes = candidates, candidates.victims, candidates.classes
        self._place = {priority: place for place, priority in enumerate(self.classes)}
        self._possible, self.possible = possible, possible.rows
        self._holdings, self._job = candidates.holdings, job
        self._need, self._whole = job.shape.least, job.shape.whole
        self._free: Bools = possible.rows & (self._holdings.state.fleet.free_milli == WHOLE_MILLI)

    def up_to(self, priority: int) -> "VictimIndex":
        """The same for victims of at most `priority`."""
        return VictimIndex(self._job, self.candidates.up_to(priority), self._possible, self.admitted, self.room)

    @property
    def cost(self) -> dict[str, int]:
        """Of each victim, thousandths of device-seconds."""
        return self._holdings.cost

    def holds(self, rows: Ints) -> set[str]:
        """The victims that hold (a share of) one of `rows`."""
        on_row = self._holdings.on_row
        return {victim for row in rows.tolist() for victim in on_row.get(row, ()) if victim in self.victims}

    def costs(self, victims: Iterable[Job]) -> ClassCosts:
        """What `victims` cost together."""
        total = [0] * len(self.classes)
        for victim in victims:
            total[self._place[victim.priority]] += self.cost[victim.id]
        return tuple(total)

    def might_fit(self) -> bool:
        """Whether it fits when all have given way. Of what a team's nested gangs may look at in vain a no takes something."""
        search_budget = self._holdings.first_search(self._job).search_budget
        return self.fits(self.victims.values(), self.possible, search_budget) is not None

    def fits(self, victims: Collection[Job], inside: Bools, search_budget: SearchBudget | None = None) -> Placed | None:
        """Where the job goes on the devices `inside` (mask of shape (D,)) when `victims` have given way: the question
        that a plan is checked by, on what `would_be_free` and within its limits."""
        shape = self._job.shape if self.room is None else self.room(self._job.shape, victims)
        if shape is None:
            return None
        everyone = len(victims) == len(self.victims)
        view = self.candidates.gone.copy() if everyone else self._holdings.without(v.id for v in victims)
        self._possible.closed.in_view(view)
        view.blocked |= ~inside
        spread = self._job.shape.spread[0]
        gone = {victim.id for victim in victims} if spread else ()
        context = context_of(self._holdings.state, self._job, self._holdings.t_us, without=gone)
        placed = find(view, shape, context=replace(context, search_budget=search_budget))
        return placed if isinstance(placed, Placed) else None

    def elsewhere(self, rows: Ints) -> list[str]:
        """Those that hold nothing of `rows`, for a job that waits at a limit: what they give back makes room below it. Lowest
        class first, then cost per device."""
        if self.room is None:
            return []
        near, cost = self.frees(rows), self.cost
        far = [victim for victim in self.victims if victim not in near]
        held = np.bincount(self._holdings.claims[:, 0], minlength=len(self._holdings.jobs)).tolist()
        place = self._holdings.place
        return sorted(far, key=lambda v: (self.victims[v].priority, cost[v] / max(1, held[place[v]]), v))

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
        """A lower bound of what any victims that make room within `rows` cost; None when all of them are too few, or when it
        takes more than a plan may name.

        The missing devices at the lowest classes first and the lowest cost per device within a class, the last victim
        in part: a fractional knapsack. No set of victims can do with less of the highest class that this needs. One that
        costs as little there frees as few devices there (each more costs at least a restart), and so needs all victims
        of the lower classes, as this does. When no device is missing (a share, or processors that lack) the cheapest
        single victim is the bound: nobody would be asked if the job fitted as it is. Where several share a device, all of
        them must go, and the devices with the cheapest ones are another bound; the higher one is taken.
        """
        missing, first = self.missing(rows), int(rows[0])
        whole = self._whole_bound(rows, missing)
        if whole is None:
            return None
        frees, total = self.frees(rows), [0] * len(self.classes)
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
                return max(tuple(total), whole), number, first
        return None

    def _whole_bound(self, rows: Ints, missing: int) -> ClassCosts | None:
        """The same by devices: one is free when all who share it have gone. None also when that takes more victims than a
        plan may name."""
        freed = rows[self.candidates.frees[rows]]
        if len(freed) < missing:
            return None
        cost = self.candidates.cost_of[freed]
        fewest = np.partition(self.candidates.part_of[freed], missing - 1)[:missing] if missing else np.zeros(0)
        if fewest.sum() > MOST_VICTIMS + 0.5:  # sums of parts are not exact
            return None
        cheapest = np.lexsort(cost.T[::-1])[:missing]
        return tuple(cost[cheapest].sum(axis=0).tolist())
