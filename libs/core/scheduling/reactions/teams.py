"""What operators say of teams: one is paused, has left, and goes on."""

from libs.core.scheduling.reactions.attempts import release_hold, stop
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state.lifecycle import UNDECIDED
from schemas import inbox, ledger
from schemas.attempts import Cause
from schemas.subjects import OPERATOR


def suspend_team(d: Decision, m: inbox.SuspendTeam) -> None:
    """Nothing waits in a queue that is considered, and nothing is kept for it. What runs goes on, unless it is to stop: then it
    saves its work and waits, as on a node that leaves."""
    if m.team == OPERATOR:
        raise InputRefused(f"team {m.team!r} are the operators: they cannot be suspended")
    event = ledger.TeamSuspended(team=m.team, reason=m.reason, user=m.user)
    if not d.may(event):
        raise InputRefused("a reader of this ledger is of a release that cannot suspend teams: `baton ledger readers`")
    known = d.state.suspended.get(m.team)
    if known is None or known.reason != m.reason:
        d.emit(event)
        for beneficiary in [job_id for job_id in d.state.holds if d.state.jobs[job_id].team == m.team]:
            release_hold(d, beneficiary)
    if m.stop:
        for job in [job for job in d.state.jobs.values() if job.team == m.team]:
            if job.current is not None and job.current.state in UNDECIDED:
                stop(d, job, Cause.SUSPENDED, f"team {m.team} is suspended: {m.reason}", m.user)
                d.may_end_here()


def offboard_team(d: Decision, m: inbox.OffboardTeam) -> None:
    """Nothing of it waits or runs, and nothing can come: what nodes keep of it is of no use to anybody."""
    if m.team not in d.state.suspended:
        raise InputRefused(f"team {m.team} is not suspended: `baton team offboard` suspends it first")
    event = ledger.TeamLeft(team=m.team, reason=m.reason, user=m.user)
    if not d.may(event):
        raise InputRefused(
            "a reader of this ledger is of a release that knows no teams that left: `baton ledger readers`"
        )
    if job := next((job for job in d.state.jobs.values() if job.team == m.team), None):
        raise InputRefused(f"{job.id} of team {m.team} is {job.state.value}: say it again when all its jobs have ended")
    if m.team not in d.state.left:
        d.emit(event)


def resume_team(d: Decision, m: inbox.ResumeTeam) -> None:
    if m.team not in d.state.suspended:
        raise InputRefused(f"team {m.team} is not suspended: `baton team list` shows which are")
    d.emit(ledger.TeamResumed(team=m.team, reason=m.reason, user=m.user))
