"""Allocated, known and used capacity of attempts.

    allocated = known + unknown                     device capacity x microseconds, exact
    used <= known                                   utilization x time, where one attempt alone was on the device

A reading covers the time since the device's previous reading, at most `GAP_US`; agents sample every 15 s. Time without
a reading is unknown, and so is time on a shared device, since a reading does not say which attempt used it. Unknown
never counts as unused. Waste is known minus used.

Postings and readings are joined in wall time, as the broker showed it. Memory: one reading per device and 15 s of the
period.
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
"""The most time that one reading covers. Two lost readings leave a gap."""
PARTS: Final = 100_000
"""Utilization is counted in thousandths of a per cent."""


class Reading(NamedTuple):
    """A reading of one device at a time of the broker's clock. `power_mw` 0: not reported."""

    at_us: int
    utilization_pct: float
    power_mw: int = 0


DeviceReadings = Mapping[tuple[str, str], Sequence[Reading]]
"""(reporting node, device) -> readings. A node's readings of another node's devices are ignored."""

MOST_POWER_W = 100_000.0
"""No device draws more. A larger value counts as no power reading."""


def reading_of(at_us: int, sample: DeviceSample) -> Reading:
    """The reading in a sample that the broker stored at `at_us`."""
    power_w = sample.power_w if sample.power_w <= MOST_POWER_W else 0.0
    return Reading(at_us, sample.utilization_pct, round(power_w * 1000))


class UsedBy(NamedTuple):
    """Who used it."""

    team: str
    user: str
    job_id: str


@dataclass(slots=True)
class DeviceUseSums:
    """Sums of one job, in capacity units (7,000 a device) x microseconds."""

    allocated_unit_us: int = 0
    known_unit_us: int = 0
    used_parts: int = 0
    """Used capacity, in hundred-thousandths of a unit-microsecond."""
    energy_nj: int = 0
    energy_known_us: int = 0
    """Device-microseconds with known energy."""

    @property
    def unknown_unit_us(self) -> int:
        return self.allocated_unit_us - self.known_unit_us

    @property
    def used_unit_us(self) -> int:
        return self.used_parts // PARTS

    @property
    def wasted_unit_us(self) -> int:
        """Known minus used."""
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
    """Sums for each job that held anything in [from_us, to_us), wall time.

    Args:
        readings: sorted by time.
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
    """Adds the readings of one device over [start, end)."""
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
