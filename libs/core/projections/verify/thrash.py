"""Checks the limits against thrashing (I11): how long a job ran before its preemption, how often it was preempted
recently, and how many jobs were. It checks afterwards; the scheduler checks beforehand
(`libs.core.scheduling.preemption_guard`).
"""

from collections import deque
from collections.abc import Iterator
from fractions import Fraction

from libs.core.projections.verify.books import AttemptRow
from schemas import ledger as led
from schemas.queues import LONGEST_PER_POOL_S, MOST_PER_JOB, PreemptionLimits

_S = 1_000_000


class ThrashBooks:
    """Times of preemptions, and the limits of the queues in force."""

    def __init__(self) -> None:
        self.said = False
        """Queues were applied: limits hold within a queue as well."""
        self._limits = PreemptionLimits()
        self._applied = False
        """The queues come from a file, not from defaults."""
        self._minimum: dict[str, tuple[str, int | None]] = {}
        """Queue -> its parent and its own minimum run time, s."""
        self._of_job: dict[str, tuple[deque[int], deque[int]]] = {}
        """Unfinished job -> its last preemptions, and the last that counted."""
        self._moments: deque[int] = deque()
        self._plans: dict[str, tuple[int, int]] = {}
        """Plan of this decision -> preemptions shortly before it, and by it."""

    def applied(self, e: led.QueuesApplied) -> None:
        self.said = True
        self._limits = e.preemption or PreemptionLimits()
        self._applied = e.preemption is not None
        self._minimum = {queue.name: (queue.parent, queue.min_run_s) for queue in e.queues}

    def too_short(
        self, team: str, attempt: AttemptRow, t_us: int, *, lent: bool = False, evens_after_s: Fraction | None = None
    ) -> str:
        """The violation if a job is preempted after too short a run; "": none. `lent`: it returns borrowed devices.
        `evens_after_s`: least run time if it evens out lent devices."""
        least_s, name = self._limits.min_run_s, team
        for _ in range(len(self._minimum)):
            above, said = self._minimum.get(name, ("", None))
            if said is not None:
                least_s = said
                break
            name = above
        if lent:
            least_s = min(least_s, self._limits.reclaim_grace_s)
        ran_us = t_us - (attempt.running_us or attempt.opened_us)
        if evens_after_s is not None and ran_us < int(evens_after_s * _S):
            return f"after {ran_us} us, and shares are evened out after {float(evens_after_s):g} s"
        return f"after {ran_us} us, and its minimum is {least_s} s" if ran_us < least_s * _S else ""

    def gives_way(
        self, job_id: str, plan_id: str, t_us: int, *, limited: bool = True, counts: bool = True, own: bool = False
    ) -> Iterator[str]:
        """Reports preemptions by a plan that are too frequent. `limited`: the defaults apply without a file. `counts`:
        towards the rates of the job and the pool. `own`: for a job of its own team and class, where all count."""
        job, pool = self._limits.per_job, self._limits.per_pool
        every, counted = self._of_job.setdefault(job_id, (deque(maxlen=MOST_PER_JOB), deque(maxlen=MOST_PER_JOB)))
        limited = limited or self._applied
        if limited and sum(at > t_us - job.within_s * _S for at in (every if own else counted)) >= job.most:
            yield f"more than {job.most} times within {job.within_s} s"
        every.append(t_us)
        if counts:
            counted.append(t_us)
        while self._moments and self._moments[0] <= t_us - LONGEST_PER_POOL_S * _S:
            self._moments.popleft()
        if plan_id not in self._plans:
            self._plans[plan_id] = (sum(at > t_us - pool.within_s * _S for at in self._moments), 0)
        before, by_it = self._plans[plan_id]
        self._plans[plan_id] = (before, by_it + 1)
        if counts:
            self._moments.append(t_us)
        if limited and before and before + by_it + 1 > pool.most:
            yield f"as one of more than {pool.most} within {pool.within_s} s"

    def ended(self, job_id: str) -> None:
        self._of_job.pop(job_id, None)

    def decided(self) -> None:
        """The decision is complete."""
        self._plans.clear()
