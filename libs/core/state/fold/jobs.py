"""What events of jobs and attempts change in the state, and of devices that are kept for a job."""

from collections.abc import Callable, Iterable
from typing import Any

from libs.core.state import lifecycle
from libs.core.state.attempt import Attempt, NodePart
from libs.core.state.boosts import Boost
from libs.core.state.holds import mark_holds
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.past_use import user_of
from libs.core.state.shape import shape_of
from libs.core.state.usable import count_parts
from libs.core.state.waiting import back_off, dequeue, enqueue, moved
from schemas import ledger as led
from schemas.attempts import Category, Cause, Evidence, Outcome, StopCause
from schemas.jobs import JobState
from schemas.queues import MOST_PER_JOB
from schemas.resources import Claim

CAUSES: dict[Evidence, StopCause] = {
    Evidence.REFUSED: Cause.PART_REFUSED,
    Evidence.LEASE_ENDED: Cause.PART_LOST,
    Evidence.NEW_INCARNATION: Cause.PART_LOST,
    Evidence.NODE_LEFT: Cause.NODE_LEFT,
}
"""Why an attempt must end when a part of it is freed by this evidence, and nothing was decided before."""

_CATEGORIES: dict[Outcome, Category] = {
    Outcome.SUCCEEDED: Category.SUCCESS,
    Outcome.FAILED: Category.USER_ERROR,
    Outcome.LOST: Category.NODE_LOST,
    Outcome.PREEMPTED: Category.PREEMPTED,
    Outcome.CANCELLED: Category.CANCELLED,
    Outcome.TIME_LIMIT: Category.TIME_LIMIT,
    Outcome.REFUSED: Category.REFUSED,
    Outcome.DRAINED: Category.DRAINED,
}
"""What an outcome counted as before records said the category."""


def _job_queued(state: State, e: led.JobQueued, t_us: int) -> None:
    if state.finished.knows(e.job_id, t_us):
        raise lifecycle.Forbidden(f"{e.job_id} is queued a second time")
    job = Job(
        e.job_id, e.team, e.spec, e.spec_hash, e.priority, e.preempts, submitted_us=e.submitted_us, queued_us=t_us,
        shape=shape_of(e.spec, e.network),
        latency=e.latency, lease_s=e.lease_s, network=e.network, user=e.user, by_user=state.tree.by_user(e.team),
    )  # fmt: skip
    state.jobs[e.job_id] = job
    state.early_cancels.forget(e.job_id, e.team)
    enqueue(state, job)


def _job_granted(state: State, e: led.JobGranted, t_us: int) -> None:
    job = state.jobs[e.job_id]
    if e.attempt != job.attempts + 1:
        raise lifecycle.Forbidden(f"{e.job_id}: attempt {e.attempt} follows attempt {job.attempts}")
    state.fleet.take(e.claims)
    state.team_claims.take(state.fleet, job.team, e.claims, t_us, job.spec)
    state.reserved.pop(e.job_id, None)
    dequeue(state, job)
    by_node: dict[str, list[Claim]] = {}
    for claim in e.claims:
        by_node.setdefault(claim.node, []).append(claim)
    parts = {node: NodePart(node, tuple(claims)) for node, claims in by_node.items()}
    job.attempts = e.attempt
    job.current = Attempt(e.attempt, e.claims, parts, granted_us=t_us, span=e.span)
    job.first_grant_us = job.first_grant_us or t_us
    for node in parts:
        state.on_node[node][job.id] = None
        count_parts(state, node)
    if job.shape.spread[0]:
        state.spread_peers.setdefault((job.team, job.shape.spread[0]), {})[job.id] = None
    _count_use(state, job, e.claims, 1, t_us)
    if state.unused_cuts:
        for claim in e.claims:
            state.unused_cuts.granted(claim.device, job.team, t_us)
    if e.hold is not None and state.budgets.covering(job.team):
        state.budgets.open(job.id, job.team, state.devices_of(job.current), e.hold, t_us)
    state.grants += 1


def _attempt_starting(state: State, e: led.AttemptStarting, t_us: int) -> None:
    _, attempt = _current(state, e.job_id, e.attempt)
    part = attempt.parts[e.node]
    attempt.unstarted -= not part.started
    part.started = True


def _attempt_running(state: State, e: led.AttemptRunning, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    attempt.running_us = t_us
    for part in attempt.parts.values():
        part.started = True
    attempt.unstarted = 0
    if job.spec.time_limit_s:
        state.limited[job.id] = t_us + int(job.spec.time_limit_s * 1_000_000)


def _attempt_checkpointed(state: State, e: led.AttemptCheckpointed, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    attempt.checkpoint, attempt.checkpoint_us = e.checkpoint, t_us
    job.resume = e.checkpoint


def _attempt_progress(state: State, e: led.AttemptProgress, t_us: int) -> None:
    _, attempt = _current(state, e.job_id, e.attempt)
    attempt.progress, attempt.progress_us = e.progress, t_us


def _attempt_preempting(state: State, e: led.AttemptPreempting, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    attempt.ended_us = t_us
    attempt.cause, attempt.reason, attempt.beneficiary = Cause.PREEMPTED, e.reason, e.beneficiary
    attempt.cost_device_s = e.cost_device_s
    job.preemptions += 1
    job.preempted_us = (*job.preempted_us, t_us)[-MOST_PER_JOB:]
    state.preemptions += 1
    if e.counts:
        job.counted_us = (*job.counted_us, t_us)[-MOST_PER_JOB:]
        beneficiary = state.jobs.get(e.beneficiary)
        state.preempted.note(t_us, "" if beneficiary is None else beneficiary.team)


def _attempt_stopping(state: State, e: led.AttemptStopping, t_us: int) -> None:
    _, attempt = _current(state, e.job_id, e.attempt)
    attempt.ended_us = attempt.ended_us or t_us
    attempt.cause, attempt.reason = e.cause, e.reason


def _devices_freed(state: State, e: led.DevicesFreed, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    part = attempt.parts[e.node]
    if part.freed:
        raise lifecycle.Forbidden(f"{e.job_id}.{e.attempt}: its part on {e.node} is freed twice")
    part.freed, part.exit_code, part.own_exit = True, e.exit_code, e.own_exit
    attempt.unfreed -= 1
    if attempt.cause is None and not (e.own_exit and e.exit_code == 0):
        attempt.ended_us = state.silent[e.node].since_us if e.node in state.silent else t_us
        attempt.failed_category = e.category
        attempt.failed_code = e.exit_code if e.own_exit else None
        if e.evidence in CAUSES:
            attempt.cause, attempt.reason = CAUSES[e.evidence], e.reason
    state.fleet.give_back(part.claims)
    state.team_claims.give_back(state.fleet, job.team, part.claims)
    state.on_node[e.node].pop(job.id, None)
    count_parts(state, e.node)
    _count_use(state, job, part.claims, -1, t_us)
    if state.unused_cuts:
        for claim in part.claims:
            state.unused_cuts.freed(claim.device, t_us)
    if job.id in state.budgets.holds:
        state.budgets.freed(job.id, state.devices_of(attempt), t_us)


def _attempt_closed(state: State, e: led.AttemptClosed, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    if attempt.unfreed:
        raise lifecycle.Forbidden(f"{e.job_id}.{e.attempt} is closed while a part of it still holds devices")
    category = e.category or _CATEGORIES[e.outcome]
    job.endings = {**job.endings, category: job.endings.get(category, 0) + 1}
    job.closed()
    if job.shape.spread[0]:
        _leave_spread_peers(state, job)
    state.limited.pop(job.id, None)


def _job_requeued(state: State, e: led.JobRequeued, t_us: int) -> None:
    job = state.jobs[e.job_id]
    job.resume, job.losses, job.failures, job.not_before_us = e.resume, e.losses, e.failures, e.not_before_us or 0
    if job.not_before_us > t_us:
        back_off(state, job)
    else:
        enqueue(state, job)


def _job_finished(state: State, e: led.JobFinished, t_us: int) -> None:
    job = state.jobs[e.job_id]
    if job.state is JobState.QUEUED:
        dequeue(state, job)
    del state.jobs[e.job_id]
    state.boosted.pop(e.job_id, None)
    state.reserved.pop(e.job_id, None)
    state.early_cancels.forget(e.job_id, job.team)
    state.finished.add(e.job_id, job.spec_hash, t_us)
    state.finished_by_state[e.state.value] = state.finished_by_state.get(e.state.value, 0) + 1


def _job_boosted(state: State, e: led.JobBoosted, t_us: int) -> None:
    job = state.jobs[e.job_id]
    own = job.priority if job.boost is None else job.boost.own_priority
    job.boost = Boost(own, e.until_us, e.reason, e.user)
    state.boosted[job.id] = e.until_us
    state.boosts_had.note(job.team, t_us)
    _ranks(state, job, e.priority)


def _boost_ended(state: State, e: led.BoostEnded, t_us: int) -> None:
    job = state.jobs[e.job_id]
    job.boost = None
    state.boosted.pop(job.id, None)
    _ranks(state, job, e.priority)


def _ranks(state: State, job: Job, priority: int) -> None:
    with moved(state, job):
        job.ranks(priority)


def _gang_promised(state: State, e: led.GangPromised, t_us: int) -> None:
    """Nothing changes here: what follows the fold keeps it (`State.turns`)."""


def _devices_reserved(state: State, e: led.DevicesReserved, t_us: int) -> None:
    if e.devices:
        state.reserved[e.gang] = e.devices
    else:
        state.reserved.pop(e.gang, None)


def _devices_held(state: State, e: led.DevicesHeld, t_us: int) -> None:
    state.holds[e.job_id] = e.devices
    mark_holds(state)


def _hold_released(state: State, e: led.HoldReleased, t_us: int) -> None:
    state.holds.pop(e.job_id, None)
    mark_holds(state)


def _current(state: State, job_id: str, number: int) -> tuple[Job, Attempt]:
    job = state.jobs.get(job_id)
    if job is None or job.current is None or job.current.number != number:
        raise lifecycle.Forbidden(f"{job_id}.{number} is not a running attempt")
    return job, job.current


def _leave_spread_peers(state: State, job: Job) -> None:
    key = (job.team, job.shape.spread[0])
    del state.spread_peers[key][job.id]
    if not state.spread_peers[key]:
        del state.spread_peers[key]


def _count_use(state: State, job: Job, claims: Iterable[Claim], sign: int, t_us: int) -> None:
    kinds: dict[str, int] = {}
    for claim in claims:
        kind = state.fleet.kind(state.fleet.row(claim.device))
        kinds[kind] = kinds.get(kind, 0) + sign * claim.milli
    for name, everyone, past in (
        (job.team, state.used, state.past_use),
        (user_of(job.team, job.user), state.used_by, state.past_use_by),
    ):
        used = everyone.setdefault(name, {})
        past.changes(name, used, everyone, t_us)
        for kind, milli in kinds.items():
            used[kind] = used.get(kind, 0) + milli
            if not used[kind]:
                del used[kind]
        if not used:
            del everyone[name]


FOLD: dict[type, Callable[[State, Any, int], None]] = {
    led.JobQueued: _job_queued,
    led.JobGranted: _job_granted,
    led.AttemptStarting: _attempt_starting,
    led.AttemptRunning: _attempt_running,
    led.AttemptCheckpointed: _attempt_checkpointed,
    led.AttemptProgress: _attempt_progress,
    led.AttemptPreempting: _attempt_preempting,
    led.AttemptStopping: _attempt_stopping,
    led.DevicesFreed: _devices_freed,
    led.AttemptClosed: _attempt_closed,
    led.JobRequeued: _job_requeued,
    led.JobFinished: _job_finished,
    led.JobBoosted: _job_boosted,
    led.BoostEnded: _boost_ended,
    led.GangPromised: _gang_promised,
    led.DevicesReserved: _devices_reserved,
    led.DevicesHeld: _devices_held,
    led.HoldReleased: _hold_released,
}
