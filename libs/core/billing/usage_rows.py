"""Rows of usage: what one attempt used of one device model on one day. Bills are sums of rows."""

from typing import NamedTuple

from libs.core.billing.counted import DaysOf
from libs.core.billing.use_lines.line import Key
from schemas.resources import Device, kind_of


class UsageRow(NamedTuple):
    """One row. `day` counts from 1970-01-01, in UTC or in the requested zone.

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
    """(cost, units without a price, credits within the cost) as posted, money in millionths. None if the ledger has no
    price book."""
    user: str = ""


class HeldRow(NamedTuple):
    """A row of an open claim. `days`: of the job's posted rows."""

    team: str
    key: Key
    milli_us: int
    cost_micros: int
    unpriced: int
    days: DaysOf


def billed_model(device: Device) -> str:
    """The price book's name for a device: its model, and for a MIG instance `<model>:<profile>`."""
    return kind_of(device.model, device.mig_profile)
