"""The walk over the queues as its rule says it: one heap of the first job of each queue, ranked again when it is the first."""

import heapq

from libs.core.scheduling.order import Order
from libs.core.scheduling.order.rank import JobRank, rank
from libs.core.state.job import Job, QueueKey


class NaiveOrder(Order):
    """`granted`, `passed`, `add` and what they change are `Order`'s."""

    _ranked: list[tuple[JobRank, Job]]

    def next(self) -> Job | None:
        while self._ranked:
            was, job = heapq.heappop(self._ranked)
            now = rank(job, self.shares, self._t_us, self._policy)
            if now == was:
                return job
            heapq.heappush(self._ranked, (now, job))
        return None

    def restart(self) -> None:
        self._ranked = []
        super().restart()

    def _put(self, key: QueueKey, job: Job) -> None:
        if "_ranked" not in self.__dict__:
            self._ranked = []
        heapq.heappush(self._ranked, (rank(job, self.shares, self._t_us, self._policy), job))
