"""What preemption says: who should give way to whom."""

from libs.core.scheduling.preemption.check import Declined, check
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from schemas import inbox, ledger


def preemption_planned(d: Decision, m: inbox.PreemptionPlanned) -> None:
    """A plan may be stale, which is normal: it is checked against the present, and accepted or declined."""
    answer = check(d.state, m, d.t_us, d.precedence)
    if isinstance(answer, Declined):
        declined = ledger.PlanDeclined(
            plan_id=m.plan_id, beneficiary=m.beneficiary, reason=answer.reason, text=answer.text[:2048]
        )
        if not d.may(declined):
            raise InputRefused(answer.text)
        d.emit(declined)
        return
    team = d.state.jobs[m.beneficiary].team
    for victim in answer.victims:
        assert victim.job.current is not None
        own = victim.job.team == team
        d.emit(
            ledger.AttemptPreempting(
                job_id=victim.job.id,
                attempt=victim.job.current.number,
                beneficiary=m.beneficiary,
                plan_id=m.plan_id,
                reason=m.reason,
                cost_device_s=victim.cost_device_s,
                for_own_team=own and d.may_withhold_credits,
                counts=not (own and d.counts_others_alone),
            )
        )
    d.emit(
        ledger.DevicesHeld(job_id=m.beneficiary, devices=m.devices, plan_id=m.plan_id, cost_device_s=m.cost_device_s)
    )
