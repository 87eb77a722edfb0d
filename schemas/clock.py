"""What clocks say: readings that cannot be set, and where a ledger's own clock stood at a tick."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from schemas.base import Fact, Micros

BootId = Annotated[str, StringConstraints(pattern=r"^[0-9a-zA-Z_-]{1,64}$")]
"""Names one boot of one machine (`/proc/sys/kernel/random/boot_id`)."""


class MeasuredBy(StrEnum):
    """How it was found out how much time really passed."""

    BOOT_TIME = "boottime"
    """By the ticker's CLOCK_BOOTTIME, which ran through."""
    WITNESS = "witness"
    """By the boot clock of another machine, which an agent told."""
    WALL = "wall"
    """Not at all: by the wall clock, as far as it went forward. An estimate."""


MOST_READINGS = 4


class BootReading(Fact):
    """What a clock read that counts from a machine's boot, goes on while it sleeps and cannot be set."""

    boot: BootId
    at_us: int = Field(ge=0, description="since that boot, microseconds")


class ClockMark(Fact):
    """The last tick that said what boot clocks read: time and wall time at it, and the readings. Ledger time may
    be ahead of `t_us` when it followed a jump for a moment: it waits then."""

    t_us: Micros
    wall_us: Micros
    readings: tuple[BootReading, ...] = Field(default=(), max_length=MOST_READINGS)
