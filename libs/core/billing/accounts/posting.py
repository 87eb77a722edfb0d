"""A posting: one interval of one part of a device, in one account."""

from enum import StrEnum
from typing import NamedTuple


class Account(StrEnum):
    """What a part of a device was at a time."""

    BILLED = "billed"
    """An attempt held it. Its start and its checkpoints are its own."""
    HELD = "held"
    """It was free, and kept for a job that others gave way to. In that job's name; the attempt is 0."""
    RESERVED = "reserved"
    """It was free, and kept for a gang whose reservation is due, until there is enough. In that job's name, attempt 0."""
    IDLE = "idle"
    """Anybody could have had it."""
    CLEANING = "cleaning"
    """Its board was being repartitioned."""
    FAULTY = "faulty"
    """It was in quarantine."""
    MAINTENANCE = "maintenance"
    """It was free, and an operator had taken its node out of use."""
    UNCONFIRMED = "unconfirmed"
    """Its node was silent, and then lost: from when it was heard last until there was proof. In the name of the attempt that
    held it, if one did."""


class Posting(NamedTuple):
    """`units` of a device were in `account` from `start_us` to `end_us`, ledger time. Never changed once it was made.

    It never spans a jump of the wall clock, so wall time in it is `wall_start_us + (t - start_us)`, and
    `wall_end_us - wall_start_us == end_us - start_us`: a posting may be cut at any hour without another look at the ledger.
    Postings of one device neither overlap nor leave gaps while the device exists; they are made in the order in which
    their ends became known, so those of one device are in order and those of several are not.
    """

    account: Account
    pool: str
    node: str
    device: str
    """The id of a device; of what is in no instance of a MIG board, the board's."""
    model: str
    """As the node told it, e.g. `H100`."""
    profile: str
    """Of a MIG instance, e.g. `1g.10gb`; else empty."""
    units: int
    """Of capacity, 7,000 a device; above 0."""
    start_us: int
    end_us: int
    """Ledger time; after `start_us`."""
    wall_start_us: int
    wall_end_us: int
    """The same, by the wall clock as it was shown then, microseconds since 1970 (UTC)."""
    team: str
    """Who pays; empty: nobody. Then the next five are empty, too."""
    user: str
    job_id: str
    attempt: int
    """0: no attempt."""
    priority_class: str
    queue: str
    """Path of the team's queue when the interval began, e.g. `lab/research`."""
    from_seq: int
    to_seq: int
    """The ledger records that began and ended it."""
    cause: str
    """Why, in words, where the account needs a reason: who used a faulty device, what proved a node lost."""

    @property
    def unit_us(self) -> int:
        """Capacity units x microseconds."""
        return self.units * (self.end_us - self.start_us)
