"""The clocks, read here alone: wall time for people, `boot_s` for durations that must not stop while the machine sleeps.

Timers and short durations within a process are the event loop's (`loop.time()`).
"""

import time
from functools import cache
from pathlib import Path
from uuid import uuid4

from libs.ports.host import present_host

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_ns() -> int:
    """Nanoseconds since the epoch."""
    host = present_host()
    return time.time_ns() if host is None else host.wall_ns()


def wall_us() -> int:
    """Microseconds since the epoch."""
    return wall_ns() // 1000


def wall_s() -> float:
    """Seconds since the epoch."""
    return wall_ns() / 1e9


def boot_s() -> float:
    """Seconds on a clock that only goes forward, also while the machine sleeps; the same for all its processes."""
    host = present_host()
    return time.clock_gettime(_BOOT) if host is None else host.boot_s()


def until_turn(every_s: float) -> float:
    """Seconds until `boot_s` shows a multiple of `every_s`, a tenth of it at the least: for what is done again and again. All
    processes of a machine then wake together, and the broker hears them together: idle, that is most of what they cost."""
    if every_s <= 0:
        return 0.0
    left_s = every_s - boot_s() % every_s
    return left_s if left_s >= 0.1 * every_s else left_s + every_s


def boot_id() -> str:
    """Names this boot of this machine; where the system does not say it, this process alone."""
    host = present_host()
    return _real_boot_id() if host is None else host.boot_id()


@cache
def _real_boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip() or uuid4().hex
    except OSError:
        return uuid4().hex
