"""MIG boards repartitioned on a node: whether that may be done now, and doing it. The node decides when, and reports it."""

import logging
from collections.abc import Mapping, Sequence

from libs.adapters.devices import DeviceLayer, NoDevices, RepartitionFailed
from schemas.resources import Device, Inventory, Recut

log = logging.getLogger("baton.agent")

REASON_LENGTH = 1024


def refusal(repartition: Recut, inventory: Inventory, busy: Mapping[str, int]) -> str:
    """Why this repartition must not be begun, or "". `busy`: device id -> milli that parts hold here."""
    board = next((board for board in inventory.boards if board.id == repartition.board), None)
    if board is None:
        return f"{repartition.board} is no MIG board of this node"
    if not board.dynamic:
        return f"board {repartition.board} stays as it was found: its operator does not let Baton repartition it"
    there = {device.id: device for device in inventory.devices}
    for name in repartition.destroy:
        if name not in there or there[name].parent != repartition.board:
            return f"board {repartition.board} has no instance {name}"
        if busy.get(name):
            return f"instance {name} is still in use here: {busy[name]} milli"
    return ""


def carry_out(layer: DeviceLayer, repartition: Recut, inventory: Inventory) -> tuple[str, Inventory]:
    """Cuts the board and looks what is there now. Blocks. Returns why it failed ("" when done) and the new inventory."""
    reason = ""
    try:
        layer.repartition(repartition.board, repartition.destroy, repartition.create)
    except RepartitionFailed as e:
        reason = str(e)
    except Exception as e:  # whatever the driver did, placement must hear of it
        log.exception("repartitioning board %s failed", repartition.board)
        reason = f"{type(e).__name__}: {e}"
    try:
        found, boards = _discovered(layer), layer.boards()
    except Exception as e:
        log.exception("looking for devices after repartitioning board %s failed", repartition.board)
        untouched = tuple(device for device in inventory.devices if device.id not in repartition.destroy)
        reason = f"{reason or 'repartitioned'}; what is there now cannot be read ({type(e).__name__}: {e})"
        return reason[:REASON_LENGTH], inventory.model_copy(update={"devices": untouched})
    devices = tuple(_as_measured(device, inventory) for device in found)
    return reason[:REASON_LENGTH], inventory.model_copy(update={"devices": devices, "boards": boards})


def _discovered(layer: DeviceLayer) -> Sequence[Device]:
    try:
        return layer.discover()
    except NoDevices:
        return ()


def _as_measured(device: Device, before: Inventory) -> Device:
    """Free memory that cannot be measured now, as a job runs there, is as it was measured before."""
    if device.memory_free_mib is not None:
        return device
    known = next((old.memory_free_mib for old in before.devices if old.id == device.id), None)
    return device.model_copy(update={"memory_free_mib": known})
