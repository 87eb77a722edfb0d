"""What placement reads of an inventory, as a node sends it. Pure."""

from collections import Counter
from math import prod

from schemas.resources import MIG_SLICES, MOST_DEVICES, Device, Inventory, MigBoard

MOST_LAYOUTS = 1 << 15
"""Ways to partition a board that may be repartitioned, at the most, by what may begin at each of its slices (of an H100:
25,920). One with more stays as it was found."""


def usable_mib(device: Device) -> int:
    """Memory (MiB) of a device that can be granted: the measured free memory where it is told and smaller, else the nominal."""
    return device.memory_mib if device.memory_free_mib is None else min(device.memory_mib, device.memory_free_mib)


def boards_of(inventory: Inventory) -> set[str]:
    """Ids of the MIG boards that it names, those that only their instances name among them."""
    return {b.id for b in inventory.boards} | {d.parent for d in inventory.devices if d.mig_profile and d.parent}


def island_of(device: Device, node: str) -> str:
    """The NVLink island; "": none. A fabric joins nodes, an island of a domain is a node's own."""
    return device.fabric or (f"{node}/{device.nvlink_domain}" if device.nvlink_domain else "")


def torus_of(device: Device) -> str:
    """The torus in which a chip lies; "": none."""
    shape, at = device.torus_shape, device.torus_at
    known = (
        bool(device.torus and shape)
        and len(shape) == len(at)
        and all(0 <= x < n for x, n in zip(at, shape, strict=True))
        and prod(shape) <= MOST_DEVICES
    )
    return f"{device.torus} {shape}" if known else ""


def few_layouts(board: MigBoard) -> bool:
    """Whether all ways to partition a board can be looked at, however a node describes it: of what begins at a slice, one
    at the most is there."""
    if any(not 0 <= start <= MIG_SLICES - p.memory_slices for p in board.profiles for start in p.starts):
        return False
    begin = Counter(start for profile in board.profiles for start in profile.starts)
    return prod(1 + several for several in begin.values()) <= MOST_LAYOUTS
