"""Limits preemption, so that a pool does not thrash: which running jobs may not be preempted now.

A job may not be preempted before its minimum run time, nor when it was preempted too often lately; and no job may be while the
pool's preemption rate is exceeded. Operators set the limits (`schemas.queues.PreemptionLimits`).

Jobs on devices that their queue borrowed are protected for the reclaim grace at most. The minimum run time of a job that does
not come to run counts from its grant, so no protection lasts for ever. A plan with more victims than the pool's rate allows is
carried out once nobody was preempted in that time: otherwise a wide gang would never start. A team that has used some of the
rate leaves a tenth of what the others have not used: so none uses up what others wait for.
"""

from libs.core.state.job import Job
from libs.core.state.model import State

_S = 1_000_000
_LEFT = 10


class PreemptionGuard:
    """The limits as of `state` at `t_us`. Reads only. `lifted`: as if there were no limits."""

    def __init__(self, state: State, t_us: int, *, lifted: bool = False) -> None:
        self._state, self._t_us, self._lifted = state, t_us, lifted
        self._limits = state.tree.preemption_limits
        self._minimum_us: dict[str, int] = {}
        self._gone_lately = -1
        self._used_by: dict[str, int] = {}

    def until_us(self, job: Job, *, lent: bool, evens: bool = False, own: bool = False) -> int:
        """Until when a running job may not be preempted; 0: it may. `lent`: it would give back devices that its queue borrowed.
        `evens`: it would go to even out what queues borrow. `own`: it would give way to one of its own queue and class."""
        if self._lifted:
            return 0
        return max(self.runs_until_us(job, lent=lent, evens=evens), self.rests_until_us(job, own=own))

    def runs_until_us(self, job: Job, *, lent: bool, evens: bool = False) -> int:
        """The end of its minimum run time; 0: it has passed."""
        minimum_us = self.minimum_us(job, lent=lent)
        if evens:
            minimum_us = max(minimum_us, self.evens_after_us)
        if not minimum_us or job.current is None:
            return 0
        until_us = (job.current.running_us or job.current.granted_us) + minimum_us
        return until_us if until_us > self._t_us else 0

    def rests_until_us(self, job: Job, *, own: bool = False) -> int:
        """Until when its own preemption rate is exceeded; 0: it is not. Against others only preemptions for others count, or a
        team could preempt its own job so often that nobody else may."""
        most, within_us = self._limits.per_job.most, self._limits.per_job.within_s * _S
        times = job.preempted_us if own else job.counted_us
        if len(times) < most:
            return 0
        until_us = times[-most] + within_us
        return until_us if until_us > self._t_us else 0

    def minimum_us(self, job: Job, *, lent: bool) -> int:
        """The minimum run time of the job."""
        found = self._minimum_us.get(job.team)
        if found is None:
            found = self._minimum_us[job.team] = self._state.tree.min_run_s(job.team) * _S
        return min(found, self._limits.reclaim_grace_s * _S) if lent else found

    @property
    def evens_after_us(self) -> int:
        """The minimum run time before a job is preempted to even out what queues borrow."""
        return self._state.tree.evens_after_us or 0

    @property
    def exchanges(self) -> bool:
        """Whether the limits apply among the jobs of one queue: they do once an operator has set a queue tree. The order of
        such jobs has a minimum of its own besides (`OrderKnobs.min_run_s`)."""
        return self._state.tree.version > 0

    def together(self, victims: int, team: str, planned: int = 0, planned_for_team: int = 0) -> bool:
        """Whether one plan for a job of `team` may preempt so many, after `planned` victims of other plans, so many of them for
        jobs of the team."""
        if not victims or self._lifted:
            return True
        gone = self._gone() + planned
        return not gone or gone + victims <= self._most(team, gone, planned_for_team)

    def uses(self, team: str, planned_for_team: int = 0) -> int:
        """How much of the pool's preemption rate is used by `team`, `planned_for_team` among it."""
        found = self._used_by.get(team)
        if found is None:
            within_us = self._limits.per_pool.within_s * _S
            found = self._used_by[team] = self._state.preempted.for_team(team, self._t_us, within_us)
        return found + planned_for_team

    def _most(self, team: str, gone: int, planned_for_team: int) -> int:
        """The pool's preemption rate, as far as `team` may use it up: who has used some of it leaves a tenth of what others
        have not used."""
        own = self.uses(team, planned_for_team)
        return self._most_beside(gone - own, own)

    def _most_beside(self, others: int, own: int) -> int:
        most = self._limits.per_pool.most
        return most if not own else most - (most - others) // _LEFT

    def together_from_us(self, victims: int, team: str) -> int:
        """From when on so many may be preempted for a job of `team`, if no other job is."""
        within_us = self._limits.per_pool.within_s * _S
        for until_us, gone, own in self._state.preempted.left_after(self._t_us, within_us, team):
            if not gone or gone + victims <= self._most_beside(gone - own, own):
                return until_us
        return self._t_us

    def _gone(self) -> int:
        if self._gone_lately < 0:
            self._gone_lately = self._state.preempted.within(self._t_us, self._limits.per_pool.within_s * _S)
        return self._gone_lately

    def next_change_us(self, jobs: list[Job]) -> int:
        """When the first of these limits on `jobs`, or the pool's, ends; 0: none applies now."""
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
        if gone := self._gone():
            rate = self._limits.per_pool
            at_most = min(rate.most, gone) - 1
            moments.append(self._state.preempted.until_us(self._t_us, rate.within_s * _S, at_most))
        return min((moment for moment in moments if moment > self._t_us), default=0)

    def text(self, job: Job, *, lent: bool, evens: bool = False, own: bool = False) -> str:
        """The limit that protects a job, for people."""
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
        """The setting that says how long that is."""
        return "a twentieth of half_life" if self._limits.share_grace_s is None else "preemption.share_grace"

    def pool_text(self, victims: int, team: str) -> str:
        """Why so many may not be preempted now for a job of `team`, for people."""
        left = self._limits.per_pool.most - self._most(team, self._gone(), 0)
        leaves = f", of which it leaves {left} to other teams" if left else ""
        return f"{self.rate_text}{leaves}; {_rest(self.together_from_us(victims, team), self._t_us)}"

    @property
    def rate_text(self) -> str:
        """How many gave way lately, and how many may, for people."""
        rate = self._limits.per_pool
        return (
            f"{self._gone()} jobs gave way within {rate.within_s} s, and {rate.most} are the most (preemption.per_pool)"
        )


def _rest(until_us: int, t_us: int) -> str:
    return f"{max(1, -(-(until_us - t_us) // _S))} s are left"
