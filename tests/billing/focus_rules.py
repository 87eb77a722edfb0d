"""A conformance checker for files of FOCUS, written from the specification's own rules and from nothing of ours.

Each rule cites its section: columns of v1.2 by their name (`specification/columns/<name>.md`), since v1.3
`specification/datasets/cost_and_usage/columns/<name>.md`, attributes by theirs; which columns there must be by `dataset.md`
beside them; JSON objects by their column's Object Requirements and `specification/schemas/datasets/cost_and_usage`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

Row = Mapping[str, Any]

MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodStart", "ChargePeriodEnd", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ServiceCategory", "ServiceName",
}  # fmt: skip
"""Feature level Mandatory: "MUST be present in a FOCUS dataset"."""
OLD_PROVIDER = {"ProviderName", "PublisherName"}
"""Provider, Publisher: mandatory in 1.2, deprecated in 1.3, removed in 1.4."""
NEW_PROVIDER = {"ServiceProviderName", "HostProviderName"}
"""Since 1.3."""
CONDITIONAL = {
    "ConsumedQuantity", "ConsumedUnit", "ResourceId", "ResourceName", "ResourceType", "SubAccountId", "SubAccountName",
    "SubAccountType", "SkuId", "SkuMeter", "SkuPriceId", "SkuPriceDetails", "ListUnitPrice", "ContractedUnitPrice",
    "PricingCategory", "Tags", "BillingAccountType", "CommitmentDiscountCategory", "CommitmentDiscountId",
    "CommitmentDiscountName", "CommitmentDiscountQuantity", "CommitmentDiscountStatus", "CommitmentDiscountType",
    "CommitmentDiscountUnit",
}  # fmt: skip
"""Of a provider that measures usage, bills resources and accounts, publishes prices, negotiates and sells reservations."""
SINCE = {
    "1.3": {"AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags", "ContractApplied"},
    "1.4": {"CommitmentProgramEligibilityDetails", "InvoiceDetailId", "InvoiceId"},
}  # fmt: skip
"""Conditional columns that came later: of a provider that allocates shared cost and has contract commitments (1.3), that has
commitment programs and makes invoices (1.4; InvoiceId was recommended before)."""
KNOWN = {
    "AllocatedMethodDetails", "AvailabilityZone", "CapacityReservationId", "CapacityReservationStatus", "ChargeFrequency",
    "InvoiceId", "PricingCurrency", "PricingCurrencyContractedUnitPrice", "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice", "RegionId", "RegionName", "ServiceSubcategory",
}  # fmt: skip
"""The columns that the specification knows besides."""
NOT_NULL = MANDATORY - {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {None, "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {None, "Standard", "Dynamic", "Committed", "Other"},
    "CommitmentDiscountCategory": {None, "Spend", "Usage"},
    "CommitmentDiscountStatus": {None, "Used", "Unused"},
    "ServiceCategory": {"Compute", "AI and Machine Learning"},
    "ServiceSubcategory": {"Containers", "End User Computing", "Quantum Compute", "Serverless Compute", "Virtual Machines",
                           "Other (Compute)"},
}  # fmt: skip
"""Allowed values of each column's Content Constraints (of ServiceCategory, those that have these subcategories)."""
DECIMALS = {
    "BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity", "ConsumedQuantity", "ListUnitPrice",
    "ContractedUnitPrice", "CommitmentDiscountQuantity",
}  # fmt: skip
TIMES = {"BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"}
NUMBER = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
UNIT = re.compile(r"([A-Z][A-Za-z]*s)|([A-Z]+-(Hours|Seconds|Days|Months))|(GPU-(Hours|Seconds))")
MILLIONTH = Decimal("0.000001")
"""The precision of money, by the file's own data definition (NumericFormat: "determined by the provider")."""


def dataset(columns: list[str], version: str) -> Iterator[str]:
    """Rules about which columns there are."""
    wanted = MANDATORY | CONDITIONAL
    wanted |= OLD_PROVIDER if version in ("1.2", "1.3") else set()
    wanted |= NEW_PROVIDER if version in ("1.3", "1.4") else set()
    for since, names in SINCE.items():
        wanted |= names if since <= version else set()
    for name in sorted(wanted - set(columns)):
        yield f"{name} MUST be present ({name}: feature level)"
    for name in sorted({n for n in columns if not n.startswith("x_")} - wanted - KNOWN):
        yield f"{name} is no column of {version}: custom columns MUST begin with x_ (ColumnHandling)"
    if len(set(columns)) != len(columns):
        yield "a column is there twice (ColumnHandling)"
    if version == "1.4":
        for name in sorted(OLD_PROVIDER & set(columns)):
            yield f"{name} was removed in 1.4"
    if version == "1.2":
        for name in sorted(NEW_PROVIDER & set(columns)):
            yield f"{name} is not known before 1.3"
    for name in columns:
        if not re.fullmatch(r"(x_)?[A-Z][A-Za-z0-9]*", name):
            yield f"{name} is not in Pascal case (ColumnHandling)"
    customs = [name.startswith("x_") for name in columns]
    if customs != sorted(customs):
        yield "custom columns SHOULD come after all FOCUS columns (ColumnHandling)"


def row(one: Row, version: str) -> Iterator[str]:
    """Rules about one row; values are texts, as a file has them, or null."""
    for name, value in one.items():
        if value == "":
            yield f"{name}: null is null, never an empty text (NullHandling)"
        if name in DECIMALS and value is not None and not NUMBER.fullmatch(value):
            yield f"{name}: {value!r} is no number (NumericFormat)"
        if name in TIMES and not TIME.fullmatch(value or ""):
            yield f"{name}: {value!r} is not YYYY-MM-DDTHH:mm:ssZ (DateTimeFormat)"
        if isinstance(value, str) and value != value.strip():
            yield f"{name}: {value!r} has spaces around it (StringHandling)"
    for name in NOT_NULL | (OLD_PROVIDER & one.keys()) | (NEW_PROVIDER & one.keys()):
        if one[name] is None:
            yield f"{name} MUST NOT be null ({name})"
    for name, allowed in ALLOWED.items():
        if name in one and one[name] not in allowed:
            yield f"{name}: {one[name]!r} is not an allowed value ({name})"
    yield from _charge(one)
    yield from _prices(one)
    yield from _commitment(one)
    if version >= "1.3":
        yield from _allocation(one)
        yield from _contract(one)
    if version >= "1.4":
        yield from _programs(one)
    for name in ("PricingUnit", "ConsumedUnit", "CommitmentDiscountUnit"):
        if one[name] is not None and not UNIT.fullmatch(one[name]):
            yield f"{name}: {one[name]!r} (UnitFormat)"
    for name in ("Tags", "SkuPriceDetails"):
        yield from _object(name, one[name])
    if not re.fullmatch(r"[A-Z]{3}", one["BillingCurrency"]):
        yield "BillingCurrency is not of ISO 4217 (CurrencyFormat)"


def _charge(one: Row) -> Iterator[str]:
    if one["ChargePeriodEnd"] <= one["ChargePeriodStart"]:
        yield "ChargePeriodEnd is the exclusive end bound (ChargePeriodEnd)"
    if one["BillingPeriodEnd"] <= one["BillingPeriodStart"]:
        yield "BillingPeriodEnd is the exclusive end bound (BillingPeriodEnd)"
    within = one["BillingPeriodStart"] <= one["ChargePeriodStart"] and one["ChargePeriodEnd"] <= one["BillingPeriodEnd"]
    if one["ChargeClass"] is None and not within:
        yield "a charge of a billing period before is a Correction (ChargeClass)"
    if one["ChargeClass"] == "Correction" and within:
        yield "ChargeClass MUST be null for a correction within the current billing period (ChargeClass)"


def _prices(one: Row) -> Iterator[str]:
    usual = one["ChargeClass"] is None
    use = one["ChargeCategory"] in ("Usage", "Purchase") and usual
    for name in (
        "PricingQuantity",
        "PricingUnit",
        "ListUnitPrice",
        "ContractedUnitPrice",
        "SkuId",
        "SkuPriceId",
        "PricingCategory",
    ):
        if use and one[name] is None:
            yield f"{name} MUST NOT be null of use ({name})"
    if use and one["ChargeCategory"] == "Usage" and one["ConsumedQuantity"] is None:
        yield "ConsumedQuantity MUST NOT be null of use (ConsumedQuantity)"
    if one["ChargeCategory"] != "Usage" and one["ConsumedQuantity"] is not None:
        yield "ConsumedQuantity MUST be null when it is no use (ConsumedQuantity)"
    if (one["ConsumedQuantity"] is None) is not (one["ConsumedUnit"] is None):
        yield "ConsumedUnit MUST be null when ConsumedQuantity is, and only then (ConsumedUnit)"
    if (one["PricingQuantity"] is None) is not (one["PricingUnit"] is None):
        yield "PricingUnit MUST be null when PricingQuantity is, and only then (PricingUnit)"
    if one["SkuPriceId"] is None and one["SkuPriceDetails"] is not None:
        yield "SkuPriceDetails MUST be null when SkuPriceId is null (SkuPriceDetails)"
    for unit, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
        if one[unit] is None:
            if usual and Decimal(one[cost]) != Decimal(one["BilledCost"]) and one["ChargeCategory"] == "Credit":
                yield f"{cost} MUST match the BilledCost without a unit price ({cost})"
            continue
        try:
            if Decimal(one[unit]) < 0:
                yield f"{unit} MUST be a non-negative decimal value ({unit})"
            product = (Decimal(one[unit]) * Decimal(one["PricingQuantity"])).quantize(MILLIONTH, ROUND_HALF_EVEN)
        except (InvalidOperation, TypeError):
            yield f"{unit} or PricingQuantity is no number"
            continue
        if usual and abs(product - Decimal(one[cost])) > 0:
            yield f"the product of {unit} and PricingQuantity, {product}, MUST match {cost}, {one[cost]} ({cost})"


def _commitment(one: Row) -> Iterator[str]:
    if (one["PricingCategory"] == "Committed") is not (one["CommitmentDiscountId"] is not None):
        yield "PricingCategory MUST be Committed when a commitment discount applies (PricingCategory)"
    for name in ("Category", "Name", "Quantity", "Status", "Type", "Unit"):
        if (one[f"CommitmentDiscount{name}"] is None) is not (one["CommitmentDiscountId"] is None):
            yield f"CommitmentDiscount{name} goes with CommitmentDiscountId (CommitmentDiscount{name})"


def _allocation(one: Row) -> Iterator[str]:
    """DataGeneratorCalculatedSplitCostAllocationHandling, and the columns that it is of."""
    split = one["AllocatedMethodId"] is not None
    for name in ("AllocatedResourceId", "AllocatedTags", "AllocatedMethodDetails"):
        if not split and one.get(name) is not None:
            yield f"{name} MUST be null when the charge is of no split cost allocation ({name})"
    if (one["AllocatedResourceId"] is None) is not (one["AllocatedResourceName"] is None):
        yield "AllocatedResourceName MUST be null when AllocatedResourceId is, and only then (AllocatedResourceName)"
    if one["AllocatedTags"] is not None and json.loads(one["AllocatedTags"]).keys() & json.loads(one["Tags"] or "{}"):
        yield "AllocatedTags MUST NOT include tags that are in Tags (AllocatedTags)"


def _elements(one: Row, name: str, top: str) -> list[dict[str, Any]] | None:
    """The objects under the one top-level key; None: it is no such object (JsonObjectFormat)."""
    try:
        told = json.loads(one[name])
    except ValueError:
        return None
    if not isinstance(told, dict) or {key for key in told if not key.startswith("x_")} != {top}:
        return None
    if not isinstance(told[top], list) or not told[top] or not all(isinstance(each, dict) for each in told[top]):
        return None
    return list(told[top])


def _contract(one: Row) -> Iterator[str]:
    """A contract commitment is "a measurable obligation" (Glossary), and ContractApplied names one, whose cost or quantity the
    Contract Commitment dataset says (ContractCommitmentCost, ContractCommitmentQuantity). There is none."""
    if one["ContractApplied"] is not None:
        yield "ContractApplied names a contract commitment, and no such dataset is made (Contract Commitment, relationships)"


def _programs(one: Row) -> Iterator[str]:
    name = "CommitmentProgramEligibilityDetails"
    if one[name] is None:
        if one["CommitmentDiscountType"] is not None:
            yield f"{name} MUST NOT be null when a charge is eligible for a program ({name})"
        return
    programs = _elements(one, name, "CommitmentPrograms")
    if programs is None:
        yield f"{name} has no CommitmentPrograms, an array of one or more objects ({name}Object)"
        return
    types = [each.get("ProgramType") for each in programs]
    if not all(isinstance(each, str) for each in types):
        yield f"{name}: ProgramType MUST be of type String and MUST NOT be null ({name}Object)"
    if one["CommitmentDiscountType"] is not None and one["CommitmentDiscountType"] not in types:
        yield f"{name}: ProgramType MUST equal CommitmentDiscountType for one object ({name}Object)"


def _object(name: str, value: str | None) -> Iterator[str]:
    if value is None:
        return
    try:
        told = json.loads(value)
    except ValueError:
        yield f"{name} is no JSON object (KeyValueFormat)"
        return
    if not isinstance(told, dict) or any(isinstance(v, dict | list) for v in told.values()):
        yield f"{name} is not a flat JSON object (KeyValueFormat)"
    elif name == "SkuPriceDetails":
        for key in told:
            if not key.startswith("x_") and key not in ("GpuCount", "InstanceType", "InstanceSeries", "CoreCount"):
                yield f"{name}: {key} MUST begin with x_ (SkuPriceDetails)"


def sku(rows: list[Row]) -> Iterator[str]:
    """Rules about rows together."""
    parents: dict[str, set[str]] = {}
    for one in rows:
        if one["SkuPriceId"] is not None:
            parents.setdefault(one["SkuPriceId"], set()).add(one["SkuId"])
    for price, skus in parents.items():
        if len(skus) != 1:
            yield f"{price} MUST have one and only one parent SkuId (SkuPriceId)"
    if len({one["BillingCurrency"] for one in rows}) > 1:
        yield "one BillingCurrency of a billing account (BillingCurrency)"


def problems(columns: list[str], rows: list[Row], version: str) -> list[str]:
    """All that is wrong with a file."""
    found = list(dataset(columns, version))
    if not found:
        found = [f"row {number}: {text}" for number, one in enumerate(rows) for text in row(one, version)]
    return found + list(sku(rows)) if rows and not found else found
