"""A period's sums by any grouping, from the rows of an export, with a forecast."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from libs.cli import units
from libs.cli.bill_centres import centre_of
from libs.cli.exits import UsageFault
from libs.cli.output import Column, Format, document, hint, show
from libs.core.billing.charges import Charge
from libs.core.billing.in_days import Days, held_usage
from libs.core.billing.metering import Meter
from libs.core.billing.pricing import GROUP_KEYS
from libs.core.billing.usage_rows import UsageRow
from libs.core.billing.use_lines.line import DayOf
from libs.core.billing.wall import days_of_zone
from libs.ledger.records import FiledLedger

_KEYS = {"device" if by == "model" else by: key for by, key in GROUP_KEYS.items() if by != "attempt"}
_GROUPS = (*_KEYS, "cost-centre")


@dataclass(slots=True)
class StatementLine:
    """One group. Money in millionths; `units` are thousandths of a device x microseconds."""

    key: str
    charges: int = 0
    units: int = 0
    unpriced_units: int = 0
    list_micros: int = 0
    cost_micros: int = 0
    correction_micros: int = 0
    credit_micros: int = 0
    forecast_micros: int = 0


def grouping_of(by: str, zone: ZoneInfo, centres: Mapping[str, str]) -> "Grouping":
    """Raises UsageFault for an unknown grouping."""
    if by not in _GROUPS:
        raise UsageFault(f"--by {by}: not known; use {', '.join(_GROUPS)}")
    return Grouping(by, days_of_zone(zone.key), centres)


def grouped(found: Iterable[Charge], grouping: "Grouping") -> dict[str, StatementLine]:
    """The lines, by key."""
    lines: dict[str, StatementLine] = {}
    for charge in found:
        one, amount = _line(lines, grouping.of(charge)), charge.amount
        if amount.quote is None:
            one.unpriced_units += amount.units
            continue
        one.unpriced_units -= amount.units if charge.priced_later else 0
        one.charges += 1
        one.units += amount.units
        one.list_micros += amount.list_micros
        one.cost_micros += amount.cost_micros
        one.correction_micros += amount.cost_micros if charge.correction and not charge.credit else 0
        one.credit_micros += amount.cost_micros if charge.credit else 0
    return lines


def add_forecast(
    lines: dict[str, StatementLine],
    source: FiledLedger,
    period: tuple[int, int],
    of: str | None,
    grouping: "Grouping",
) -> None:
    """Adds devices held at the ledger's end, as if held at today's prices until the period ends."""
    meter = Meter(credits=False)
    for seq, record in source():
        meter.apply(record, seq)
    for row in held_usage(meter, meter.ledger_time(period[1]), of, Days(grouping.day_of, *period)):
        _line(lines, grouping.key(row)).forecast_micros += row.posted[0] if row.posted is not None else 0


def _line(lines: dict[str, StatementLine], key: str) -> StatementLine:
    return lines.get(key) or lines.setdefault(key, StatementLine(key))


@dataclass(frozen=True, slots=True)
class Grouping:
    """Maps rows to lines: by `by`, on the days of a zone."""

    by: str
    day_of: DayOf
    centres: Mapping[str, str]

    def key(self, row: UsageRow) -> str:
        return centre_of(self.centres, row.team) if self.by == "cost-centre" else _KEYS[self.by](row)

    def of(self, charge: Charge) -> str:
        use = charge.use
        day = self.day_of(charge.billed_us)
        return self.key(
            UsageRow(use.team, use.job_id, use.attempt, day, use.device_kind, use.priority_class, 0, None, use.user)
        )


def shown(found: Mapping[str, StatementLine], by: str, output: Format, currency: str) -> None:
    """Prints the table, or the whole as a document. `currency` empty: the ledger has no price book."""
    lines = [found[key] for key in sorted(found)]
    total = StatementLine("total")
    for name in StatementLine.__slots__[1:]:
        setattr(total, name, sum(getattr(one, name) for one in lines))
    if output in (Format.JSON, Format.YAML):
        rows: list[dict[str, Any]] = [{n: getattr(one, n) for n in StatementLine.__slots__} for one in [*lines, total]]
        document({"by": by, "currency": currency or None, "rows": rows[:-1], "total": rows[-1]}, output)
        return
    columns = [
        Column(by.upper(), lambda r: r.key),
        Column("ROWS", lambda r: r.charges, right=True),
        Column("DEVICE-HOURS", lambda r: f"{r.units / 3.6e12:.4f}", right=True),
        Column("LIST", lambda r: units.money(r.list_micros), right=True),
        Column(f"COST {currency}".rstrip(), lambda r: units.money(r.cost_micros), right=True),
        Column("CORRECTIONS", lambda r: units.money(r.correction_micros), right=True),
        *([Column("CREDITS", lambda r: units.money(r.credit_micros), right=True)] if total.credit_micros else []),
        *([Column("TO COME", lambda r: units.money(r.forecast_micros), right=True)] if total.forecast_micros else []),
    ]
    show(lines, columns, output, name=lambda r: r.key)
    hint(f"total: {units.money(total.cost_micros, currency)}, taxes left out" + _forecast(total, currency))
    if total.unpriced_units:
        hint(unpriced_text(total.unpriced_units))


def unpriced_text(units: int, whose: str = "") -> str:
    """Text about use without a price; negative `units` were posted in an earlier period."""
    seconds = f"{abs(units) / 1e9:.3f} device-seconds{whose}"
    if units < 0:
        return f"priced now: {seconds} were told to be unpriced in a period before"
    return f"unpriced: {seconds} are in no cost; `baton prices apply` prices them"


def _forecast(total: StatementLine, currency: str) -> str:
    if not total.forecast_micros:
        return ""
    return f"; with what runs now {units.money(total.cost_micros + total.forecast_micros, currency)}"
