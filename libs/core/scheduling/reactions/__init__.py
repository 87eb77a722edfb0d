"""What each inbox message leads to: one function per message, in a file per source. Each loads, decides, and emits the
ledger events that follow.

`Decision` collects the events and applies each to the state at once, so that what is decided later in a batch sees what
was decided before. If the record is not committed, the state is thrown away with it (`libs.core.scheduling.decider`).

Facts may come twice, late, or from an earlier life of a node: what is already known leads to no event, what cannot be
true leads to `InputRejected` with a reason, and neither holds up the next message.
"""

from collections.abc import Callable
from typing import Any

from libs.core.scheduling.reactions import (
    agents,
    audit,
    boosts,
    budgets,
    cordons,
    preemption,
    prices,
    quarantine,
    quotas,
    requests,
    teams,
    telemetry,
)
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from schemas import inbox, ledger, subjects

__all__ = ["Decision", "InputRefused", "react", "reject"]


def react(d: Decision, seq: int, subject: str, message: inbox.InboxMessage | None, error: str = "") -> None:
    """Decides one inbox message. `message` is None when it could not be read; then `error` says why."""
    try:
        if message is None or error:
            raise InputRefused(error or "unreadable message")
        _REACTIONS[type(message)](d, message)
    except InputRefused as e:
        reject(d, seq, subject, message, str(e))


def reject(d: Decision, seq: int, subject: str, message: inbox.InboxMessage | None, reason: str) -> None:
    """The input is not applied. If it is a team's request, the team is told. Of a node's the ledger has so many and no more."""
    if subjects.is_of_a_node(subject):
        left_out = d.nodes.rejects(subjects.sender_of(subject), d.t_us)
        if left_out is None:
            return
        if left_out:
            reason = f"{reason[:1900]} (and {left_out:,} more of this node since its last such line)"
    asked = message if isinstance(message, inbox.JobAdmitted | inbox.CancelRequested) else None
    request = requests.refused(d, asked) if asked is not None else None
    d.emit(ledger.InputRejected(inbox_seq=seq, subject=subject, reason=reason[:2048], request=request))


_REACTIONS: dict[type, Callable[[Decision, Any], None]] = {
    inbox.JobAdmitted: requests.job_admitted,
    inbox.CancelRequested: requests.cancel_requested,
    inbox.NodeRegistered: agents.node_registered,
    inbox.NodeObserved: agents.node_observed,
    inbox.NodeLost: telemetry.node_lost,
    inbox.NodeSilent: telemetry.node_silent,
    inbox.NodeHeardAgain: telemetry.node_heard,
    inbox.NodeDead: telemetry.node_dead,
    inbox.CordonNode: cordons.node_cordoned,
    inbox.UncordonNode: cordons.node_uncordoned,
    inbox.NodeQuarantine: quarantine.node_quarantine,
    inbox.QuarantineLifted: quarantine.quarantine_lifted,
    inbox.GranterClaimed: telemetry.granter_claimed,
    inbox.BoardCut: agents.board_cut,
    inbox.Tick: telemetry.tick,
    inbox.QuotaChanged: quotas.quota_changed,
    inbox.ApplyQueues: quotas.queues_applied,
    inbox.BoostJob: boosts.boost_job,
    inbox.ApplyPrices: prices.prices_applied,
    inbox.ClosePeriod: prices.period_closed,
    inbox.ApplyBudgets: budgets.budgets_applied,
    inbox.TopUpBudget: budgets.topped_up,
    inbox.SuspendTeam: teams.suspend_team,
    inbox.OffboardTeam: teams.offboard_team,
    inbox.ResumeTeam: teams.resume_team,
    inbox.PreemptionPlanned: preemption.preemption_planned,
    inbox.ActionTold: audit.action_told,
    inbox.RefusalTold: audit.refusal_told,
    inbox.SecretChanged: audit.secret_changed,
    inbox.SumProposed: audit.sum_proposed,
}
