"""Repartitions MIG boards: whether it is possible now, and the execution. The node decides when, and reports the
result."""

import logging
from collections.abc import Mapping, Sequence

from libs.adapters.devices import DeviceLayer, NoDevices, RepartitionFailed
from schemas.resources import Device, Inventory, Recut

log = logging.getLogger("baton.agent")

REASON_LENGTH = 1024


def refusal(repartition: Recut, inventory: Inventory, busy: Mapping[str, int]) -> str:
    """Why this repartition must not begin, or "". `busy`: device id -> thousandths held by parts here."""
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
    """Repartitions the board and reads the new inventory. Blocks. Returns the reason of a failure ("" for success) and
    the inventory."""
    reason = ""
    try:
        layer.repartition(repartition.board, repartition.destroy, repartition.create)
    except RepartitionFailed as e:
        reason = str(e)
    except Exception as e:  # placement must hear of any driver failure
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
    """Keeps the last measured free memory of devices where a job prevents measuring."""
    if device.memory_free_mib is not None:
        return device
    known = next((old.memory_free_mib for old in before.devices if old.id == device.id), None)
    return device.model_copy(update={"memory_free_mib": known})
