"""The clock that leases are measured with."""

import time

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine is suspended, where there is such a clock: a lease does too."""


def now() -> float:
    """Seconds since the machine started, the same for all processes of the machine."""
    return time.clock_gettime(CLOCK)
