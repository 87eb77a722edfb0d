"""Why a job is where it is: the same code that places it says what keeps it out."""

from libs.core.context import context_of
from libs.core.cycle import Plan
from libs.core.diagnosis import diagnose
from libs.core.model import Job, QueueKey, State
from libs.core.placement import Blocked, Reason, View, find
from schemas.jobs import JobState
from schemas.queries import Explanation, QueuedJob


def explain(state: State, job: Job, plan: Plan) -> Explanation:
    """The explanation of a job that has not ended. `plan` is the last cycle's."""
    if job.state is not JobState.QUEUED:
        return Explanation(job_id=job.id, state=job.state, reason=job.state.value, text=_running(job))
    if job.id in state.holds:
        devices = len(state.holds[job.id])
        text = f"{devices} devices are being freed for it: lower classes are saving their work and giving way"
        return Explanation(job_id=job.id, state=job.state, reason="preempting", text=text)
    outcome = plan.waiting.get(job.queue)
    view, context = View.of(state.fleet), context_of(state, job, state.t_us)
    if outcome is None or outcome.reason is not Reason.QUOTA:
        found = find(view, job.shape, context=context)
        outcome = found if isinstance(found, Blocked) else outcome
    ahead = order(state).index(job.id)
    if outcome is None:
        text = "it fits now and is granted with the next decision"
        return Explanation(job_id=job.id, state=job.state, reason="next", text=text, ahead=ahead)
    found_out = diagnose(state, job, outcome, view, context, most=1)
    return Explanation(
        job_id=job.id,
        state=job.state,
        reason=outcome.reason.value,
        text=found_out.text,
        ahead=ahead,
        removed=found_out.removed,
        suggestion=found_out.suggestion,
    )


def order(state: State) -> list[str]:
    """Waiting jobs in the order in which a cycle would consider them if nothing were granted in between."""
    waiting = [state.jobs[job_id] for line in state.queues.values() for job_id in line]
    used = {team: state.committed_milli(team) for _, team, _ in state.queues}
    return [j.id for j in sorted(waiting, key=lambda j: (-j.priority, used[j.team], j.submitted_us, j.id))]


def queue_view(state: State, plan: Plan, limit: int) -> list[QueuedJob]:
    """The first `limit` waiting jobs, each with the reason of its line."""
    reasons: dict[QueueKey, str] = {key: blocked.reason.value for key, blocked in plan.waiting.items()}
    return [_queued(state.jobs[job_id], reasons) for job_id in order(state)[:limit]]


def _queued(job: Job, reasons: dict[QueueKey, str]) -> QueuedJob:
    return QueuedJob(
        job_id=job.id,
        team=job.team,
        name=job.spec.name,
        priority_class=job.spec.priority_class,
        priority=job.priority,
        devices=job.shape.devices,
        waiting_since_us=job.submitted_us,
        reason=reasons.get(job.queue, ""),
    )


def _running(job: Job) -> str:
    attempt = job.current
    assert attempt is not None
    where = ", ".join(attempt.parts)
    why = f" ({attempt.reason})" if attempt.reason else ""
    return f"attempt {attempt.number} is {job.state.value} on {where}{why}"
