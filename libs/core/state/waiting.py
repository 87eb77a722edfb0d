"""Where a queued job waits: in its queue; for a time in none, because it was lost several times in a row; or in one that no
cycle sees, because its team is suspended."""

from collections.abc import Iterator
from contextlib import contextmanager

from libs.core.state.job import Job, QueueKey
from libs.core.state.line import Line
from libs.core.state.model import State
from schemas.jobs import JobState


def pass_time(state: State, t_us: int) -> list[Job]:
    """Brings into their queues the jobs that have waited long enough after losses, and returns them. To be called before
    anything is decided, or folded, at `t_us`."""
    if not state.backing_off or t_us < state.next_back_us:
        return []
    back = [state.jobs[job_id] for job_id, at_us in state.backing_off.items() if at_us <= t_us]
    for job in back:
        del state.backing_off[job.id]
        enqueue(state, job)
    state.next_back_us = min(state.backing_off.values(), default=0)
    return back


def enqueue(state: State, job: Job) -> None:
    """The job stands in its queue, by its age; if its team is suspended, in a queue that nobody looks at."""
    queues = state.parked if job.team in state.suspended else state.queues
    queue = queues.get(job.queue)
    if queue is None:
        queue = queues[job.queue] = Line()
    queue.add(job)


def back_off(state: State, job: Job) -> None:
    """The job comes into its queue when its time has come (`pass_time`)."""
    soonest = min(state.next_back_us, job.not_before_us) if state.backing_off else job.not_before_us
    state.backing_off[job.id], state.next_back_us = job.not_before_us, soonest


def dequeue(state: State, job: Job) -> None:
    """The job does not wait any more."""
    if state.backing_off.pop(job.id, None) is not None:
        return
    queues = state.parked if job.team in state.suspended else state.queues
    queue = queues[job.queue]
    queue.remove(job)
    if not queue:
        del queues[job.queue]


@contextmanager
def moved(state: State, job: Job) -> Iterator[None]:
    """What is done within this may bring the job into another queue; it stands in none meanwhile."""
    waits = job.state is JobState.QUEUED and job.id not in state.backing_off
    if waits:
        dequeue(state, job)
    yield
    if waits:
        enqueue(state, job)


def park(state: State, team: str) -> None:
    """No cycle sees the queues of `team`, which is suspended, any more."""
    _move(state.queues, state.parked, team)


def unpark(state: State, team: str) -> None:
    """The queues of `team`, which is suspended no longer, are as they were."""
    _move(state.parked, state.queues, team)


def _move(out_of: dict[QueueKey, Line], into: dict[QueueKey, Line], team: str) -> None:
    for key in [key for key in out_of if key.team == team]:
        into[key] = out_of.pop(key)
