"""How long a running job still takes, by the best that is known of it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from libs.core.scheduling.precedence.learned import Floats, cells_of
from libs.core.scheduling.precedence.rules import classes_of
from libs.core.scheduling.precedence.turns import Precedence
from libs.core.scheduling.progress import left_now
from libs.core.state.desired import SAVES_FIRST
from libs.core.state.job import Job
from schemas.jobs import JobSpec, JobState

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
    return remaining_each(precedence, [job], t_us)[0]


def remaining_each(precedence: Precedence, jobs: Sequence[Job], t_us: int) -> list[Remaining]:
    """`remaining` of many, each with its basis."""
    own = [_of_its_own(precedence, job, t_us) for job in jobs]
    unknown = [job for job, left in zip(jobs, own, strict=True) if not isinstance(left, Remaining)]
    limits_s = [left for left in own if not isinstance(left, Remaining)]
    by_width = _of_its_width(precedence, unknown, limits_s, t_us).T.tolist() if unknown else []
    learned = (Remaining(p50_s, p90_s, Basis.HISTORY) for p50_s, p90_s in by_width)
    return [left if isinstance(left, Remaining) else next(learned) for left in own]


def remaining_of(precedence: Precedence, jobs: Sequence[Job], t_us: int) -> Floats:
    """P50 and P90 of `remaining` of many, seconds, shape (2, n)."""
    found: Floats = np.empty((2, len(jobs)))
    unknown, limits_s = [], []
    for n, job in enumerate(jobs):
        left = _of_its_own(precedence, job, t_us)
        if isinstance(left, Remaining):
            found[:, n] = left.p50_s, left.p90_s
        else:
            unknown.append(n)
            limits_s.append(left)
    found[:, unknown] = _of_its_width(precedence, [jobs[n] for n in unknown], limits_s, t_us)
    return found


def stopping(job: Job) -> Remaining | None:
    """Of a job with an open attempt that is being stopped; None: it is not."""
    if job.state not in (JobState.STOPPING, JobState.PREEMPTING) or job.current is None:
        return None
    return time_to_stop(job.spec, saves=job.state is JobState.PREEMPTING or job.current.cause in SAVES_FIRST)


def time_to_stop(spec: JobSpec, *, saves: bool) -> Remaining:
    """By its graces. `saves`: it is asked to save its work first, if it can; when it does not answer, it is told to stop
    then, and has that grace as well."""
    if spec.checkpoint is None or not saves:
        return Remaining(spec.stop_grace_s, spec.stop_grace_s, Basis.STOPPING)
    return Remaining(spec.checkpoint.grace_s, spec.checkpoint.grace_s + spec.stop_grace_s, Basis.STOPPING)


def _of_its_own(precedence: Precedence, job: Job, t_us: int) -> Remaining | float:
    """What is known of this job or its kin; else the seconds until its time limit."""
    attempt, spec = job.current, job.spec
    assert attempt is not None
    if (stops := stopping(job)) is not None:
        return stops
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
    return limit_s


def _of_its_width(precedence: Precedence, jobs: Sequence[Job], limits_s: Sequence[float], t_us: int) -> Floats:
    """By what jobs of their widths took in all that got so far: P50 and P90, seconds, shape (2, n)."""
    served, learned = precedence.served, precedence.learned
    slots = np.array([served.slots[job.id] for job in jobs], dtype=np.int64)
    widths, attained = served.width[slots], served.attained_all(slots, t_us)
    at = classes_of(widths), cells_of(attained)
    left_s = np.maximum(0.0, np.stack([learned.median[at], learned.late[at]]) - attained) / widths
    result: Floats = np.minimum(limits_s, np.maximum.accumulate(left_s))
    return result


def known_end(left: Remaining, precedence: Precedence) -> bool:
    """Whether that is more than a limit, or than what is imagined while no jobs have ended."""
    if left.basis is Basis.HISTORY:
        return precedence.learned.count >= LEAST_ENDS
    return left.basis is not Basis.LIMIT
