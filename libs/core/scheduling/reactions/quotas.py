"""How much a team may hold from here on, as quota_billing says; and how the pool is shared, as operators say."""

from libs.core.scheduling.queues import problems
from libs.core.scheduling.reactions.budgets import begin_to_count
from libs.core.scheduling.reactions.decision import Decision, InputRefused, check_version
from libs.core.state.limits import Limits
from libs.core.state.queue_tree import QueueTree
from schemas import inbox, ledger


def quota_changed(d: Decision, m: inbox.QuotaChanged) -> None:
    if d.state.quotas.get(m.team) != Limits.of(m.limit_milli, m.by_type):
        d.emit(
            ledger.QuotaSet(
                team=m.team,
                limit_milli=m.limit_milli,
                by_type=m.by_type,
                user=m.user,
                cause=m.cause,
                policy=m.policy,
                reason=m.reason,
            )
        )


def queues_applied(d: Decision, m: inbox.ApplyQueues) -> None:
    """All or nothing."""
    now, then = d.state.tree, QueueTree.said(m)
    if then == now:
        return
    check_version(m.version, now.version)
    if wrong := problems(m.queues, offered=d.state.fleet.offered()):
        first = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputRefused(f"queue {first.queue}: {first.field} = {first.value}: {first.problem}; {first.fix}{more}")
    for balance in d.state.budgets.balances.values():
        if (queue := balance.about.queue) is not None and queue in now.queues and queue not in then.queues:
            raise InputRefused(
                f"queue {queue}: goes, and the budget of {balance.about.label} would count nobody: apply budgets without it "
                "first (`baton budget show`)"
            )
    event = ledger.QueuesApplied(
        version=m.version,
        queues=m.queues,
        order=m.order,
        half_life_s=m.half_life_s,
        preemption=m.preemption,
        reason=m.reason,
        user=m.user,
    )
    if not d.may(event):
        raise InputRefused("a reader of this ledger is of a release that knows no queues: `baton ledger readers`")
    begin_to_count(d, event)
