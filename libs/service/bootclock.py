"""The clock that cannot be set: seconds since this machine's boot, going on while it sleeps."""

from libs.ports import clock
from schemas.clock import BootReading

now = clock.boot_s
"""Seconds since boot."""


def reading() -> BootReading:
    """What the clock reads now."""
    return BootReading(boot=clock.boot_id(), at_us=int(clock.boot_s() * 1e6))
