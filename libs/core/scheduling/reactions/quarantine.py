"""Devices that something uses which is no attempt of ours: an agent tells all that its node has, an operator may lift one."""

from collections.abc import Iterable

from libs.core.scheduling.reactions.attempts import release_holds_of
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from schemas import inbox, ledger


def node_quarantine(d: Decision, m: inbox.NodeQuarantine) -> None:
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        raise InputRefused(
            f"node {m.node}, incarnation {m.incarnation}, is not up: its next registration tells it again"
        )
    changes = _changes(d, m.node, m.incarnation, m.devices)
    if why := d.nodes.quarantines(m.node, len(changes), d.t_us):
        raise InputRefused(why)
    _make(d, changes)


def follow(d: Decision, node: str, incarnation: int, busy: Iterable[inbox.BusyDevice]) -> None:
    """Makes the quarantine of a node's devices what its agent says."""
    _make(d, _changes(d, node, incarnation, busy))


def _changes(
    d: Decision, node: str, incarnation: int, busy: Iterable[inbox.BusyDevice]
) -> list[ledger.DeviceQuarantined | ledger.DeviceReturned]:
    """What makes the quarantine of a node's devices what its agent says. Devices that it does not have are passed over."""
    state = d.state
    offered = {state.fleet.devices.names[row] for row in state.fleet.nodes[node].rows}
    told = {one.device: one for one in busy if one.device in offered}
    changes: list[ledger.DeviceQuarantined | ledger.DeviceReturned] = [
        ledger.DeviceReturned(node=node, device=device, since_us=known.since_us)
        for device, known in state.quarantined.items()
        if known.node == node and not known.lifted and device not in told
    ]
    for device, one in told.items():
        before = state.quarantined.get(device)
        if before is None or before.since_us != one.since_us:
            changes.append(
                ledger.DeviceQuarantined(
                    node=node, incarnation=incarnation, device=device, users=one.users, since_us=one.since_us
                )
            )
    return changes


def _make(d: Decision, changes: Iterable[ledger.DeviceQuarantined | ledger.DeviceReturned]) -> None:
    for event in changes:
        if _emit(d, event) and isinstance(event, ledger.DeviceQuarantined):
            release_holds_of(d, {event.device})


def quarantine_lifted(d: Decision, m: inbox.QuarantineLifted) -> None:
    """The node hears of it with its desired state, and says then that the device is not in quarantine any more."""
    known = d.state.quarantined.get(m.device)
    if known is None or known.node != m.node or known.lifted:
        raise InputRefused(
            f"device {m.device} of node {m.node} is not in quarantine: `baton get devices` shows which are"
        )
    if m.since_us not in (0, known.since_us):
        raise InputRefused(
            f"device {m.device} of node {m.node} is in another quarantine by now, the one of {known.since_us} and not of "
            f"{m.since_us}, us by its node's clock: if that one is meant too, say so again"
        )
    user = m.user or "operator"
    back = ledger.DeviceReturned(node=m.node, device=m.device, since_us=known.since_us, user=user, reason=m.reason)
    if not _emit(d, back):
        raise InputRefused("a reader of this ledger is of a release that knows no quarantine: `baton ledger readers`")


def _emit(d: Decision, event: ledger.DeviceQuarantined | ledger.DeviceReturned) -> bool:
    if not d.may(event):
        return False
    d.emit(event)
    return True
