"""How many units of capacity a device is, and a part of one. The one rule for what does not divide.

    a device                        7,000 units: sevenths (MIG) and thousandths (shares) are whole numbers
    an instance of a MIG board      7,000 x its compute slices / the board's, rounded down
    what is in no instance          what is left of the board's 7,000; a row of its own, under the board's id
    a share of n thousandths        n / 1,000 of its device's units, rounded down

What is rounded down is in nobody's share, so it stays with what is free of the device or board: nothing is lost, nobody pays
for a part of a unit. With the boards that there are (2, 4, 7 or 8 slices) nothing is rounded. Instances that the
catalogue knows no board of count as whole devices, as they do for limits (`libs.core.accelerators.kinds`); the board is then
as large as its instances.
"""

from typing import NamedTuple

from libs.core.accelerators.kinds import GRAINS, weight
from schemas.resources import DEVICE_UNITS as DEVICE_UNITS
from schemas.resources import WHOLE_MILLI, Inventory, kind_of


class CapacityPiece(NamedTuple):
    """A device, an instance, or what is in no instance of a board."""

    device: str
    model: str
    profile: str
    units: int
    board: str
    """Of an instance, and of what is in none; else empty."""


def units_of(model: str, profile: str = "") -> int:
    """Capacity units of one whole device of a model, or of one MIG instance of it."""
    return DEVICE_UNITS * weight(model, kind_of(model, profile)) // GRAINS


def units_of_share(units: int, milli: int) -> int:
    """Capacity units of `milli` thousandths of a device that has `units`."""
    return units * milli // WHOLE_MILLI


def pieces(inventory: Inventory) -> list[CapacityPiece]:
    """All that a node offers, as rows of the books."""
    out, of_board, models = [], {b.id: 0 for b in inventory.boards}, {b.id: b.model for b in inventory.boards}
    for device in inventory.devices:
        units = units_of(device.model, device.mig_profile)
        board = device.parent if device.mig_profile else ""
        out.append(CapacityPiece(device.id, device.model, device.mig_profile, units, board))
        if board:
            of_board[board] = of_board.get(board, 0) + units
            models.setdefault(board, device.model)
    for board, used in of_board.items():
        if used < DEVICE_UNITS:
            out.append(CapacityPiece(board, models[board], "", DEVICE_UNITS - used, board))
    return out
