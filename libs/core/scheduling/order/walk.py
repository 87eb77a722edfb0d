"""The walk over the queues, job by job."""

import heapq
from collections.abc import Iterable, Iterator, Sequence

from libs.core.scheduling.order.rank import JobRank, in_turn, rank
from libs.core.scheduling.order.share import Shares
from libs.core.scheduling.policy import Policy
from libs.core.state.model import Job, QueueKey, State


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
        self._rest: dict[QueueKey, Iterator[str]] = {}
        self._heap: list[tuple[JobRank, Job]] = []
        self._granted: set[str] = set()
        self.add(state.queues if queues is None else queues)

    def next(self) -> Job | None:
        """The job to consider next; None when all queues are blocked or empty."""
        while self._heap:
            was, job = heapq.heappop(self._heap)
            now = self._rank(job)
            if now == was:
                return job
            heapq.heappush(self._heap, (now, job))  # its team was granted something since: no longer first
        return None

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
        self._heap.clear()
        self.add(self._state.queues)

    def _advance(self, key: QueueKey) -> None:
        for job_id in self._rest[key]:
            if job_id not in self._granted:
                job = self._state.jobs[job_id]
                heapq.heappush(self._heap, (self._rank(job), job))
                return

    def _rank(self, job: Job) -> JobRank:
        return rank(job, self.shares, self._t_us, self._policy)


def in_order(state: State, t_us: int, policy: Policy, queues: Iterable[QueueKey] | None = None) -> Iterator[Job]:
    """All waiting jobs (or those of `queues`) as a cycle would consider them if nothing were granted in between."""
    order = Order(state, t_us, policy, queues)
    while (job := order.next()) is not None:
        yield job
        order.passed(job)
