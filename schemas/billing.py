"""Prices, usage and bills, in integers.

GPU-seconds are device-microseconds x share in thousandths (`milli_us`), summed exactly; a price is micro-units of the
currency per device-hour. A row's cost is rounded once, half to even, and totals are sums of rows:

    cost_micros = round_half_even(milli_us x micros_per_device_hour / (1000 x 3_600_000_000))
"""

from typing import Annotated

from pydantic import Field, model_validator

from schemas.base import DeviceId, Fact, JobId, LargeSum, Micros, Name, NodeName, Strict
from schemas.resources import LimitsByType

Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="UTC day, YYYY-MM-DD")]


class Price(Strict):
    """What one device-hour costs. `priority_class` "*" is any class; the more exact entry wins."""

    model: str = Field(
        min_length=1, pattern=r"^[^*]+$", description="device model; a MIG instance is <model>:<profile>"
    )
    priority_class: str = Field(default="*", description='priority class, or "*" for any')
    micros_per_device_hour: int = Field(ge=0, description="millionths of the currency unit per device and hour")


class PriceBook(Strict):
    """The prices of a pool. A device without a price is reported as unpriced: there is no entry for any model."""

    currency: str = Field(pattern=r"^[A-Z]{3}$", description="ISO 4217 code", examples=["USD"])
    prices: tuple[Price, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> "PriceBook":
        keys = [(p.model, p.priority_class) for p in self.prices]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"two prices for model {key[0]!r}, class {key[1]!r}: keep one")
        return self


class UsageSegment(Fact):
    """One claim of one attempt from grant to free: the atom of every bill."""

    job_id: JobId
    attempt: int = Field(ge=1)
    team: Name
    priority_class: str
    node: NodeName
    device: DeviceId
    model: str
    milli: int = Field(ge=1)
    opened_us: Micros
    closed_us: Micros | None = Field(description="null while the claim is still held")


def _unsaid(value: object) -> bool:
    """A service of before does not take what it does not know."""
    return value is None


class BillQuery(Strict):
    """A team asks what its jobs used and cost; the operator may ask for all teams. Answered by quota_billing."""

    group_by: Annotated[str, Field(pattern=r"^(team|user|day|job|attempt|model|class)$")] = "team"
    from_day: Day | None = None
    to_day: Day | None = Field(default=None, description="inclusive")
    from_us: Micros | None = Field(
        default=None, description="instead of days: from this moment of the wall on", exclude_if=_unsaid
    )
    to_us: Micros | None = Field(default=None, description="up to this moment, not included", exclude_if=_unsaid)
    time_zone: str | None = Field(
        default=None,
        max_length=64,
        description="whose days, an IANA name; UTC without it",
        examples=["Europe/Berlin"],
        exclude_if=_unsaid,
    )
    job_id: JobId | None = None
    open_until_us: Micros | None = Field(default=None, description="bill claims that are still held up to here")
    forecast_until_us: Micros | None = Field(
        default=None,
        description="tell what is held still as if it were held up to here, at the prices of now; in no cost",
        exclude_if=_unsaid,
    )


class BillRow(Fact):
    """Usage and cost of one group. `milli_us` is exact; `device_seconds` is for reading."""

    key: str
    team: Name
    jobs: int = Field(ge=0)
    attempts: int = Field(ge=0)
    milli_us: LargeSum = Field(description="device-microseconds x thousandths of a device")
    device_seconds: float = Field(ge=0)
    cost_micros: int = Field(
        description="of the priced part, credits taken off; below 0 when more is given back than the rest costs"
    )
    unpriced_milli_us: LargeSum = Field(default=0, description="of milli_us, use of devices that have no price")
    credit_micros: int = Field(
        default=0,
        description="of cost_micros, what the price book gives back: not above 0, but where a later one corrects it",
    )
    forecast_micros: int = Field(default=0, description="what is held still comes to, beyond the cost; if it was asked")


class BillReply(Fact):
    """A bill, exact up to one ledger sequence. Sent by quota_billing as the answer to `BillQuery`."""

    currency: str
    rows: tuple[BillRow, ...]
    total_milli_us: LargeSum
    total_cost_micros: int
    total_credit_micros: int = Field(default=0, description="of the total cost, what is given back")
    total_forecast_micros: int = Field(default=0, description="beyond the total cost, if it was asked for")
    unpriced_milli_us: LargeSum = Field(default=0, description="of the total, use of devices that have no price")
    unpriced_models: tuple[str, ...] = Field(default=(), description="which models of the bill have no price")
    by_file: bool = Field(
        default=False,
        description="no price book is in the ledger: the cost is by the file of the service, and in no export",
    )
    ledger_seq: int = Field(ge=0, description="the bill is exact up to this ledger sequence")


class TeamUsage(Fact):
    """A team's present use against its quota."""

    team: Name
    limit_milli: int | None
    used_milli: int = Field(
        ge=0,
        description="whole accelerators in thousandths, rounded up: a MIG slice is its part of its board, a CPU none",
    )
    by_type: LimitsByType = Field(default_factory=dict, description="limits by device type and MIG profile")
    used_by_type: LimitsByType = Field(
        default_factory=dict, description="for each key of by_type and each kind that it holds, what counts, rounded up"
    )
    queued_jobs: int = Field(default=0, ge=0)
    running_jobs: int = Field(default=0, ge=0)


class QuotaSnapshot(Fact):
    """All teams' quotas and use. Answered by quota_billing."""

    teams: tuple[TeamUsage, ...]
    ledger_seq: int = Field(ge=0)


class SetQuota(Strict):
    """An operator sets a team's hard quota, all of its limits; owned by quota_billing.

    A command on `baton.cmd.quota.v1.set.operator`."""

    team: Name
    limit_milli: int | None = Field(ge=0, description="thousandths of an accelerator; null: no such limit")
    by_type: LimitsByType = Field(
        default_factory=dict,
        description="limits by device type and MIG profile besides, thousandths of what the key names",
        examples=[{"H100": 8000, "H100:1g.10gb": 7000, "CPU": 2000}],
    )
    reason: str = Field(
        default="",
        max_length=1024,
        description="why, in the operator's words; left out when there is none",
        exclude_if=lambda reason: not reason,  # 0.1.0 does not take it
    )
