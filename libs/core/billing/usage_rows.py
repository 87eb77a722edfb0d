"""Rows of usage: what one attempt used of one device model on one day. What bills are sums of."""

from typing import NamedTuple

from libs.core.billing.counted import DaysOf
from libs.core.billing.use_lines.line import Key
from schemas.resources import Device, kind_of


class UsageRow(NamedTuple):
    """One row. `day` counts from 1970-01-01, in UTC or in the zone that was asked for.

    A tuple, because a bill may walk a million of them.
    """

    team: str
    job_id: str
    attempt: int
    day: int
    model: str
    priority_class: str
    milli_us: int
    posted: tuple[int, int, int] | None = None
    """What it cost when it was posted, millionths, what of it has no price, and what of the cost is credits; None: no price
    book is in the ledger."""
    user: str = ""


class HeldRow(NamedTuple):
    """A row of what is not freed. `days`: of its job's rows that are posted."""

    team: str
    key: Key
    milli_us: int
    cost_micros: int
    unpriced: int
    days: DaysOf


def billed_model(device: Device) -> str:
    """The name that the price book knows a device by: its model, and for a MIG instance `<model>:<profile>`."""
    return kind_of(device.model, device.mig_profile)
