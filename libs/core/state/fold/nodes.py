"""What events of nodes, of their boards and of their devices change in the state."""

from collections.abc import Callable
from typing import Any

from libs.core.state import lifecycle
from libs.core.state.model import Quarantine, Silence, State
from libs.core.state.usable import (
    BY_ITSELF,
    mark_cordoned,
    mark_quarantined,
    mark_repartitions,
    mark_silent,
    reopen,
    reopen_device,
    shut,
)
from schemas import ledger as led
from schemas.jobs import JobState
from schemas.resources import WHOLE_MILLI, Inventory


def _node_joined(state: State, e: led.NodeJoined, t_us: int) -> None:
    state.fleet.join(e.inventory, e.incarnation)
    state.silent.pop(e.inventory.node, None)
    state.on_node.setdefault(e.inventory.node, {})
    _forget_repartitions(state, e.inventory.node)
    _forget_quarantines(state, e.inventory)
    for device, known in list(state.quarantined.items()):
        if known.lifted and known.node == e.inventory.node:
            del state.quarantined[device]  # this life has said anew what is in quarantine
    mark_quarantined(state)
    mark_cordoned(state)


def _node_left(state: State, e: led.NodeLeft, t_us: int) -> None:
    state.fleet.leave(e.node)
    state.silent.pop(e.node, None)
    _forget_repartitions(state, e.node)


def _node_silent(state: State, e: led.NodeSilence, t_us: int) -> None:
    known = state.silent.get(e.node)
    since_us = known.since_us if known is not None else max(0, t_us - int(e.silent_s * 1_000_000))
    state.silent[e.node] = Silence(since_us, e.kept, e.ended_lease_s)
    mark_silent(state)


def _node_heard(state: State, e: led.NodeHeard, t_us: int) -> None:
    del state.silent[e.node]
    reopen(state, e.node)


def _node_declared_dead(state: State, e: led.NodeDeclaredDead, t_us: int) -> None:
    """Nothing changes by this: what it held is freed, and the node leaves, in events of the same record."""


def _node_cordoned(state: State, e: led.NodeCordoned, t_us: int) -> None:
    state.cordoned[e.node] = f"{e.user or BY_ITSELF}: {e.reason}"
    mark_cordoned(state)


def _node_uncordoned(state: State, e: led.NodeUncordoned, t_us: int) -> None:
    del state.cordoned[e.node]
    if e.node not in state.silent:
        reopen(state, e.node)


def _device_quarantined(state: State, e: led.DeviceQuarantined, t_us: int) -> None:
    state.quarantined[e.device] = Quarantine(e.node, e.users, e.since_us)
    shut(state, e.device)


def _device_returned(state: State, e: led.DeviceReturned, t_us: int) -> None:
    known = state.quarantined.pop(e.device, None)
    if known is None:
        return
    if e.user:
        state.quarantined[e.device] = known._replace(lifted=True)
    if e.node not in state.silent:
        reopen_device(state, e.node, e.device)


def _board_repartitioned(state: State, e: led.BoardRecut, t_us: int) -> None:
    board = e.recut.board
    for device in e.recut.destroy:
        if state.fleet.free_milli[state.fleet.row(device)] != WHOLE_MILLI:
            raise lifecycle.Forbidden(f"{device} is to be destroyed while it is in use")
    if board in state.repartitions:
        raise lifecycle.Forbidden(f"board {board} is to be repartitioned while its last repartition is under way")
    state.repartitions[board], state.repartition_number[board], state.repartition_us[board] = e, e.recut.number, t_us
    if e.for_job is not None:
        job = state.jobs[e.for_job]
        if job.state is not JobState.QUEUED:
            raise lifecycle.Forbidden(f"board {board} is to be repartitioned for {e.for_job}, which does not wait")
        asked = ((place.profile, place.start) for place in e.recut.create)
        state.unused_cuts.asked(board, e.node, job.team, asked, t_us)
    else:
        state.unused_cuts.forget(board)
    mark_repartitions(state)


def _board_cut_done(state: State, e: led.BoardCutDone, t_us: int) -> None:
    """Claims stay with their devices: rows are found by device id, and a row that joins again keeps its free amounts."""
    del state.repartitions[e.board]
    state.withdrawn.discard(e.board)
    if e.ok:
        here = {d.id: (d.mig_profile, d.mig_start) for d in e.inventory.devices if d.parent == e.board}
        state.unused_cuts.done(e.board, here)
    else:
        state.unused_cuts.failed(e.board)
    state.fleet.join(e.inventory, e.incarnation)
    _forget_quarantines(state, e.inventory)
    mark_repartitions(state)
    mark_quarantined(state)
    mark_cordoned(state)
    mark_silent(state)


def _board_repartition_withdrawn(state: State, e: led.BoardRecutWithdrawn, t_us: int) -> None:
    """The node is asked what the board is now. Instances that it may have destroyed stay out of placement until it answers."""
    asked = state.repartitions.get(e.board)
    if asked is None or asked.recut.number != e.number:
        raise lifecycle.Forbidden(f"repartition {e.number} of board {e.board} is withdrawn and was not under way")
    state.withdrawn.add(e.board)


def _forget_repartitions(state: State, node: str) -> None:
    """Forgets the repartitions asked of a node: it starts anew or is gone."""
    state.unused_cuts.node_begins_anew(node)
    for board in [board for board, asked in state.repartitions.items() if asked.node == node]:
        del state.repartitions[board]
        state.withdrawn.discard(board)


def _forget_quarantines(state: State, inventory: Inventory) -> None:
    """Of devices that the node no longer has, or has from another one."""
    offered = {device.id for device in inventory.devices}
    for device, known in list(state.quarantined.items()):
        if (device in offered) is not (known.node == inventory.node):
            del state.quarantined[device]


FOLD: dict[type, Callable[[State, Any, int], None]] = {
    led.NodeJoined: _node_joined,
    led.NodeLeft: _node_left,
    led.NodeSilence: _node_silent,
    led.NodeHeard: _node_heard,
    led.NodeDeclaredDead: _node_declared_dead,
    led.NodeCordoned: _node_cordoned,
    led.NodeUncordoned: _node_uncordoned,
    led.DeviceQuarantined: _device_quarantined,
    led.DeviceReturned: _device_returned,
    led.BoardRecut: _board_repartitioned,
    led.BoardCutDone: _board_cut_done,
    led.BoardRecutWithdrawn: _board_repartition_withdrawn,
}
