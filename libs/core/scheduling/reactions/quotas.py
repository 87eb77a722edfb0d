"""What quota_billing says: how much a team may hold from here on."""

from libs.core.scheduling.reactions.decision import Decision
from libs.core.state.limits import Limits
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
