"""What the ledger keeps for auditors and nothing is decided by: what was done outside of it, and refused commands.

In a format that has no word for them they are left out: the operator's book, and the team's answer, have them all the same.
"""

from libs.core.scheduling.reactions.decision import Decision
from schemas import inbox, ledger


def action_told(d: Decision, m: inbox.ActionTold) -> None:
    _keep(d, ledger.OperatorActed(action=m.action, user=m.user or "operator"))


def refusal_told(d: Decision, m: inbox.RefusalTold) -> None:
    if m.line:
        _keep(d, ledger.CommandRefused(command=m.command))


def secret_changed(d: Decision, m: inbox.SecretChanged) -> None:
    _keep(d, ledger.OperatorActed(action=m.action, user=m.user, team=m.team))


def sum_proposed(d: Decision, m: inbox.SumProposed) -> None:
    """Whether it is right is checked by whoever reads the ledger whole (I14): placement does not keep what teams are told."""
    _keep(d, ledger.LedgerSummed(sum=m.sum, nonce=m.nonce))


def _keep(d: Decision, event: ledger.OperatorActed | ledger.CommandRefused | ledger.LedgerSummed) -> None:
    if d.may(event):
        d.emit(event)
