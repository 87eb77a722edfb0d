"""How attempts end: their parts are stopped and freed one by one, and the last one decides what becomes of the job."""

from typing import Any

from libs.core.scheduling.reactions.decision import Decision
from libs.core.state import fold
from libs.core.state.model import Attempt, Job
from schemas import ledger
from schemas.jobs import JobState


def vacate(d: Decision, node: str, evidence: Any, reason: str) -> None:
    """A node's word, or its silence, frees everything it held; its gangs end elsewhere too."""
    for job_id in list(d.state.on_node.get(node, {})):
        job = d.state.jobs[job_id]
        attempt = job.current
        assert attempt is not None
        free(d, node, job, attempt, evidence, reason)
        after_loss(d, job, attempt, fold.CAUSES[evidence], reason)
    held = {device for devices in d.state.holds.values() for device in devices}
    rows = d.state.fleet.nodes[node].rows if node in d.state.fleet.nodes else []
    gone = held & {d.state.fleet.devices.names[row] for row in rows}
    for holder, devices in list(d.state.holds.items()):
        if gone & set(devices):
            release_hold(d, holder)


def after_loss(d: Decision, job: Job, attempt: Attempt, cause: Any, reason: str) -> None:
    if job.state is not JobState.STOPPING and job.state is not JobState.PREEMPTING:
        stop(d, job, cause, reason)
    close_if_gone(d, job, attempt)


def free(
    d: Decision,
    node: str,
    job: Job,
    attempt: Attempt,
    evidence: Any,
    reason: str,
    exit_code: int | None = None,
    own_exit: bool = False,
) -> None:
    d.emit(
        ledger.DevicesFreed(
            job_id=job.id,
            attempt=attempt.number,
            node=node,
            devices=tuple(c.device for c in attempt.parts[node].claims),
            evidence=evidence,
            exit_code=exit_code,
            own_exit=own_exit,
            reason=reason,
        )
    )


def stop(d: Decision, job: Job, cause: Any, reason: str) -> None:
    attempt = job.current
    assert attempt is not None
    d.emit(ledger.AttemptStopping(job_id=job.id, attempt=attempt.number, cause=cause, reason=reason[:1024]))


def close_if_gone(d: Decision, job: Job, attempt: Attempt) -> None:
    """The last part is gone: the attempt's outcome, and what becomes of the job."""
    if not all(part.freed for part in attempt.parts.values()):
        return
    codes = [part.exit_code for part in attempt.parts.values() if part.own_exit]
    done = len(codes) == len(attempt.parts) and not any(codes)
    code = next((c for c in (p.exit_code for p in attempt.parts.values()) if c), 0 if done else None)
    outcome: Any = "succeeded" if done and attempt.cause in ("", "preempted") else _OUTCOMES[attempt.cause]
    d.emit(ledger.AttemptClosed(job_id=job.id, attempt=attempt.number, outcome=outcome))
    again = {
        "preempted": True,
        "drained": True,
        "lost": job.lost <= job.spec.retry.on_lost,
        "refused": job.lost <= job.spec.retry.on_lost,
        "failed": job.failures <= job.spec.retry.on_failure,
    }
    if again.get(outcome, False):
        d.emit(ledger.JobRequeued(job_id=job.id, reason=attempt.reason or outcome, resume=job.resume))
        return
    state = {"succeeded": JobState.SUCCEEDED, "cancelled": JobState.CANCELLED}.get(outcome, JobState.FAILED)
    d.emit(ledger.JobFinished(job_id=job.id, state=state, reason=attempt.reason, exit_code=code))


def release_hold(d: Decision, job_id: str) -> None:
    if job_id in d.state.holds:
        d.emit(ledger.HoldReleased(job_id=job_id))


_OUTCOMES: dict[str, Any] = {
    "": "failed",
    "cancelled": "cancelled",
    "time-limit": "time-limit",
    "preempted": "preempted",
    "part-failed": "failed",
    "part-lost": "lost",
    "node-left": "drained",
    "part-refused": "refused",
}
