"""Allocated against used, hour by hour: what jobs held, what of that was seen, and what of that was used.

allocated = known + unknown          used + wasted = known           capacity units (7,000 a device) x microseconds
"""

from typing import Annotated

from pydantic import Field

from schemas.base import Fact, LargeSum, Micros, Name, Strict


class UseQuery(Strict):
    """A team asks what its jobs held and used; the operator may ask for all teams. Answered by quota_billing."""

    group_by: Annotated[str, Field(pattern=r"^(team|user|job|day|hour)$")] = "team"
    from_us: Micros | None = Field(default=None, description="hours that begin from this moment of the wall on")
    to_us: Micros | None = Field(default=None, description="and before this one")
    time_zone: str = Field(default="UTC", max_length=64, description="whose days, an IANA name")
    team: Name | None = Field(default=None, description="of this team alone")


class UseRow(Fact):
    """One group."""

    key: str
    team: Name
    user: str = Field(default="", description="of a job: whose it is; empty: several, or not known")
    allocated_unit_us: LargeSum
    known_unit_us: LargeSum = Field(description="what samples tell of; the rest is unknown, and never taken for unused")
    used_unit_us: LargeSum = Field(description="utilization x time, of what is known")
    energy_nj: LargeSum = Field(default=0, description="nanojoules, where the device tells its power")
    energy_known_us: LargeSum = Field(default=0, description="device-microseconds of which the energy is known")


class UseReply(Fact):
    """Sums of the hours that are kept. Sent by quota_billing as the answer to `UseQuery`."""

    rows: tuple[UseRow, ...]
    first_us: Micros | None = Field(default=None, description="when the first hour of them begins")
    last_us: Micros | None = Field(default=None, description="when the last one ends")
