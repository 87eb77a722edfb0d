"""What the placer answers."""

from dataclasses import dataclass
from enum import StrEnum

from libs.core.state.fleet import Ints
from schemas.resources import Level


class BlockReason(StrEnum):
    """Why a job cannot be placed now: the constraint to blame (`dominant`). Also metric label and event."""

    NO_DEVICES = "no-devices"
    TYPE = "type"
    PROFILE = "mig-profile"
    LABELS = "labels"
    MEMORY = "memory"
    RUNTIME = "runtime"
    PRECISION = "precision"
    CPU = "cpu"
    HOST_MEMORY = "host-memory"
    SIMULATION = "simulation"
    HELD = "held"
    RESERVED = "reserved"
    BUSY = "busy"
    PARTS = "parts"
    SPREAD = "spread"
    POWER = "power"
    TOPOLOGY = "topology"
    QUOTA = "quota"
    BUDGET = "budget"


TRANSIENT = frozenset(
    {
        BlockReason.BUSY,
        BlockReason.HELD,
        BlockReason.RESERVED,
        BlockReason.PARTS,
        BlockReason.SPREAD,
        BlockReason.CPU,
        BlockReason.HOST_MEMORY,
        BlockReason.POWER,
        BlockReason.QUOTA,
        BlockReason.BUDGET,
    }
)
"""Constraints on what is free now; all others stay as they are while a job waits."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request goes.

    `rows`: rows of the fleet in rank order. `level`: the widest level that the gang spans. `link_gb_s`: bandwidth of the
    slowest link between two of its devices, GB/s one way; 0 when it has none or it is unknown. `roles`: for a nested gang
    the position in `Shape.roles` of each rank, else None. `node`: for a request without devices, the code of its node.
    """

    rows: Ints
    level: Level
    link_gb_s: float = 0.0
    roles: Ints | None = None
    node: int = -1


@dataclass(frozen=True, slots=True)
class Blocked:
    """The dominant reason, and how many devices each constraint removed, in order of application."""

    reason: BlockReason
    removed: tuple[tuple[BlockReason, int], ...]
    left: int
    """Free and fitting devices, fewer than were asked for or too far apart."""


def dominant(removed: tuple[tuple[BlockReason, int], ...], left: int = 0, need: int = 1) -> BlockReason:
    """What to tell of `removed`, which is in order of application; nothing removed means that the pool is too small.

    The constraints that pass with time are to blame when the others leave `need` devices: of them the one that removed
    the most, the last of equals. Else it is the largest of those that waiting does not change.

    Args:
        left: devices that all of them left.
        need: the fewest devices that would have done.
    """
    passing = [r for r in removed if r[0] in TRANSIENT]
    lasting = [r for r in removed if r[0] not in TRANSIENT]
    possible = left + sum(n for _, n in passing)
    told = passing if passing and (possible >= need or not lasting) else lasting
    return max(reversed(told), key=lambda r: r[1])[0] if told else BlockReason.NO_DEVICES
