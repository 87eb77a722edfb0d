"""Allocated against used: what attempts held, what of that was seen, and what of that was used.

    allocated = known + unknown                     device capacity x microseconds, exact
    used <= known                                   utilization x time, where one attempt alone was on the device

A reading says what its device did since the reading before it, but not for longer than `GAP_US`: agents take one every 15 s.
What no reading covers is unknown, and so is what is of a device that is shared: a reading tells of the device, not of who uses
it. Unknown is never taken for unused. Waste is what is known and not used.

Postings and readings meet in wall time, as the broker showed it. Memory: one reading per device and 15 s of the period.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from libs.core.billing.accounts.capacity import units_of
from libs.core.billing.accounts.posting import Account, Posting
from schemas.nodes import DeviceSample

GAP_US: Final = 40_000_000
"""A reading speaks for no longer: two that were lost leave a gap."""
PARTS: Final = 100_000
"""A utilization is counted in thousandths of a per cent."""


class Reading(NamedTuple):
    """Of one device, at a time of the broker's clock. `power_mw` 0: the device does not tell."""

    at_us: int
    utilization_pct: float
    power_mw: int = 0


DeviceReadings = Mapping[tuple[str, str], Sequence[Reading]]
"""By the node that says so, and the device: what a node says of another's devices counts for nothing."""

MOST_POWER_W = 100_000.0
"""No device draws more: an agent that says so does not tell its power."""


def reading_of(at_us: int, sample: DeviceSample) -> Reading:
    """What a sample says, that the broker stored at `at_us`."""
    power_w = sample.power_w if sample.power_w <= MOST_POWER_W else 0.0
    return Reading(at_us, sample.utilization_pct, round(power_w * 1000))


class UsedBy(NamedTuple):
    """Whose it is."""

    team: str
    user: str
    job_id: str


@dataclass(slots=True)
class DeviceUseSums:
    """Of one job, capacity units (7,000 a device) x microseconds."""

    allocated_unit_us: int = 0
    known_unit_us: int = 0
    used_parts: int = 0
    """Used, in hundred-thousandths of a unit-microsecond."""
    energy_nj: int = 0
    energy_known_us: int = 0
    """Device-microseconds of which the energy is known."""

    @property
    def unknown_unit_us(self) -> int:
        return self.allocated_unit_us - self.known_unit_us

    @property
    def used_unit_us(self) -> int:
        return self.used_parts // PARTS

    @property
    def wasted_unit_us(self) -> int:
        """Known, and not used."""
        return self.known_unit_us - self.used_unit_us

    def add(self, other: "DeviceUseSums") -> None:
        self.allocated_unit_us += other.allocated_unit_us
        self.known_unit_us += other.known_unit_us
        self.used_parts += other.used_parts
        self.energy_nj += other.energy_nj
        self.energy_known_us += other.energy_known_us


def used(
    postings: Iterable[Posting], readings: DeviceReadings, from_us: int, to_us: int
) -> dict[UsedBy, DeviceUseSums]:
    """Every job that held something in [from_us, to_us) of wall time.

    Args:
        readings: in order of time.
    """
    out: defaultdict[UsedBy, DeviceUseSums] = defaultdict(DeviceUseSums)
    for p in postings:
        start, end = max(p.wall_start_us, from_us), min(p.wall_end_us, to_us)
        if not p.attempt or start >= end:
            continue
        sums = out[UsedBy(p.team, p.user, p.job_id)]
        sums.allocated_unit_us += (end - start) * p.units
        if p.account is Account.BILLED and p.units == units_of(p.model, p.profile):
            _see(sums, p, readings.get((p.node, p.device), ()), start, end)
    return dict(out)


def _see(sums: DeviceUseSums, p: Posting, readings: Sequence[Reading], start: int, end: int) -> None:
    """Adds what the readings of its device say of [start, end)."""
    first = bisect_left(readings, start, key=lambda reading: reading.at_us)
    before = readings[first - 1].at_us if first else 0
    for reading in readings[first:]:
        since = max(before, reading.at_us - GAP_US, start)
        until = min(reading.at_us, end)
        if since < until:
            span = until - since
            sums.known_unit_us += span * p.units
            sums.used_parts += span * p.units * round(reading.utilization_pct * 1000)
            if reading.power_mw:
                sums.energy_nj += span * reading.power_mw
                sums.energy_known_us += span
        if reading.at_us >= end:
            return
        before = reading.at_us
