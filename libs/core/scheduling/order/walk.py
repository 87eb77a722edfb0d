"""The walk over the queues, job by job.

The naive walk keeps the first job of each queue on one heap by its rank (`tests/core/walk_oracle.py`; `tests/core/test_walk.py`
compares the two). What a grant changes is the share of one team, so all its jobs on the heap have an old rank then; each
is ranked again when it comes to the top, until one comes that has its rank still. A team with 200 shapes is ranked 200 times
for each grant. Here jobs of which all but number and age is the same for good stand in one *line*, with the rank that they had
when the walk last looked. A line that comes to the top is ranked once, for all of it.

It is the naive walk's order also where a rank has become lower meanwhile (a job gets less than was held for it; another user
comes to be served worst): who is not at the top is not looked at, there as here.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from libs.core.scheduling.order.rank import in_turn, is_due
from libs.core.scheduling.order.share import NOTHING, HowServed, Shares, kinds_asked
from libs.core.scheduling.policy import Policy
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State


class _Standing(NamedTuple):
    """The part of a `JobRank` that may change in a walk: it is the same for all of a line."""

    minus_priority: int
    not_due: bool
    share: HowServed


_Within = tuple[int, int, str]
"""The rest of it: number, submitted_us, job id."""


@dataclass(slots=True)
class _Alike:
    """Jobs whose standing is the same, whatever is granted."""

    like: tuple[object, ...]
    """What they have in common."""
    key: QueueKey
    """The queue of one of them."""
    due: bool
    standing: _Standing
    """When the walk last looked at them."""
    jobs: list[tuple[_Within, Job]] = field(default_factory=list)
    """A heap."""
    entry: int = 0
    """The one of the walk's entries that counts."""


class Order:
    """Gives the job to consider next, as long as there is one.

        while (job := order.next()) is not None:
            order.granted(job, devices)   # or
            order.passed(job)             # or neither: the job waits, and its queue with it

    `shares` is how well teams are served, grants of this walk included.
    """

    def __init__(self, state: State, t_us: int, policy: Policy, queues: Iterable[QueueKey] | None = None) -> None:
        """`queues`: the only ones to look at; None: all."""
        self.shares = Shares(state, policy)
        self._state, self._t_us, self._policy = state, t_us, policy
        self._of_kinds = len(state.tree) > 0
        """What a job asks for says where its team stands."""
        self._rest: dict[QueueKey, Iterator[str]] = {}
        self._lines: dict[tuple[object, ...], _Alike] = {}
        self._heap: list[tuple[_Standing, _Within, int, _Alike]] = []
        """First jobs of lines, each with the number of its entry; also entries that count no longer."""
        self._entries = 0
        self._granted: set[str] = set()
        self.add(state.queues if queues is None else queues)

    def next(self) -> Job | None:
        """The job to consider next; None when all queues are blocked or empty."""
        later: list[tuple[_Alike, _Standing]] = []
        """Lines at the top whose teams were granted something since, and where they stand now."""
        while True:
            line = self._top()
            if later and (line is None or line.standing != later[0][0].standing):
                self._put_back(later)
                continue
            if line is None:
                return None
            heapq.heappop(self._heap)
            now = self._standing(line.key, line.due)
            if now > line.standing:
                later.append((line, now))
                continue
            within, job = heapq.heappop(line.jobs)
            self._show(line)
            self._put_back(later, within)
            return job

    def granted(self, job: Job, devices: Sequence[int]) -> None:
        """The job is out of its queue, and its team holds its share of these `devices` (rows of the fleet) more; devices
        that were held for it count no longer."""
        self._granted.add(job.id)
        gets = {kind: count * job.shape.milli for kind, count in self._state.fleet.kinds(devices).items()}
        self.shares.got(job.queue, gets)
        if job.id in self._state.holds:
            self.shares.gave(job.queue, self._state.kept(job.id))
        self._advance(job.queue)

    def passed(self, job: Job) -> None:
        """The job waits and does not block its queue."""
        self._advance(job.queue)

    def add(self, queues: Iterable[QueueKey]) -> None:
        """Walks over these queues too. Queues that the walk has met already are left as they are."""
        for key in queues:
            if key not in self._rest and key in self._state.queues:
                self._rest[key] = in_turn(self._state, key, self._policy)
                self._advance(key)

    def restart(self) -> None:
        """Begins again with all queues, without the jobs that were granted."""
        self._rest.clear()
        self._lines.clear()
        self._heap.clear()
        self.add(self._state.queues)

    def _advance(self, key: QueueKey) -> None:
        for job_id in self._rest[key]:
            if job_id not in self._granted:
                self._put(key, self._state.jobs[job_id])
                return

    def _put(self, key: QueueKey, job: Job) -> None:
        """The job is the first of its queue from here on."""
        due = is_due(job, self._t_us, self._policy)
        like = (key.priority, key.team, key.user, kinds_asked(key.shape) if self._of_kinds else (), due)
        line = self._line(like, key, due, self._standing(key, due))
        precedence = self._policy.precedence
        number = 0 if due or precedence is None else precedence.number(job.id, self._t_us)
        within = (number, job.submitted_us, job.id)
        heapq.heappush(line.jobs, (within, job))
        if line.jobs[0][0] == within:
            self._show(line)

    def _line(self, like: tuple[object, ...], key: QueueKey, due: bool, standing: _Standing) -> _Alike:
        at = (*like, standing)
        found = self._lines.get(at)
        if found is None:
            found = self._lines[at] = _Alike(like, key, due, standing)
        return found

    def _show(self, line: _Alike) -> None:
        """Its first job is one that may be the next."""
        if line.jobs:
            self._entries = line.entry = self._entries + 1
            heapq.heappush(self._heap, (line.standing, line.jobs[0][0], line.entry, line))

    def _top(self) -> _Alike | None:
        """The line whose first job ranks first, by what the walk knows."""
        while self._heap:
            *_, entry, line = self._heap[0]
            if line.entry == entry:
                return line
            heapq.heappop(self._heap)
        return None

    def _put_back(self, lines: list[tuple[_Alike, _Standing]], before: _Within | None = None) -> None:
        """The jobs of these lines, or those `before` that one, stand where they do now: behind where they stood."""
        for line, now in lines:
            into = self._line(line.like, line.key, line.due, now)
            if before is not None:
                while line.jobs and line.jobs[0][0] < before:
                    heapq.heappush(into.jobs, heapq.heappop(line.jobs))
                self._show(line)
            else:
                del self._lines[*line.like, line.standing]
                line.entry = 0
                more, fewer = (line.jobs, into.jobs) if len(line.jobs) > len(into.jobs) else (into.jobs, line.jobs)
                for one in fewer:
                    heapq.heappush(more, one)
                into.jobs = more
            self._show(into)
        lines.clear()

    def _standing(self, key: QueueKey, due: bool) -> _Standing:
        due = due and self.shares.may_overtake(key)
        return _Standing(-key.priority, not due, NOTHING if due else self.shares.of(key))


def in_order(state: State, t_us: int, policy: Policy, queues: Iterable[QueueKey] | None = None) -> Iterator[Job]:
    """All waiting jobs (or those of `queues`) as a cycle would consider them if nothing were granted in between."""
    order = Order(state, t_us, policy, queues)
    while (job := order.next()) is not None:
        yield job
        order.passed(job)
