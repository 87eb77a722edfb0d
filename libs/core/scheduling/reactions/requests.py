"""What teams ask for: a job that admission let in, and the cancelling of one."""

from libs.core.scheduling.reactions.attempts import release_hold, stop
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state import lifecycle
from libs.core.state.ended import DAY_US, too_old
from schemas import inbox, ledger
from schemas.attempts import Cause
from schemas.jobs import JobState


def job_admitted(d: Decision, m: inbox.JobAdmitted) -> None:
    state = d.state
    job = state.jobs.get(m.job_id)
    same = job.spec_hash == m.spec_hash if job else state.finished.same(m.job_id, m.spec_hash, d.t_us)
    if same:
        return
    if same is False:
        raise InputRefused(f"client key {m.client_key!r} already names {m.job_id} with another body; use a new key")
    submitted_us = d.ledger_time(m.submitted_us)
    if submitted_us < state.finished.oldest_us(d.t_us):
        raise InputRefused(f"{m.job_id}: {too_old(submitted_us, d.t_us, state.finished)}; submit it again")
    d.emit(
        ledger.JobQueued(
            job_id=m.job_id,
            team=m.team,
            spec=m.spec,
            spec_hash=m.spec_hash,
            client_key=m.client_key,
            priority=m.priority,
            preempts=m.preempts,
            submitted_us=submitted_us,
            latency=m.latency,
            lease_s=m.lease_s,
            user=m.user,
        )
    )


def cancel_requested(d: Decision, m: inbox.CancelRequested) -> None:
    job = d.state.jobs.get(m.job_id)
    if job is None:
        if d.state.finished.knows(m.job_id, d.t_us):
            return
        days = d.state.finished.window_us(d.t_us) / DAY_US
        raise InputRefused(f"no job {m.job_id} waits or runs, and none of that id ended in the last {days:.3g} days")
    if job.team != m.team:
        raise InputRefused(f"no job {m.job_id} of team {m.team}")
    if lifecycle.allows(ledger.JobFinished, *job.states):
        release_hold(d, job.id)
        d.emit(ledger.JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=m.reason, user=m.user))
    elif lifecycle.allows(ledger.AttemptStopping, *job.states):
        stop(d, job, Cause.CANCELLED, m.reason, m.user)
