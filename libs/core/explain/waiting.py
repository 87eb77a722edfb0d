"""Why a job is where it is: the same code that places it says what keeps it out."""

from collections.abc import Mapping
from dataclasses import replace

from libs.core.explain.diagnosis import diagnose
from libs.core.placement import Blocked, View, find
from libs.core.placement.context import context_of, reserve_host_resources
from libs.core.placement.throughput import Chooser
from libs.core.scheduling.cycle import Plan, Policy, reserve
from libs.core.scheduling.limits import OVER_LIMIT, Tally
from libs.core.state.model import Job, QueueKey, State
from schemas.jobs import JobState
from schemas.queries import Explanation, QueuedJob
from schemas.resources import Span


def explain(state: State, job: Job, plan: Plan, policy: Policy = Policy()) -> Explanation:
    """The explanation of a job that has not ended. `plan` is the last cycle's, `policy` that of all cycles."""
    if job.state is not JobState.QUEUED:
        return Explanation(job_id=job.id, state=job.state, reason=job.state.value, text=_running(job), span=_span(job))
    if job.id in state.holds:
        devices = len(state.holds[job.id])
        text = f"{devices} devices are being freed for it: lower classes are saving their work and giving way"
        text += _cost(state, job)
        return Explanation(job_id=job.id, state=job.state, reason="preempting", text=text)
    outcome = plan.waiting.get(job.queue)
    view, context = open_view(state, policy.chooser), context_of(state, job, state.t_us)
    keep_reserved(view, state, job, plan.waiting, state.t_us, policy)
    room = Tally(state).room(job)
    found = OVER_LIMIT if room.request is None else find(view, room.request, context=context)
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


def open_view(state: State, chooser: Chooser | None) -> View:
    """What is free, less what beneficiaries of preemptions will need."""
    view = View.of(state.fleet, chooser)
    reserve_host_resources(state, view)
    return view


def keep_reserved(
    view: View, state: State, job: Job, waiting: Mapping[QueueKey, Blocked], t_us: int, policy: Policy
) -> None:
    """Keeps on `view` what a cycle keeps from `job` for gangs that have waited long, first come first.

    `waiting`: why each line waits. For a line of which that is not known nothing is kept.
    """
    mine = (-job.priority, job.submitted_us, job.id)
    aged = t_us - policy.reserve_after_us
    heads = [state.jobs[next(iter(line))] for key, line in state.queues.items() if line and key[0] >= job.priority]
    gangs = sorted((-j.priority, j.submitted_us, j.id) for j in heads if j.shape.devices > 1 and j.queued_us <= aged)
    left, tally = policy.reservations, Tally(state)
    for key in gangs:
        gang = state.jobs[key[2]]
        if gang.id == job.id or (key > mine and job.shape.devices > 1 and job.queued_us <= aged):
            break  # it comes first itself
        blocked = waiting.get(gang.queue)
        request = tally.room(gang).request
        if left and blocked is not None and request is not None:
            left -= reserve(view, replace(gang, shape=request), context_of(state, gang, t_us))


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


def _cost(state: State, beneficiary: Job) -> str:
    """What it costs those that give way to `beneficiary`; "" when no plan told."""
    attempts = (job.current for job in state.jobs.values() if job.state is JobState.PREEMPTING)
    costs = [a.cost_device_s for a in attempts if a is not None and a.beneficiary == beneficiary.id]
    known = [cost for cost in costs if cost is not None]
    return f", which costs them {sum(known):,.0f} device-seconds" if known else ""


def _running(job: Job) -> str:
    attempt = job.current
    assert attempt is not None
    where = ", ".join(attempt.parts)
    why = f" ({attempt.reason})" if attempt.reason else ""
    if job.state is JobState.PREEMPTING and attempt.cost_device_s is not None:
        why += f", giving way costs it {attempt.cost_device_s:,.0f} device-seconds"
    together = f", {attempt.span.text}" if attempt.span else ""
    return f"attempt {attempt.number} is {job.state.value} on {where}{together}{why}"


def _span(job: Job) -> Span | None:
    return job.current.span if job.current is not None else None
