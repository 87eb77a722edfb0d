"""Which of two waiting jobs comes first."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from libs.core.scheduling.order.share import NOTHING, HowServed, Shares
from libs.core.scheduling.policy import Policy
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State


class JobRank(NamedTuple):
    """A sort key: the job with the lowest is considered first. No two jobs have the same."""

    minus_priority: int
    not_due: bool
    share: HowServed
    """How well the job's team is served; nothing when its reservation is due: then only age counts."""
    number: int
    """Of the rule that orders its class (`precedence`); 0 without one, and when it is due."""
    submitted_us: int
    job_id: str


def rank(job: Job, shares: Shares | None, t_us: int, policy: Policy) -> JobRank:
    """The rank at `t_us` of a job; None: if its team were served worst of all."""
    due = is_due(job, t_us, policy) and (shares is None or shares.may_overtake(job.queue))
    number, precedence = 0, policy.precedence
    if precedence is not None:
        number = 0 if due else precedence.number(job.id, t_us)
    share = NOTHING if due or shares is None else shares.of(job.queue)
    return JobRank(-job.priority, not due, share, number, job.submitted_us, job.id)


def is_due(job: Job, t_us: int, policy: Policy) -> bool:
    """Whether the job is a gang that has waited so long that it comes first and devices are kept for it. Where jobs give way
    within their class, a gang need not wait for devices that others leave: then only the rule's own bound counts, for all."""
    if policy.precedence is not None and policy.precedence.rules.by_number(job.team):
        return policy.precedence.is_due(job.id)
    return job.shape.devices > 1 and t_us >= due_us(job, policy)


def is_due_alone(job: Job, t_us: int, policy: Policy) -> bool:
    """Whether the job wants one device, and has waited as long as a gang until its reservation is due. It comes no earlier for
    that. Where jobs come by a rule's number, that one's bound counts for it as for gangs."""
    if policy.precedence is not None and policy.precedence.rules.by_number(job.team):
        return False
    return job.shape.devices == 1 and t_us >= due_us(job, policy)


def due_us(job: Job, policy: Policy) -> int:
    """When the reservation of a gang falls due; for a job of one device see `is_due_alone`."""
    return job.queued_us + policy.reserve_after_us


def in_turn(state: State, key: QueueKey, policy: Policy = Policy()) -> Iterator[str]:
    """The ids of a queue's jobs as they are considered: first those for which devices are held, then the others, each by age,
    or as the rule of their class has it.

    A job that devices are held for may stand behind one that came back to the queue, and that one may wait for just these
    devices."""
    queue = state.queues.get(key)
    if queue is None:
        return iter(())
    held = held_in(state, key)
    precedence = policy.precedence
    others = iter(queue) if precedence is None or not precedence.rules.by_number(key.team) else precedence.turn(key)
    if not held:
        return others
    return chain((job.id for job in held), (job_id for job_id in others if job_id not in state.holds))


def held_in(state: State, key: QueueKey) -> list[Job]:
    """The jobs of a queue for which devices are held, by age. There are never more of them than devices."""
    if not state.holds:
        return []
    held = [job for job_id in state.holds if (job := state.jobs.get(job_id)) is not None and job.queue == key]
    queue = state.queues[key]
    return sorted((job for job in held if job in queue), key=lambda job: (job.submitted_us, job.id))


def front(state: State, key: QueueKey, policy: Policy = Policy()) -> Iterator[Job]:
    """The jobs of a queue that are considered while none of it is granted: those for which devices are held, and the next."""
    for job_id in in_turn(state, key, policy):
        yield state.jobs[job_id]
        if job_id not in state.holds:
            return
