"""The clock that cannot be set: seconds since this machine's boot, going on while it sleeps."""

import time
from functools import cache
from pathlib import Path
from uuid import uuid4

from schemas.clock import BootReading

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now() -> float:
    """Seconds since boot."""
    return time.clock_gettime(_CLOCK)


@cache
def boot_id() -> str:
    """Names this boot of this machine; where the system does not say it, this process alone."""
    try:
        return _BOOT_ID.read_text().strip() or uuid4().hex
    except OSError:
        return uuid4().hex


def reading() -> BootReading:
    """What the clock reads now."""
    return BootReading(boot=boot_id(), at_us=time.clock_gettime_ns(_CLOCK) // 1000)
