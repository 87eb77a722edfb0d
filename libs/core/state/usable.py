"""Which devices placement may not use although their node is up: silence, quarantine, a cordon, a repartition that destroys
them, too many parts on the node.

`fleet.up` is what placement sees. Each of these takes devices out of it; when one of them ends, the node's devices are put
back, and then the others take theirs out again.
"""

from libs.core.state.model import State

MOST_PARTS = 4096
"""Parts of attempts on one node, from which on nothing new is granted there: what placement tells an agent, and what an agent
watches, has a bound. One cycle may go over it, by what it grants (`Policy.claims_per_cycle`)."""

BY_ITSELF = "placement"
"""Who took a node out of use, where it was no operator: every job failed there (`libs.core.scheduling.failing`)."""


def count_parts(state: State, name: str) -> None:
    """Notes whether the node has as many parts as it may. To be called when one has come or gone."""
    if len(state.on_node[name]) >= MOST_PARTS:
        state.fleet.full.add(state.fleet.node_names.find(name))
    elif state.fleet.full:
        state.fleet.full.discard(state.fleet.node_names.find(name))


def mark_repartitions(state: State) -> None:
    """Takes instances that are about to go out of placement. To be called after a node's inventory has joined."""
    for asked in state.repartitions.values():
        for device in asked.recut.destroy:
            state.fleet.up[state.fleet.row(device)] = False
            state.fleet.version += 1


def mark_quarantined(state: State) -> None:
    """Takes devices in quarantine out of placement. To be called after a node's inventory has joined."""
    for device, known in state.quarantined.items():
        if not known.lifted:
            shut(state, device)


def shut(state: State, device: str) -> None:
    """One device is out of placement. A node may say it of thousands at once: none of the others is looked at."""
    state.fleet.up[state.fleet.row(device)] = False
    state.fleet.version += 1


def mark_cordoned(state: State) -> None:
    """Takes nodes that an operator has taken out of use out of placement. To be called after a node's inventory has joined."""
    for name in state.cordoned:
        state.fleet.up[state.fleet.nodes[name].rows] = False
        state.fleet.version += 1


def mark_silent(state: State) -> None:
    """Takes the devices of silent nodes out of placement. To be called after a node's inventory has joined."""
    for name in state.silent:
        state.fleet.up[state.fleet.nodes[name].rows] = False
        state.fleet.version += 1


def reopen(state: State, name: str) -> None:
    """What the node offers is in placement, but what something else keeps out."""
    node = state.fleet.nodes[name]
    if node.up:
        state.fleet.up[node.rows] = True
        state.fleet.version += 1
        mark_repartitions(state)
        mark_quarantined(state)
        mark_cordoned(state)


def reopen_device(state: State, name: str, device: str) -> None:
    """The same of one device that the node offers, whose quarantine is over."""
    going = any(device in asked.recut.destroy for asked in state.repartitions.values())
    if state.fleet.nodes[name].up and name not in state.cordoned and not going:
        state.fleet.up[state.fleet.row(device)] = True
        state.fleet.version += 1
