"""Which of two waiting jobs comes first."""

from collections.abc import Iterator
from typing import NamedTuple

from libs.core.scheduling.order.share import NOTHING, Share
from libs.core.scheduling.policy import Policy
from libs.core.state.model import Job, QueueKey, State


class JobRank(NamedTuple):
    """A sort key: the job with the lowest is considered first. No two jobs have the same."""

    minus_priority: int
    not_due: bool
    share: Share
    """What the job's team holds; nothing when its reservation is due: then only age counts."""
    submitted_us: int
    job_id: str


def rank(job: Job, share: Share, t_us: int, policy: Policy) -> JobRank:
    """The rank at `t_us` of a job whose team holds `share`."""
    due = is_due(job, t_us, policy)
    return JobRank(-job.priority, not due, NOTHING if due else share, job.submitted_us, job.id)


def is_due(job: Job, t_us: int, policy: Policy) -> bool:
    """Whether the job is a gang that has waited so long that it comes first and devices are kept for it."""
    return job.shape.devices > 1 and t_us >= due_us(job, policy)


def due_us(job: Job, policy: Policy) -> int:
    """When the reservation of a gang falls due."""
    return job.queued_us + policy.reserve_after_us


def front(state: State, key: QueueKey) -> Iterator[Job]:
    """The jobs of a queue that are considered while none of it is granted: the first, and if devices are held for it,
    the next."""
    for job_id in state.queues.get(key, ()):
        yield state.jobs[job_id]
        if job_id not in state.holds:
            return
