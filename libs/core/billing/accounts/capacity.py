"""Capacity units of a device and its parts. The one rule for rounding.

    a device                        7,000 units: sevenths (MIG) and thousandths (shares) are integers
    an instance of a MIG board      7,000 x its compute slices / the board's, rounded down
    the rest of a MIG board         7,000 minus its instances; a row of its own, under the board's id
    a share of n thousandths        n / 1,000 of its device's units, rounded down

A rounding remainder belongs to no share. It stays with the free part of the device or board, so nothing is lost and
nobody pays for part of a unit. Existing boards (2, 4, 7 or 8 slices) need no rounding. An instance of a board that the
catalogue does not know counts as a whole device, as for limits (`libs.core.accelerators.kinds`); its board is then the
sum of its instances.
"""

from typing import NamedTuple

from libs.core.accelerators.kinds import GRAINS, weight
from schemas.resources import DEVICE_UNITS as DEVICE_UNITS
from schemas.resources import WHOLE_MILLI, Inventory, kind_of


class CapacityPiece(NamedTuple):
    """A device, a MIG instance, or the part of a board that is in no instance."""

    device: str
    model: str
    profile: str
    units: int
    board: str
    """The board of an instance or of a board's rest; else empty."""


def units_of(model: str, profile: str = "") -> int:
    """Capacity units of one whole device of a model, or of one MIG instance of it."""
    return DEVICE_UNITS * weight(model, kind_of(model, profile)) // GRAINS


def units_of_share(units: int, milli: int) -> int:
    """Capacity units of `milli` thousandths of a device that has `units`."""
    return units * milli // WHOLE_MILLI


def pieces(inventory: Inventory) -> list[CapacityPiece]:
    """All capacity that a node offers, piece by piece."""
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
