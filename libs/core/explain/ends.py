"""When running jobs are expected to end. Computed once for all questions about one state: with ten thousand running jobs it
takes longer than the rest of an answer."""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import Precedence
from libs.core.scheduling.precedence.remaining import Remaining, known_end, remaining_each, stopping
from libs.core.state.job import Job
from libs.core.state.model import State, running

LEAST_AGE_S = 60.0
"""A job that has just begun is taken to be this old."""


@dataclass(frozen=True, slots=True)
class End:
    """A running job that is expected to give its devices back at `at_us` (a guess), at the latest at `latest_us`."""

    job: Job
    at_us: int
    latest_us: int


class ExpectedEnds:
    """Of the jobs that run in `state` at `t_us`."""

    def __init__(self, state: State, t_us: int, policy: Policy) -> None:
        self._state, self._t_us, self._turns = state, t_us, policy.precedence

    @cached_property
    def running(self) -> list[Job]:
        return running(self._state)

    @cached_property
    def known(self) -> list[End]:
        """Of those of which anything is known, in no order."""
        turns, t_us, jobs = self._turns, self._t_us, self.running
        left = [None] * len(jobs) if turns is None else remaining_each(turns, jobs, t_us)
        found = (_end_of(job, t_us, turns, its) for job, its in zip(jobs, left, strict=True))
        return [end for end in found if end is not None]


def _end_of(job: Job, t_us: int, turns: Precedence | None, left: Remaining | None) -> End | None:
    """When a running job ends: as it says, as is learned (`left`), at its limit, or (a guess) before; None: nobody knows."""
    attempt, spec = job.current, job.spec
    assert attempt is not None
    if (stops := stopping(job)) is not None:
        return End(job, t_us + int(stops.p50_s * 1e6), t_us + int(stops.p90_s * 1e6))
    began_us = attempt.running_us or t_us
    if spec.simulation is not None:
        run_s = min(spec.simulation.duration_s, spec.time_limit_s or float("inf"))
        at_us = max(t_us, began_us + int(run_s * 1e6))
        return End(job, at_us, at_us)
    if turns is not None and left is not None and known_end(left, turns):
        return End(job, t_us + int(left.p50_s * 1e6), t_us + int(left.p90_s * 1e6))
    if not spec.time_limit_s:
        return None
    age_s = max((t_us - began_us) / 1e6, LEAST_AGE_S)
    guess_s = min(spec.time_limit_s, sqrt(age_s * spec.time_limit_s))
    latest_us = max(t_us, began_us + int(spec.time_limit_s * 1e6))
    return End(job, min(latest_us, max(t_us, began_us + int(guess_s * 1e6))), latest_us)
