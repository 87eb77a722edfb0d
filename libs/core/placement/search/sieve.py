"""The constraints that change with every grant, compiled: a pass over a pool's devices is what most decisions cost.

Each function narrows `mask` (shape (D,)) in place and says how many devices it took out, constraint by constraint.
"""

from typing import NamedTuple

import numpy as np

from libs.core.placement.score.arrays import WHOLE, compiled
from libs.core.placement.view import NOBODY
from libs.core.state.fleet import Bools, Ints


class DeviceStates(NamedTuple):
    """Of each device (shape (D,)): free compute (milli) and memory (MiB), memory in all, for whom it is held, whether it is
    reserved."""

    free_milli: Ints
    free_mib: Ints
    memory_mib: Ints
    held: Ints
    blocked: Bools


@compiled
def open_devices(
    mask: Bools, devices: DeviceStates, milli: int, least_mib: int, beneficiary: int
) -> tuple[int, int, int]:
    """Leaves devices with enough free, that nobody else holds, and that are not reserved: how many were busy, held, reserved.

    `milli` and `least_mib` (0: none named) are what the request needs of each device, `beneficiary` is for whom it asks.
    A whole device must be free entirely. A share without a memory need takes its part of the memory, rounded down:
    memory * milli // 1000 <= free, without the division. Reserved devices are closed to everybody who asks, also to jobs for
    which others are held.
    """
    free_milli, free_mib, memory_mib, held, blocked = devices
    busy = others = reserved = 0
    for d in range(len(mask)):
        if not mask[d]:
            continue
        if milli == WHOLE:
            enough = free_milli[d] == WHOLE
        elif least_mib > 0:
            enough = free_milli[d] >= milli and free_mib[d] >= least_mib
        else:
            enough = free_milli[d] >= milli and memory_mib[d] * milli < (free_mib[d] + 1) * WHOLE
        if not enough:
            busy += 1
        elif held[d] != NOBODY and (beneficiary == NOBODY or held[d] != beneficiary):
            others += 1
        elif blocked[d]:
            reserved += 1
        else:
            continue
        mask[d] = False
    return busy, others, reserved


@compiled
def served(mask: Bools, where: Ints, limit: Ints) -> tuple[int, Ints]:
    """Leaves devices whose group (`where`, shape (D,)) can serve at least one (`limit`, shape (G,)): how many it took
    out, and how many are left in each group."""
    gone = 0
    left = np.zeros(len(limit), dtype=np.int64)
    for d in range(len(mask)):
        if mask[d]:
            if limit[where[d]] > 0:
                left[where[d]] += 1
            else:
                mask[d] = False
                gone += 1
    return gone, left


@compiled
def members(mask: Bools, where: Ints, chosen: Bools, count: int) -> Ints:
    """The rows of `mask` whose group is among the `chosen` (shape (G,)); `count`: at least as many as there are."""
    rows = np.empty(count, dtype=np.int64)
    n = 0
    for d in range(len(mask)):
        if mask[d] and chosen[where[d]]:
            rows[n] = d
            n += 1
    return rows[:n]


@compiled
def first_of_each(mask: Bools, rows: Ints, group: Ints, most: Ints) -> int:
    """Leaves, of each run of equal codes in `group`, the first `most` (all of shape (n,)): how many it took out."""
    gone = place = 0
    for i in range(len(rows)):
        place = place + 1 if i > 0 and group[i] == group[i - 1] else 0
        if place >= most[i]:
            mask[rows[i]] = False
            gone += 1
    return gone
