"""How long a running job still takes, by the best that is known of it."""

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from libs.core.scheduling.precedence.learned import cells_of
from libs.core.scheduling.precedence.rules import classes_of
from libs.core.scheduling.precedence.turns import Precedence
from libs.core.scheduling.progress import left_now
from libs.core.state.model import Job
from schemas.jobs import JobState

LEAST_ENDS = 5
"""Of jobs that ended by themselves, before what is learned of them is shown to people."""


class Basis(StrEnum):
    """What an expected end rests on."""

    STOPPING = "stopping"
    TIMER = "timer"
    PROGRESS = "progress"
    HISTORY = "history"
    LIMIT = "limit"


class Remaining(NamedTuple):
    """Seconds from now, none below zero."""

    p50_s: float
    p90_s: float
    basis: Basis


def remaining(precedence: Precedence, job: Job, t_us: int) -> Remaining:
    """Of a job with an open attempt at `t_us`: never beyond its time limit."""
    attempt, spec = job.current, job.spec
    assert attempt is not None
    if job.state in (JobState.STOPPING, JobState.PREEMPTING):
        grace_s = spec.checkpoint.grace_s if spec.checkpoint else spec.stop_grace_s
        return Remaining(grace_s, grace_s, Basis.STOPPING)
    ran_s = max(0.0, (t_us - (attempt.running_us or t_us)) / 1e6)
    limit_s = max(0.0, spec.time_limit_s - ran_s) if spec.time_limit_s else float("inf")
    if spec.simulation is not None:
        left_s = min(limit_s, max(0.0, spec.simulation.duration_s - ran_s))
        return Remaining(left_s, left_s, Basis.TIMER)
    left = left_now(attempt.progress, attempt.progress_us, t_us) if attempt.progress is not None else None
    if left is not None:
        return Remaining(min(limit_s, left.p50_s), min(limit_s, left.p90_s), Basis.PROGRESS)
    learned, slot = precedence.learned, precedence.served.slots.get(job.id)
    if slot is None or (learned.count < LEAST_ENDS and spec.time_limit_s):
        return Remaining(limit_s, limit_s, Basis.LIMIT)
    kin = precedence.foretold_of(job.id, t_us)
    if kin is not None:
        past_s = precedence.served.attained(slot, t_us) / int(precedence.served.width[slot])
        p50_s, p90_s = (max(0.0, one - past_s) for one in kin)
        return Remaining(min(limit_s, p50_s), min(limit_s, p90_s), Basis.HISTORY)
    widths = precedence.served.width[[slot]]
    attained = precedence.served.attained(slot, t_us)
    at = classes_of(widths)[0], cells_of(np.array([attained]))[0]
    p50_s, p90_s = (max(0.0, float(table[at]) - attained) / int(widths[0]) for table in (learned.median, learned.late))
    return Remaining(min(limit_s, p50_s), min(limit_s, max(p50_s, p90_s)), Basis.HISTORY)


def known_end(left: Remaining, precedence: Precedence) -> bool:
    """Whether that is more than a limit, or than what is imagined while no jobs have ended."""
    if left.basis is Basis.HISTORY:
        return precedence.learned.count >= LEAST_ENDS
    return left.basis is not Basis.LIMIT
