"""What teams ask for: a job that admission let in, and the cancelling of one."""

from libs.core.scheduling.reactions.attempts import release_hold, stop
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state import lifecycle
from schemas import inbox, ledger
from schemas.attempts import Cause
from schemas.jobs import JobState


def job_admitted(d: Decision, m: inbox.JobAdmitted) -> None:
    state = d.state
    known = state.jobs[m.job_id].spec_hash if m.job_id in state.jobs else state.finished.get(m.job_id)
    if known == m.spec_hash:
        return
    if known is not None:
        raise InputRefused(f"client key {m.client_key!r} already names {m.job_id} with another body; use a new key")
    d.emit(
        ledger.JobQueued(
            job_id=m.job_id,
            team=m.team,
            spec=m.spec,
            spec_hash=m.spec_hash,
            client_key=m.client_key,
            priority=m.priority,
            preempts=m.preempts,
            submitted_us=m.submitted_us,
            latency=m.latency,
            user=m.user,
        )
    )


def cancel_requested(d: Decision, m: inbox.CancelRequested) -> None:
    job = d.state.jobs.get(m.job_id)
    if job is None:
        if m.job_id in d.state.finished:
            return
        raise InputRefused(f"no job {m.job_id}")
    if job.team != m.team:
        raise InputRefused(f"no job {m.job_id} of team {m.team}")
    if lifecycle.allows(ledger.JobFinished, *job.states):
        release_hold(d, job.id)
        d.emit(ledger.JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=m.reason, user=m.user))
    elif lifecycle.allows(ledger.AttemptStopping, *job.states):
        stop(d, job, Cause.CANCELLED, m.reason, m.user)
