"""What operators, and admins of its team, say of one job: it comes before its class for a time."""

from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state.job import Job
from schemas import inbox, ledger

_S = 1_000_000
EXPIRED = "its time is over"


def boost_job(d: Decision, m: inbox.BoostJob) -> None:
    job = d.state.jobs.get(m.job_id)
    if job is None or (m.team and job.team != m.team):
        raise InputRefused(f"job = {m.job_id}: no such job waits or runs; `baton get jobs` shows which do")
    if not m.for_s:
        if job.boost is None:
            raise InputRefused(f"job = {m.job_id}: it is not boosted; `baton describe` shows which priority it has")
        _end(d, job, m)
        return
    own = job.priority if job.boost is None else job.boost.own_priority
    if m.priority <= own:
        raise InputRefused(
            f"priority = {m.priority}: the job's class {job.spec.priority_class} has {own}; name a class above it"
        )
    budget = d.state.tree.boost_budget(job.team)
    if m.for_s > budget.longest_s:
        raise InputRefused(
            f"for = {m.for_s:.15g} s: a boost of team {job.team} is {budget.longest_s} s at the most; ask for less, or raise "
            "boosts.longest of its queue"
        )
    within_us = budget.within_s * _S
    if d.state.boosts_had.within(job.team, d.t_us, within_us) >= budget.most:
        again_s = (d.state.boosts_had.first_us(job.team, d.t_us, within_us) + within_us - d.t_us) // _S + 1
        when = f"wait {again_s} s, or " if budget.most else ""
        raise InputRefused(
            f"boosts.most = {budget.most}: team {job.team} has had as many within {budget.within_s} s; {when}raise "
            "boosts.most of its queue"
        )
    until_us = d.t_us + max(1, int(m.for_s * _S))
    event = ledger.JobBoosted(
        job_id=job.id, priority=m.priority, until_us=until_us, reason=m.reason, user=m.user, team=m.team
    )
    if not d.may(event):
        raise InputRefused("a reader of this ledger is of a release that knows no boosts: `baton ledger readers`")
    d.emit(event)


def end_boosts(d: Decision) -> None:
    """Those whose time is over act no more. To be called before anything else is decided."""
    for job_id in [job_id for job_id, until_us in d.state.boosted.items() if until_us <= d.t_us]:
        _end(d, d.state.jobs[job_id])


def _end(d: Decision, job: Job, said: inbox.BoostJob | None = None) -> None:
    assert job.boost is not None
    event = ledger.BoostEnded(job_id=job.id, priority=job.boost.own_priority, reason=EXPIRED)
    if said is not None:
        event = event.model_copy(update={"reason": said.reason, "user": said.user, "team": said.team})
    d.emit(event)
