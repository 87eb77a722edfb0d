"""Nodes that an operator takes out of use, and puts into use again."""

from libs.core.scheduling.reactions.attempts import release_holds_of
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from schemas import inbox, ledger

_OLD = "a reader of this ledger is of a release that knows no node out of use: `baton ledger readers`"


def node_cordoned(d: Decision, m: inbox.CordonNode) -> None:
    """Nothing new is granted there; what runs goes on. What is held there is let go."""
    fleet = d.state.fleet
    if (known := fleet.nodes.get(m.node)) is None:
        raise InputRefused(f"pool has no node {m.node}: `baton get nodes` lists them")
    if m.node in d.state.cordoned:
        raise InputRefused(
            f"node {m.node} is out of use already: `baton node uncordon {m.node}` puts it into use again"
        )
    out = ledger.NodeCordoned(node=m.node, user=m.user or "operator", reason=m.reason)
    if not d.may(out):
        raise InputRefused(_OLD)
    d.emit(out)
    release_holds_of(d, {fleet.devices.names[row] for row in known.rows})


def node_uncordoned(d: Decision, m: inbox.UncordonNode) -> None:
    if m.node not in d.state.cordoned:
        raise InputRefused(f"node {m.node} is not out of use: `baton get nodes` shows which are in maintenance")
    d.emit(ledger.NodeUncordoned(node=m.node, user=m.user or "operator", reason=m.reason))
