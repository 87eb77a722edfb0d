"""Who need not give way now, so that a pool does not thrash: whoever has not run its minimum yet, whoever gave way too often
lately, and everybody while too many gave way. An operator sets it (`schemas.queues.PreemptionLimits`); without a word the
defaults hold.

What a queue borrowed is not its to keep for long: on that its jobs run at most the reclaim grace before they give way. A job
that does not come to run is spared from its grant on, so never for ever. A plan with more victims than the pool's rate allows
is carried out when nobody gave way in that time: else a wide gang would never start.
"""

from libs.core.state.model import Job, State

_S = 1_000_000


class Spared:
    """As of `state` at `t_us`. Reads only. `lifted`: as if no limit held."""

    def __init__(self, state: State, t_us: int, *, lifted: bool = False) -> None:
        self._state, self._t_us, self._lifted = state, t_us, lifted
        self._limits = state.tree.preemption_limits
        self._minimum_us: dict[str, int] = {}
        self._gone_lately = -1

    def until_us(self, job: Job, *, lent: bool, evens: bool = False, own: bool = False) -> int:
        """Until when a running job is spared; 0: it is not. `lent`: it would give back what its queue borrowed. `evens`: it
        would go so that what is lent is even. `own`: it would give way to one of its own queue and class."""
        if self._lifted:
            return 0
        return max(self.runs_until_us(job, lent=lent, evens=evens), self.rests_until_us(job, own=own))

    def runs_until_us(self, job: Job, *, lent: bool, evens: bool = False) -> int:
        """Until when it has its minimum run time; 0: it had."""
        minimum_us = self.minimum_us(job, lent=lent)
        if evens:
            minimum_us = max(minimum_us, self.evens_after_us)
        if not minimum_us or job.current is None:
            return 0
        until_us = (job.current.running_us or job.current.granted_us) + minimum_us
        return until_us if until_us > self._t_us else 0

    def rests_until_us(self, job: Job, *, own: bool = False) -> int:
        """Until when it gave way often enough; 0: it did not. To others only what it gave way for others counts, or a team
        would make its own job give way so often that nobody else could ask it to."""
        most, within_us = self._limits.per_job.most, self._limits.per_job.within_s * _S
        times = job.preempted_us if own else job.counted_us
        if len(times) < most:
            return 0
        until_us = times[-most] + within_us
        return until_us if until_us > self._t_us else 0

    def minimum_us(self, job: Job, *, lent: bool) -> int:
        """How long the job runs before it gives way."""
        found = self._minimum_us.get(job.team)
        if found is None:
            found = self._minimum_us[job.team] = self._state.tree.min_run_s(job.team) * _S
        return min(found, self._limits.reclaim_grace_s * _S) if lent else found

    @property
    def evens_after_us(self) -> int:
        """How long a job runs at least before it goes so that what is lent is even."""
        return self._state.tree.evens_after_us or 0

    @property
    def exchanges(self) -> bool:
        """Whether the limits hold among the jobs of one queue: in a pool that was given any. Their order has a minimum of its
        own besides (`OrderKnobs.min_run_s`)."""
        return self._state.tree.version > 0

    def together(self, victims: int, planned: int = 0) -> bool:
        """Whether so many may give way by one plan, after `planned` by others."""
        if not victims or self._lifted:
            return True
        gone = self._gone() + planned
        return not gone or gone + victims <= self._limits.per_pool.most

    def together_from_us(self, victims: int) -> int:
        """From when on so many may, if nobody else gives way."""
        rate = self._limits.per_pool
        return self._state.preempted.until_us(self._t_us, rate.within_s * _S, max(0, rate.most - victims))

    def _gone(self) -> int:
        if self._gone_lately < 0:
            self._gone_lately = self._state.preempted.within(self._t_us, self._limits.per_pool.within_s * _S)
        return self._gone_lately

    def next_change_us(self, jobs: list[Job]) -> int:
        """When one of `jobs` is spared no longer, or more may give way; 0: no limit keeps anybody back now."""
        moments = [
            until_us
            for job in jobs
            for until_us in (
                *(self.runs_until_us(job, lent=lent) for lent in (True, False)),
                self.runs_until_us(job, lent=False, evens=True),
                self.rests_until_us(job),
                self.rests_until_us(job, own=True),
            )
            if until_us
        ]
        if self._gone():
            moments.append(self.together_from_us(max(1, self._limits.per_pool.most - self._gone() + 1)))
        return min((moment for moment in moments if moment > self._t_us), default=0)

    def text(self, job: Job, *, lent: bool, evens: bool = False, own: bool = False) -> str:
        """Which limit spares a job, for people."""
        runs_us = self.runs_until_us(job, lent=lent, evens=evens)
        rests_us = self.rests_until_us(job, own=own)
        if rests_us >= runs_us:
            rate = self._limits.per_job
            return (
                f"it gave way {rate.most} times within {rate.within_s} s, which is the most (preemption.per_job); "
                f"{_rest(rests_us, self._t_us)}"
            )
        if evens and self.evens_after_us > self.minimum_us(job, lent=lent):
            return (
                f"it runs at least {self.evens_after_us // _S} s ({self._evens_by}) before shares are evened out; "
                f"{_rest(runs_us, self._t_us)}"
            )
        what = (
            "reclaim_grace"
            if lent and self.minimum_us(job, lent=True) < self.minimum_us(job, lent=False)
            else "min_run"
        )
        return f"it runs at least {self.minimum_us(job, lent=lent) // _S} s (preemption.{what}); {_rest(runs_us, self._t_us)}"

    @property
    def _evens_by(self) -> str:
        """What says how long that is."""
        return "a twentieth of half_life" if self._limits.share_grace_s is None else "preemption.share_grace"

    def pool_text(self, victims: int) -> str:
        """Which limit keeps so many from giving way now, for people."""
        rate = self._limits.per_pool
        return (
            f"{self._gone()} jobs gave way within {rate.within_s} s, and {rate.most} are the most (preemption.per_pool); "
            f"{_rest(self.together_from_us(victims), self._t_us)}"
        )


def _rest(until_us: int, t_us: int) -> str:
    return f"{max(1, -(-(until_us - t_us) // _S))} s are left"
