"""How attempts end: their parts are stopped and freed one by one, and the last one decides what becomes of the job."""

from collections.abc import Set

from libs.core.scheduling import retry
from libs.core.scheduling.reactions.decision import Decision
from libs.core.state.attempt import Attempt
from libs.core.state.fold.jobs import CAUSES
from libs.core.state.job import Job
from libs.core.state.lifecycle import UNDECIDED
from schemas import inbox, ledger
from schemas.attempts import Category, Cause, Evidence, KnownOfPart, StopCause
from schemas.jobs import JobState


def vacate(d: Decision, node: str, evidence: Evidence, reason: str) -> None:
    """A node's word, or its silence, frees everything it held; its gangs end elsewhere too."""
    for job_id in list(d.state.on_node.get(node, {})):
        job = d.state.jobs[job_id]
        attempt = job.current
        assert attempt is not None
        free(d, node, job, attempt, evidence, reason)
        after_loss(d, job, attempt, CAUSES[evidence], reason)
        d.may_end_here()
    release_holds_on(d, node)


def release_holds_on(d: Decision, node: str) -> None:
    """What is held on the node for a beneficiary of a preemption will not be there for it."""
    if d.state.holds and node in d.state.fleet.nodes:
        release_holds_of(d, {d.state.fleet.devices.names[row] for row in d.state.fleet.nodes[node].rows})


def release_holds_of(d: Decision, gone: Set[str]) -> None:
    """Those of `gone` that are held for somebody will not be there."""
    for beneficiary, devices in list(d.state.holds.items()):
        if gone & set(devices):
            release_hold(d, beneficiary)


def after_loss(d: Decision, job: Job, attempt: Attempt, cause: StopCause, reason: str) -> None:
    """A part of the attempt is gone: unless its end was decided before, the rest is to stop for `cause`."""
    if attempt.state in UNDECIDED:
        stop(d, job, cause, reason)
    close_if_gone(d, job, attempt)


def free(
    d: Decision,
    node: str,
    job: Job,
    attempt: Attempt,
    evidence: Evidence,
    reason: str,
    *,
    told: inbox.Released | inbox.Refused | None = None,
    silent_s: float | None = None,
) -> None:
    """The part on `node` is gone; `told` is the agent's report, if there is one. `silent_s`: what ended its lease."""
    released = told if isinstance(told, inbox.Released) else None
    d.emit(
        ledger.DevicesFreed(
            job_id=job.id,
            attempt=attempt.number,
            node=node,
            devices=tuple(c.device for c in attempt.parts[node].claims),
            evidence=evidence,
            exit_code=released.exit_code if released is not None else None,
            own_exit=released.own_exit if released is not None else False,
            reason=reason,
            category=_known(d, told),
            unproven=d.may_withhold_credits and released is not None and released.unproven,
            silent_s=silent_s,
        )
    )


def _known(d: Decision, told: inbox.Released | inbox.Refused | None) -> KnownOfPart | None:
    if isinstance(told, inbox.Released) and told.over == "disk" and d.names_disk_limit:
        return Category.DISK_LIMIT
    return told.category if told is not None else None


def stop(d: Decision, job: Job, cause: StopCause, reason: str, user: str = "") -> None:
    """`user`: who asked for it, where somebody did."""
    attempt = job.current
    assert attempt is not None
    d.emit(ledger.AttemptStopping(job_id=job.id, attempt=attempt.number, cause=cause, reason=reason[:1024], user=user))


def stop_at_limit(d: Decision, job: Job) -> None:
    stop(d, job, Cause.TIME_LIMIT, f"it ran for its time limit of {job.spec.time_limit_s:g} s")


def close_if_gone(d: Decision, job: Job, attempt: Attempt) -> None:
    """The last part is gone: what kind of end that was, and what becomes of the job."""
    if attempt.unfreed:
        return
    category = retry.classify(retry.ending_of(attempt))
    outcome = retry.POLICY[category].outcome
    d.emit(ledger.AttemptClosed(job_id=job.id, attempt=attempt.number, outcome=outcome, category=category))
    lost = retry.POLICY[category].budget is retry.Budget.INFRASTRUCTURE
    losses = retry.in_a_row(job.losses, attempt.ran_us, lost and _counts(d, attempt))
    state = retry.decide(category, job.endings, job.spec.retry, losses)
    if state is JobState.QUEUED:
        _queue_again(d, job, attempt, category, losses)
        if (cancelled := d.state.early_cancels.of(job.id, job.team)) is not None:  # it came while this one was stopped
            reason = cancelled.reason or "it was cancelled while it was being stopped"
            d.emit(ledger.JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=reason, user=cancelled.user))
    else:
        reason = f"{retry.why_it_ends(category, losses, job.spec.retry)}: {attempt.reason}" if lost else attempt.reason
        code = _exit_code(attempt)
        d.emit(ledger.JobFinished(job_id=job.id, state=state, reason=reason, exit_code=code))


def _counts(d: Decision, attempt: Attempt) -> bool:
    """A node refuses again and again while readers of before keep out of the ledger why it does: that is not the job's."""
    return d.backs_off or attempt.cause is not Cause.PART_REFUSED


def _queue_again(d: Decision, job: Job, attempt: Attempt, category: Category, losses: int) -> None:
    """Readers of before know of no back-off, and could be writers in a moment: while there are such, nobody waits."""
    rule, failures, wait_us, why = retry.POLICY[category], 0, 0, ""
    if d.backs_off_failures:
        failures = retry.in_a_row(job.failures, attempt.ran_us, rule.budget is retry.Budget.USER)
    if rule.budget is retry.Budget.INFRASTRUCTURE and d.backs_off:
        wait_us, why = retry.wait_us(losses), f"lost {losses}"
    elif rule.budget is retry.Budget.USER:
        wait_us, why = retry.wait_us(failures), f"failed {failures}"
    reason = attempt.reason or rule.outcome.value
    if wait_us:
        reason += f" ({why} times in a row: it is started again in {wait_us // 1_000_000} s)"
    d.emit(
        ledger.JobRequeued(
            job_id=job.id, reason=reason, resume=job.resume, losses=losses, failures=failures,
            not_before_us=d.t_us + wait_us if wait_us else None,
        )
    )  # fmt: skip


def _exit_code(attempt: Attempt) -> int | None:
    """The first code that is not 0, in the order of parts; 0 when all ended by themselves with it; else None."""
    parts = attempt.parts.values()
    return next((p.exit_code for p in parts if p.exit_code), 0 if all(p.own_exit for p in parts) else None)


def release_hold(d: Decision, job_id: str) -> None:
    if job_id in d.state.holds:
        d.emit(ledger.HoldReleased(job_id=job_id))
