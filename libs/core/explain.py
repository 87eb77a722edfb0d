"""Why a job is where it is: the same code that places it says what keeps it out."""

from dataclasses import replace

from libs.core.context import context_of
from libs.core.cycle import Plan
from libs.core.model import Job, QueueKey, State
from libs.core.placement import Blocked, Placed, Reason, View, find
from libs.core.placement.constraints import fitting
from schemas.jobs import JobState
from schemas.queries import Explanation, QueuedJob, Removed

_TEXT = {
    Reason.NO_DEVICES: "the pool has {up} usable devices and the job needs {need} at once",
    Reason.TYPE: "no device of an acceptable type is usable: it asks for {types}",
    Reason.PROFILE: "no MIG instance of profile {profile} is usable",
    Reason.LABELS: "no usable node carries the labels {labels}",
    Reason.MEMORY: "no usable device has {memory} MiB of memory",
    Reason.SIMULATION: "it runs as a timer, and no node with simulated devices is usable",
    Reason.HELD: "the devices that are free are held for a job of a higher class",
    Reason.RESERVED: "the devices that are free are reserved for a gang that has waited longer",
    Reason.BUSY: "{left} fitting devices are free and it needs {need} at once",
    Reason.TOPOLOGY: "{left} fitting devices are free, but not {need} of them within one {level}",
    Reason.QUOTA: "team {team} holds {used} of its quota of {limit} devices and the job needs {need}",
}


def explain(state: State, job: Job, plan: Plan) -> Explanation:
    """The explanation of a job that has not ended. `plan` is the last cycle's."""
    if job.state is not JobState.QUEUED:
        return Explanation(job_id=job.id, state=job.state, reason=job.state.value, text=_running(job))
    if job.id in state.holds:
        devices = len(state.holds[job.id])
        text = f"{devices} devices are being freed for it: lower classes are saving their work and giving way"
        return Explanation(job_id=job.id, state=job.state, reason="preempting", text=text)
    outcome = plan.waiting.get(job.queue)
    if outcome is None or outcome.reason is not Reason.QUOTA:
        found = find(View.of(state.fleet), job.shape, context=context_of(state, job, state.t_us))
        outcome = found if isinstance(found, Blocked) else outcome
    ahead = order(state).index(job.id)
    if outcome is None:
        text = "it fits now and is granted with the next decision"
        return Explanation(job_id=job.id, state=job.state, reason="next", text=text, ahead=ahead)
    return Explanation(
        job_id=job.id,
        state=job.state,
        reason=outcome.reason.value,
        text=_text(state, job, outcome),
        ahead=ahead,
        removed=tuple(Removed(constraint=reason.value, devices=n) for reason, n in outcome.removed),
        suggestion=_suggestion(state, job, outcome),
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


def _text(state: State, job: Job, outcome: Blocked) -> str:
    limit = state.quotas.get(job.team, 0)
    return _TEXT[outcome.reason].format(
        up=int(state.fleet.up.sum()),
        need=_devices(job.shape.total_milli),
        types=", ".join(job.shape.types) or "any accelerator",
        profile=job.shape.profile or "(none)",
        labels=dict(job.shape.labels),
        memory=job.shape.memory_mib,
        left=outcome.left,
        level=job.shape.level,
        team=job.team,
        used=_devices(state.committed_milli(job.team)),
        limit=_devices(limit),
    )


def _suggestion(state: State, job: Job, outcome: Blocked) -> str:
    """The smallest change that would let the job run now, found by trying it."""
    shape, view = job.shape, View.of(state.fleet)
    if outcome.reason is Reason.QUOTA:
        room = max(0, state.quotas.get(job.team, 0) - state.committed_milli(job.team))
        return f"ask for at most {_devices(room)} devices, or wait for the team's own jobs" if room else ""
    if outcome.reason is Reason.TOPOLOGY:
        return f"make topology.policy preferred: {outcome.left} fitting devices are free in the pool"
    possible = int(fitting(view, shape).sum())
    if possible < shape.devices:
        models = sorted({n.model for node in state.fleet.nodes.values() if node.up for n in node.inventory.devices})
        return f"only {possible} such devices are up; the pool has the types {', '.join(models)}" if models else ""
    if 0 < outcome.left < shape.devices:
        return f"with devices: {outcome.left} it would run now"
    if shape.types:
        anywhere = find(view, replace(shape, types=()), context=context_of(state, job, state.t_us))
        if isinstance(anywhere, Placed):
            model = state.fleet.models.names[int(state.fleet.model[anywhere.rows[0]])]
            return f"add {model} to resources.types: it would run there now"
    return ""


def _devices(milli: int) -> str:
    return f"{milli / 1000:g}"
