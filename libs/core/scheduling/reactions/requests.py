"""What teams ask for: a job that admission let in, and the cancelling of one."""

from typing import Any

from libs.core.scheduling.reactions.attempts import release_hold, stop
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state import lifecycle
from libs.core.state.ended import DAY_US, too_old
from schemas import inbox, ledger
from schemas.attempts import Cause
from schemas.jobs import JobSpec, JobState


def job_admitted(d: Decision, m: inbox.JobAdmitted) -> None:
    state = d.state
    job = state.jobs.get(m.job_id)
    same = job.spec_hash == m.spec_hash if job else state.finished.same(m.job_id, m.spec_hash, d.t_us)
    if same:
        return
    if same is False:
        raise InputRefused(f"client key {m.client_key!r} already names {m.job_id} with another body; use a new key")
    if (suspended := state.suspended.get(m.team)) is not None:
        raise InputRefused(suspended.text(m.team))
    submitted_us = d.ledger_time(m.submitted_us)
    if submitted_us < state.finished.oldest_us(d.t_us):
        raise InputRefused(f"{m.job_id}: {too_old(submitted_us, d.t_us, state.finished)}; submit it again")
    if (resumed := state.resumed.get(m.team)) is not None and d.is_before(m.submitted_us, resumed):
        raise InputRefused(f"{m.job_id} was sent before team {m.team} was resumed: submit it again")
    cancelled = state.early_cancels.of(m.job_id, m.team)
    if cancelled is not None and d.is_stamped_before(cancelled.requested_us, m.submitted_us):
        cancelled = None  # what it cancelled was another request
    d.emit(
        ledger.JobQueued(
            job_id=m.job_id,
            team=m.team,
            spec=_within(m.spec, m.longest_grace_s),
            spec_hash=m.spec_hash,
            client_key=m.client_key,
            priority=m.priority,
            preempts=m.preempts,
            submitted_us=submitted_us,
            latency=m.latency,
            lease_s=m.lease_s,
            network=m.network,
            user=m.user,
            cause=m.cause,
            policy=m.policy,
        )
    )
    if cancelled is not None:
        reason = cancelled.reason or "its cancel came before it"
        d.emit(ledger.JobFinished(job_id=m.job_id, state=JobState.CANCELLED, reason=reason, user=cancelled.user))


def _within(spec: JobSpec, longest_grace_s: float | None) -> JobSpec:
    """The spec with no more grace than its class gives. Admission refuses more; an older one did not look."""
    if longest_grace_s is None:
        return spec
    changes: dict[str, Any] = {}
    if spec.stop_grace_s > longest_grace_s:
        changes["stop_grace_s"] = longest_grace_s
    if spec.checkpoint is not None and spec.checkpoint.grace_s > longest_grace_s:
        changes["checkpoint"] = spec.checkpoint.model_copy(update={"grace_s": longest_grace_s})
    return spec.model_copy(update=changes) if changes else spec


def refused(d: Decision, m: inbox.JobAdmitted | inbox.CancelRequested) -> ledger.RefusedRequest:
    """What the team is told of its request, and whether that is the end of a job of this id."""
    known = m.job_id in d.state.jobs or d.state.finished.knows(m.job_id, d.t_us)
    if isinstance(m, inbox.CancelRequested):
        return ledger.RefusedRequest(
            what="cancel", job_id=m.job_id, team=m.team, user=m.user, stored_us=m.requested_us or d.wall_us,
            known=known, text=m.reason[:512],
        )  # fmt: skip
    return ledger.RefusedRequest(
        what="submit", job_id=m.job_id, team=m.team, user=m.user, client_key=m.client_key, stored_us=m.submitted_us,
        known=known or d.ledger_time(m.submitted_us) < d.state.finished.oldest_us(d.t_us),
    )  # fmt: skip


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
    elif job.may_come_back and d.state.early_cancels.of(job.id, m.team) is None:
        assert job.current is not None
        raise InputRefused(
            f"{job.id} is being stopped already ({job.current.reason}): it is cancelled as soon as that is done, and does "
            "not wait again"
        )
