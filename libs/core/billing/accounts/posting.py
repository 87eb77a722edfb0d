"""A posting: one interval of one part of a device in one account."""

from enum import StrEnum
from typing import NamedTuple


class Account(StrEnum):
    """The state of a part of a device."""

    BILLED = "billed"
    """Held by an attempt, which pays for its start and its checkpoints too."""
    HELD = "held"
    """Free, and kept for a job that others were preempted for. In that job's name, attempt 0."""
    RESERVED = "reserved"
    """Free, and kept for a gang whose reservation is due, until it has enough. In that job's name, attempt 0."""
    IDLE = "idle"
    """Free for anyone."""
    CLEANING = "cleaning"
    """Its board was being repartitioned."""
    FAULTY = "faulty"
    """In quarantine."""
    MAINTENANCE = "maintenance"
    """Free, with its node taken out of use by an operator."""
    UNCONFIRMED = "unconfirmed"
    """Its node was silent, then lost: from when it was last heard until there was proof. In the name of the attempt
    that held it, if any."""


class Posting(NamedTuple):
    """`units` of a device were in `account` from `start_us` to `end_us`, ledger time. Immutable.

    It never spans a jump of the wall clock: wall time within it is `wall_start_us + (t - start_us)`, and `wall_end_us -
    wall_start_us == end_us - start_us`. So a posting may be cut at any hour without the ledger. Postings of one device
    neither overlap nor leave gaps while the device exists. They are made when their end becomes known, so those of one
    device are in order, those of several are not.
    """

    account: Account
    pool: str
    node: str
    device: str
    """Device id; for the part of a MIG board in no instance, the board's id."""
    model: str
    """As reported by the node, e.g. `H100`."""
    profile: str
    """MIG profile, e.g. `1g.10gb`; else empty."""
    units: int
    """Capacity units, 7,000 per device; above 0."""
    start_us: int
    end_us: int
    """Ledger time, after `start_us`."""
    wall_start_us: int
    wall_end_us: int
    """Wall time as shown then, microseconds since 1970 (UTC)."""
    team: str
    """Who pays; empty: nobody, and then the next five are empty, too."""
    user: str
    job_id: str
    attempt: int
    """0 for none."""
    priority_class: str
    queue: str
    """Path of the team's queue at the start of the interval, e.g. `lab/research`."""
    from_seq: int
    to_seq: int
    """`from_seq` and `to_seq`: the ledger records that began and ended it."""
    cause: str
    """A reason in words for accounts that need one: who used a faulty device, what proved a node lost."""

    @property
    def unit_us(self) -> int:
        """Capacity units x microseconds."""
        return self.units * (self.end_us - self.start_us)
