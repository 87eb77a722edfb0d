"""Nodes that an operator takes out of use, or placement where every job fails; and that an operator puts into use again."""

from libs.core.scheduling.reactions.attempts import release_holds_of
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from schemas import inbox, ledger

_OLD = "a reader of this ledger is of a release that knows no node out of use: `baton ledger readers`"


def node_cordoned(d: Decision, m: inbox.CordonNode) -> None:
    """Nothing new is granted there; what runs goes on. What is held there is let go."""
    if m.node not in d.state.fleet.nodes:
        raise InputRefused(f"pool has no node {m.node}: `baton get nodes` lists them")
    if m.node in d.state.cordoned:
        raise InputRefused(
            f"node {m.node} is out of use already: `baton node uncordon {m.node}` puts it into use again"
        )
    if not _cordon(d, m.node, m.user or "operator", m.reason):
        raise InputRefused(_OLD)


def take_out(d: Decision, node: str, why: str) -> None:
    """`why`: "" for nothing (`libs.core.scheduling.failing`)."""
    if why:
        _cordon(d, node, "", why)


def _cordon(d: Decision, node: str, user: str, reason: str) -> bool:
    """`user`: "" where no operator says it. False: not all readers of the ledger know of that."""
    out = ledger.NodeCordoned(node=node, user=user, reason=reason)
    if not d.may(out):
        return False
    d.emit(out)
    names, rows = d.state.fleet.devices.names, d.state.fleet.nodes[node].rows
    release_holds_of(d, {names[row] for row in rows})
    return True


def node_uncordoned(d: Decision, m: inbox.UncordonNode) -> None:
    if m.node not in d.state.cordoned:
        raise InputRefused(f"node {m.node} is not out of use: `baton get nodes` shows which are in maintenance")
    d.emit(ledger.NodeUncordoned(node=m.node, user=m.user or "operator", reason=m.reason))
