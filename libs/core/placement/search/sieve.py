"""The constraints that change with every grant, compiled (`native/sieve.c`): most of a decision is such a pass over a pool.

Each function narrows `mask` (shape (D,)) in place and says how many devices it took out, constraint by constraint.
"""

import ctypes
from typing import NamedTuple

import numpy as np

from libs.core.placement.compiled import address, function, packed
from libs.core.state.fleet import Bools, Ints


class DeviceStates(NamedTuple):
    """Of each device (shape (D,)): free compute (milli) and memory (MiB), memory in all, for whom it is held, whether it is
    reserved."""

    free_milli: Ints
    free_mib: Ints
    memory_mib: Ints
    held: Ints
    blocked: Bools


_INT, _ARRAY = ctypes.c_int64, ctypes.c_void_p
_Gone = ctypes.c_int64 * 3
_open_devices = function("open_devices", _ARRAY, ctypes.c_char_p, _INT, _INT, _INT, _Gone)
_served = function("served", _ARRAY, _INT, _ARRAY, _ARRAY, _ARRAY, returns=_INT)
_first_of_each = function("first_of_each", _ARRAY, _INT, _ARRAY, _ARRAY, _ARRAY, returns=_INT)


def open_devices(
    mask: Bools, devices: DeviceStates, milli: int, least_mib: int, beneficiary: int
) -> tuple[int, int, int]:
    """Leaves devices with enough free, that nobody else holds, and that are not reserved: how many were busy, held, reserved.

    `milli` and `least_mib` (0: none named) are what the request needs of each device, `beneficiary` is for whom it asks.
    A whole device must be free entirely. A share without a memory need takes its part of the memory, rounded down:
    memory * milli // 1000 <= free, without the division. Reserved devices are closed to everybody who asks, also to jobs for
    which others are held.
    """
    gone = _Gone()
    _open_devices(address(mask, "?"), packed(devices).words, milli, least_mib, beneficiary, gone)
    busy, held, reserved = gone
    return busy, held, reserved


def served(mask: Bools, where: Ints, limit: Ints) -> tuple[int, Ints]:
    """Leaves devices whose group (`where`, shape (D,)) can serve at least one (`limit`, shape (G,)): how many it took
    out, and how many are left in each group."""
    left = np.zeros(len(limit), dtype=np.int64)
    gone: int = _served(address(mask, "?"), len(mask), address(where), address(limit), address(left))
    return gone, left


def first_of_each(mask: Bools, rows: Ints, group: Ints, most: Ints) -> int:
    """Leaves, of each run of equal codes in `group`, the first `most` (all of shape (n,)): how many it took out."""
    gone: int = _first_of_each(address(mask, "?"), len(rows), address(rows), address(group), address(most))
    return gone
