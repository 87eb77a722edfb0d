"""The price book: what a device costs from when on, for whom. Prices are millionths of the currency unit, times the wall's
(UTC, microseconds), and every span includes its start and excludes its end."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from schemas.base import Fact, LargeSum, Micros, Name
from schemas.ids import content_hash
from schemas.proofs import Hash

MicrosPerHour = Annotated[
    int, Field(ge=0, le=10**15, description="millionths of the currency unit per device and hour")
]
DeviceKey = Annotated[str, Field(pattern=r"^[^:*]{1,64}(:[^:*]{1,32})?$")]
"""A device type (`H100`), or a type and a MIG profile (`H100:1g.10gb`)."""
ClassKey = Annotated[str, Field(pattern=r"^(\*|[a-z0-9][a-z0-9._-]{0,62})$")]
"""A priority class, or `*` for any."""
BookVersion = Annotated[int, Field(ge=1, le=2**53)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", examples=["USD"])]
NO_CURRENCY = "XXX"
"""ISO 4217's word for none: of what was closed or written before there were prices."""


class Term(StrEnum):
    """How a price comes about."""

    STANDARD = "standard"
    SPOT = "spot"
    RESERVATION = "reservation"


class CreditCause(StrEnum):
    """Why something is credited."""

    NODE_LOST = "node-lost"
    HARDWARE_FAULT = "hardware-fault"
    PREEMPTED_UNSAVED = "preempted-unsaved"
    PROMISE_BROKEN = "promise-broken"


CreditShare = Annotated[int, Field(ge=0, le=1000, description="thousandths of what it cost")]


class ListRate(Fact):
    """What everybody pays who has no contract."""

    device: DeviceKey
    priority_class: ClassKey = "*"
    term: Term = Term.STANDARD
    micros: MicrosPerHour
    from_us: Micros
    to_us: Micros | None = Field(default=None, description="null: until another book says otherwise")


class RateTier(Fact):
    """From so many device-hours of one calendar month (UTC) on, the price is this."""

    above_hours: int = Field(ge=0, le=10**12)
    micros: MicrosPerHour


class ContractRate(Fact):
    """What one team pays instead. The first tier begins at 0 device-hours, and each later one is further up."""

    team: Name
    contract: Name = Field(description="what the contract is called on an invoice")
    device: DeviceKey
    priority_class: ClassKey = "*"
    term: Term = Term.STANDARD
    tiers: tuple[RateTier, ...] = Field(min_length=1, max_length=16)
    from_us: Micros
    to_us: Micros | None = None


class RateBook(Fact):
    """The prices of a pool, all of them."""

    version: BookVersion
    currency: Currency
    prices: tuple[ListRate, ...] = Field(min_length=1, max_length=4000)
    contracts: tuple[ContractRate, ...] = Field(default=(), max_length=4000)
    credits: dict[CreditCause, CreditShare] = Field(
        default_factory=dict,
        description="what bills give back, by cause; one that is not named is not credited",
        exclude_if=lambda credits: not credits,  # readers of before know no credits in bills
    )

    @property
    def digest(self) -> str:
        """The same of two books if they are equal."""
        same = self.model_copy(update={"credits": dict(sorted(self.credits.items()))})
        return content_hash(same.model_dump_json().encode())


class PeriodTotal(Fact):
    """What one team owes for a period, as it was posted."""

    team: Name
    charges: int = Field(ge=0, description="rows")
    units: LargeSum = Field(description="thousandths of a device x microseconds")
    list_micros: int
    cost_micros: int


class ClosedPeriod(Fact):
    """A period's seal: what it contains, so that anybody who has the ledger can tell whether an export of it is whole."""

    from_us: Micros
    to_us: Micros
    upto_seq: int = Field(ge=0, description="the last ledger record of which the seal knows")
    head: Hash = Field(description="that record's hash")
    rows: Hash = Field(description="SHA-256 over the period's rows (libs.core.billing.sealing)")
    currency: Currency
    totals: tuple[PeriodTotal, ...] = Field(default=(), max_length=2000)
