"""Charges as rows of FOCUS, the FinOps Open Cost and Usage Specification, versions 1.2, 1.3 and 1.4.

One row is one attempt's use of one device in one hour at one price. Decimal columns are exact: 12 places, held as
integers. Custom columns begin with `x_` and come last.

    ConsumedQuantity   GPU-Seconds = units / 10^9                                   exact
    PricingQuantity    GPU-Hours   = units / (3.6 x 10^12)                          to 12 places, half to even
    ListCost, ...      as it was posted, a multiple of a millionth: unit price x quantity, half to even

From 1.3 on, a part of a shared device is an allocated charge: the device's cost by the attempt's compute share
(`AllocatedMethodId`). Its tags are in `Tags`, so AllocatedTags, which must not repeat them, is null.
AllocatedMethodDetails is left out: its ratios must sum to 1 over a device, and posted rows never change, but the sum is
known only later.

A contract here is no contract commitment, "a measurable obligation" (Glossary): it sets a price for a team and obliges
it to nothing. So ContractApplied is null, and there is no Contract Commitment dataset, which MUST be present when a
provider supports contract commitments (Contract Commitment, requirements).

A correction of an earlier billing period has ChargeClass `Correction`. One within the billing period is an Adjustment,
because ChargeClass must be null there (ChargeClass, content rule 3). Both are money without units, and so is a credit
(ChargeCategory `Credit`), whose list cost is the amount credited (ListCost, of charges without a unit price).
"""

from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from libs.core.accelerators.kinds import catalogued
from libs.core.billing.charges import Charge
from libs.core.billing.prices import Quote
from libs.core.billing.prices.rating import HOUR_UNITS
from libs.core.billing.rounding import round_half_even
from libs.core.billing.wall import HOUR_US, billing_month
from libs.core.state.moments import text_of
from schemas.prices import Term

VERSIONS: Final = ("1.2", "1.3", "1.4")
ALLOCATION: Final = "baton-compute-share"
"""The allocation method: a shared device's cost is split by the thousandths of compute that each attempt holds, used or
not."""
PROGRAM: Final = "Reservation"
"""The only commitment program."""
PLACES: Final = 12
"""Decimal places of a decimal column: decimal128(38, 12)."""
WHOLE_MILLI: Final = 1000


class ColumnKind(Enum):
    TEXT = "String"
    TIME = "Date/Time"
    DECIMAL = "Decimal"
    INTEGER = "Integer"
    OBJECT = "JSON"


class Grain(Enum):
    """What a column's value depends on (`KEY_OF`). Rows with equal keys share one computed value."""

    EXPORT = "of the export"
    USE = "of the use, of what posted it, and of what is credited"
    HOUR = "of the hour, of when it is billed, and of whether it is a correction"
    PRICE = "of the price, and of whether it is a correction"
    AMOUNT = "of how much it is at what term, and of what it comes to"


class FocusColumn(NamedTuple):
    """`since`, `until`: the versions with this column, `until` excluded; "": no upper bound. `level`: Custom marks our
    own columns."""

    name: str
    kind: ColumnKind
    nulls: bool
    level: str
    grain: Grain
    value: Callable[["RowFacts"], Any]
    since: str = "1.2"
    until: str = ""


class RowFacts(NamedTuple):
    """The inputs of all columns of one row."""

    charge: Charge
    pool: str
    currency: str
    billing: tuple[int, int]
    before: bool
    """It belongs to a billing period before the one in which it is billed."""
    by_price: bool
    """It has quantities and unit prices: use, not a correction."""


def facts_of(charge: Charge, pool: str, currency: str) -> RowFacts:
    """The facts of a charge with a price. Unpriced charges are in no export."""
    billing = billing_month(charge.billed_us // HOUR_US)
    return RowFacts(
        charge,
        pool,
        currency,
        billing,
        charge.late and charge.amount.hour * HOUR_US < billing[0],
        not charge.correction,
    )


def _use_key(f: RowFacts) -> Hashable:
    return id(f.charge.use), f.charge.posted_seq, f.charge.correction, f.charge.credit, f.charge.why


def _hour_key(f: RowFacts) -> Hashable:
    return f.charge.amount.hour, f.billing, f.before, f.by_price, f.charge.credit is not None


def _price_key(f: RowFacts) -> Hashable:
    return id(f.charge.amount.quote), f.charge.amount.tier, f.charge.version, f.by_price


def _amount_key(f: RowFacts) -> Hashable:
    _, units, _, _, list_micros, cost_micros = f.charge.amount
    return units, list_micros, cost_micros, f.by_price, _quote(f).term


KEY_OF: Final[Mapping[Grain, Callable[[RowFacts], Hashable]]] = {
    Grain.EXPORT: lambda f: None,
    Grain.USE: _use_key,
    Grain.HOUR: _hour_key,
    Grain.PRICE: _price_key,
    Grain.AMOUNT: _amount_key,
}
"""Rows of one export with equal keys have equal values in all columns of the grain. Valid while the rows' facts are
alive."""


def columns_of(version: str) -> list[FocusColumn]:
    """The columns of a version, in order. Raises KeyError for an unknown version."""
    if version not in VERSIONS:
        raise KeyError(version)
    return [c for c in COLUMNS if c.since <= version and (not c.until or version < c.until)]


def _quantity(f: RowFacts) -> int | None:
    return round_half_even(f.charge.amount.units * 10**PLACES, HOUR_UNITS) if f.by_price else None


def _consumed(f: RowFacts) -> int | None:
    return f.charge.amount.units * 1000 if f.by_price else None


def _unit(micros: int, f: RowFacts) -> int | None:
    return micros * 1_000_000 if f.by_price else None


def _money(micros: int) -> int:
    return micros * 1_000_000


def _quote(f: RowFacts) -> Quote:
    assert f.charge.amount.quote is not None, "what has no price is in no export"
    return f.charge.amount.quote


def _category(f: RowFacts) -> str:
    return {Term.STANDARD: "Standard", Term.SPOT: "Dynamic", Term.RESERVATION: "Committed"}[_quote(f).term]


def _committed(value: Callable[[RowFacts], Any]) -> Callable[[RowFacts], Any]:
    return lambda f: value(f) if _quote(f).term is Term.RESERVATION and f.by_price else None


def _commitment(f: RowFacts) -> str:
    return _quote(f).contract or _quote(f).sku


def _resource_type(f: RowFacts) -> str:
    return "GPU Slice" if ":" in f.charge.use.device_kind else "GPU"


def _description(f: RowFacts) -> str:
    use = f.charge.use
    what = "credit for" if f.charge.credit else "correction of" if f.charge.correction else "use of"
    why = f" ({f.charge.credit}: {f.charge.why})" if f.charge.credit else ""
    return f"{what} {use.device_kind} by {_attempt(f)}, class {use.priority_class}{why}"


def _tags(f: RowFacts) -> dict[str, Any]:
    use = f.charge.use
    return {"baton/class": use.priority_class, "baton/job": use.job_id, "baton/user": use.user or None}


def _details(f: RowFacts) -> dict[str, Any]:
    kind = f.charge.use.device_kind
    return {"GpuCount": 1, "InstanceSeries": kind.partition(":")[0], "InstanceType": kind}


def _attempt(f: RowFacts) -> str:
    return f"{f.charge.use.job_id}.{f.charge.use.attempt}"


def _allocated(value: Callable[[RowFacts], Any]) -> Callable[[RowFacts], Any]:
    """The value for a part of a shared device. Null for a whole device, and for a MIG slice, which is a resource of its
    own."""
    return lambda f: value(f) if f.charge.use.milli < WHOLE_MILLI else None


def _programs(f: RowFacts) -> dict[str, Any] | None:
    """Commitment programs that were possible: a reservation, if one is in the price list or was applied."""
    quote = _quote(f)
    if quote.reservable or quote.term is Term.RESERVATION:
        return {"CommitmentPrograms": [{"ProgramType": PROGRAM}]}
    return None


def _charge_category(f: RowFacts) -> str:
    if f.charge.credit:
        return "Credit"
    return "Adjustment" if f.charge.correction and not f.before else "Usage"


def _custom(
    name: str, kind: ColumnKind, grain: Grain, value: Callable[[RowFacts], Any], *, nulls: bool = False
) -> FocusColumn:
    return FocusColumn(f"x_{name}", kind, nulls, "Custom", grain, value)


_T, _D, _N, _I, _O = ColumnKind.TEXT, ColumnKind.TIME, ColumnKind.DECIMAL, ColumnKind.INTEGER, ColumnKind.OBJECT
_ALL, _USE, _HOUR, _PRICE, _MUCH = Grain.EXPORT, Grain.USE, Grain.HOUR, Grain.PRICE, Grain.AMOUNT
_COST, _LIST = Grain.AMOUNT, Grain.AMOUNT

COLUMNS: Final = (
    FocusColumn("AllocatedMethodId", _T, True, "Conditional", _USE, _allocated(lambda f: ALLOCATION), since="1.3"),
    FocusColumn("AllocatedResourceId", _T, True, "Conditional", _USE, _allocated(_attempt), since="1.3"),
    FocusColumn("AllocatedResourceName", _T, True, "Conditional", _USE, _allocated(_attempt), since="1.3"),
    FocusColumn("AllocatedTags", _O, True, "Conditional", _ALL, lambda f: None, since="1.3"),
    FocusColumn("BilledCost", _N, False, "Mandatory", _COST, lambda f: _money(f.charge.amount.cost_micros)),
    FocusColumn("BillingAccountId", _T, False, "Mandatory", _ALL, lambda f: f.pool),
    FocusColumn("BillingAccountName", _T, True, "Mandatory", _ALL, lambda f: f"pool {f.pool}"),
    FocusColumn("BillingAccountType", _T, False, "Conditional", _ALL, lambda f: "Pool"),
    FocusColumn("BillingCurrency", _T, False, "Mandatory", _ALL, lambda f: f.currency),
    FocusColumn("BillingPeriodEnd", _D, False, "Mandatory", _HOUR, lambda f: text_of(f.billing[1])),
    FocusColumn("BillingPeriodStart", _D, False, "Mandatory", _HOUR, lambda f: text_of(f.billing[0])),
    FocusColumn("ChargeCategory", _T, False, "Mandatory", _HOUR, _charge_category),
    FocusColumn("ChargeClass", _T, True, "Mandatory", _HOUR, lambda f: "Correction" if f.before else None),
    FocusColumn("ChargeDescription", _T, True, "Mandatory", _USE, _description),
    FocusColumn("ChargeFrequency", _T, False, "Recommended", _ALL, lambda f: "Usage-Based"),
    FocusColumn("ChargePeriodEnd", _D, False, "Mandatory", _HOUR, lambda f: text_of((f.charge.amount.hour + 1) * HOUR_US)),
    FocusColumn("ChargePeriodStart", _D, False, "Mandatory", _HOUR, lambda f: text_of(f.charge.amount.hour * HOUR_US)),
    FocusColumn("CommitmentDiscountCategory", _T, True, "Conditional", _PRICE, _committed(lambda f: "Usage")),
    FocusColumn("CommitmentDiscountId", _T, True, "Conditional", _PRICE, _committed(_commitment)),
    FocusColumn("CommitmentDiscountName", _T, True, "Conditional", _PRICE, _committed(_commitment)),
    FocusColumn("CommitmentDiscountQuantity", _N, True, "Conditional", _MUCH, _committed(_quantity)),
    FocusColumn("CommitmentDiscountStatus", _T, True, "Conditional", _PRICE, _committed(lambda f: "Used")),
    FocusColumn("CommitmentDiscountType", _T, True, "Conditional", _PRICE, _committed(lambda f: PROGRAM)),
    FocusColumn("CommitmentDiscountUnit", _T, True, "Conditional", _PRICE, _committed(lambda f: "GPU-Hours")),
    FocusColumn("CommitmentProgramEligibilityDetails", _O, True, "Conditional", _PRICE, _programs, since="1.4"),
    FocusColumn("ConsumedQuantity", _N, True, "Conditional", _MUCH, _consumed),
    FocusColumn("ConsumedUnit", _T, True, "Conditional", _HOUR, lambda f: "GPU-Seconds" if f.by_price else None),
    FocusColumn("ContractApplied", _O, True, "Conditional", _ALL, lambda f: None, since="1.3"),
    FocusColumn("ContractedCost", _N, False, "Mandatory", _COST, lambda f: _money(f.charge.amount.cost_micros)),
    FocusColumn("ContractedUnitPrice", _N, True, "Conditional", _PRICE, lambda f: _unit(f.charge.amount.unit_micros, f)),
    FocusColumn("EffectiveCost", _N, False, "Mandatory", _COST, lambda f: _money(f.charge.amount.cost_micros)),
    FocusColumn("HostProviderName", _T, False, "Mandatory", _ALL, lambda f: "Baton", since="1.3"),
    FocusColumn("InvoiceDetailId", _T, True, "Conditional", _ALL, lambda f: None, since="1.4"),
    FocusColumn("InvoiceId", _T, True, "Recommended", _ALL, lambda f: None),
    FocusColumn("InvoiceIssuerName", _T, False, "Mandatory", _ALL, lambda f: "Baton"),
    FocusColumn("ListCost", _N, False, "Mandatory", _LIST, lambda f: _money(f.charge.amount.list_micros)),
    FocusColumn("ListUnitPrice", _N, True, "Conditional", _PRICE, lambda f: _unit(_quote(f).list_micros, f)),
    FocusColumn("PricingCategory", _T, True, "Conditional", _PRICE, lambda f: _category(f) if f.by_price else None),
    FocusColumn("PricingQuantity", _N, True, "Mandatory", _MUCH, _quantity),
    FocusColumn("PricingUnit", _T, True, "Mandatory", _HOUR, lambda f: "GPU-Hours" if f.by_price else None),
    FocusColumn("ProviderName", _T, False, "Mandatory", _ALL, lambda f: "Baton", until="1.4"),
    FocusColumn("PublisherName", _T, False, "Mandatory", _ALL, lambda f: "Baton", until="1.4"),
    FocusColumn("ResourceId", _T, True, "Conditional", _USE, lambda f: f"{f.pool}/{f.charge.use.node}/{f.charge.use.device}"),
    FocusColumn("ResourceName", _T, True, "Conditional", _USE, lambda f: f.charge.use.device),
    FocusColumn("ResourceType", _T, True, "Conditional", _USE, _resource_type),
    FocusColumn("ServiceCategory", _T, False, "Mandatory", _ALL, lambda f: "Compute"),
    FocusColumn("ServiceName", _T, False, "Mandatory", _ALL, lambda f: "Baton Accelerators"),
    FocusColumn("ServiceProviderName", _T, False, "Mandatory", _ALL, lambda f: "Baton", since="1.3"),
    FocusColumn("ServiceSubcategory", _T, False, "Recommended", _ALL, lambda f: "Other (Compute)"),
    FocusColumn("SkuId", _T, True, "Conditional", _USE, lambda f: catalogued(f.charge.use.device_kind) if f.by_price else None),
    FocusColumn("SkuMeter", _T, True, "Conditional", _HOUR, lambda f: "GPU time" if f.by_price else None),
    FocusColumn("SkuPriceDetails", _O, True, "Conditional", _USE, lambda f: _details(f) if f.by_price else None),
    FocusColumn("SkuPriceId", _T, True, "Conditional", _PRICE, lambda f: _quote(f).sku if f.by_price else None),
    FocusColumn("SubAccountId", _T, True, "Conditional", _USE, lambda f: f.charge.use.team),
    FocusColumn("SubAccountName", _T, True, "Conditional", _USE, lambda f: f"team {f.charge.use.team}"),
    FocusColumn("SubAccountType", _T, True, "Conditional", _USE, lambda f: "Team"),
    FocusColumn("Tags", _O, True, "Conditional", _USE, _tags),
    _custom("Attempt", _I, _USE, lambda f: f.charge.use.attempt),
    _custom("Contract", _T, _PRICE, lambda f: _quote(f).contract or None, nulls=True),
    _custom("CreditCause", _T, _USE, lambda f: f.charge.credit and f.charge.credit.value, nulls=True),
    _custom("JobId", _T, _USE, lambda f: f.charge.use.job_id),
    _custom("LedgerFrom", _I, _USE, lambda f: f.charge.use.from_seq),
    _custom("LedgerTo", _I, _USE, lambda f: f.charge.use.to_seq),
    _custom("PostedBy", _I, _USE, lambda f: f.charge.posted_seq),
    _custom("PriceVersion", _I, _PRICE, lambda f: f.charge.version),
    _custom("PriorityClass", _T, _USE, lambda f: f.charge.use.priority_class),
    _custom("Units", _I, _MUCH, lambda f: f.charge.amount.units),
    _custom("User", _T, _USE, lambda f: f.charge.use.user or None, nulls=True),
)  # fmt: skip


def decimal_text(scaled: int) -> str:
    """An integer of `PLACES` places as a decimal without trailing zeros: `-0.25`."""
    sign, digits = ("-" if scaled < 0 else ""), str(abs(scaled)).rjust(PLACES + 1, "0")
    fraction = digits[-PLACES:].rstrip("0")
    return f"{sign}{digits[:-PLACES]}{'.' + fraction if fraction else ''}"
