"""What a period comes to, by what people ask for: sums of the rows of an export, and what is still to come."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from libs.cli import units
from libs.cli.exits import UsageFault
from libs.cli.output import Column, Format, document, hint, show
from libs.cli.yamlfile import Broken, Document, YamlProblem, read
from libs.core.billing.charges import Charge, Uses
from libs.core.billing.prices import PriceList, Rater
from libs.core.billing.wall import HOUR_US
from libs.ledger.records import FiledLedger
from schemas.ledger import PricesApplied

NO_CENTRE = "(none)"
_GROUPS = ("team", "user", "job", "device", "class", "day", "cost-centre")


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


def grouped(found: Iterable[Charge], by: str, zone: ZoneInfo, centres: Mapping[str, str]) -> dict[str, StatementLine]:
    """The lines, by key. Raises UsageFault for a grouping that there is not."""
    if by not in _GROUPS:
        raise UsageFault(f"--by {by}: not known; use {', '.join(_GROUPS)}")
    lines: dict[str, StatementLine] = {}

    for charge in found:
        one, amount = _line(lines, key_of(charge, by, zone, centres)), charge.amount
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
    key: Callable[[Charge], str],
) -> None:
    """Adds what runs now until the period ends."""
    for charge in _to_come(source, period):
        if of in (None, charge.use.team):
            _line(lines, key(charge)).forecast_micros += charge.amount.cost_micros


def _line(lines: dict[str, StatementLine], key: str) -> StatementLine:
    return lines.get(key) or lines.setdefault(key, StatementLine(key))


def _to_come(source: FiledLedger, period: tuple[int, int]) -> Iterable[Charge]:
    """What is held at the ledger's end, as if it were held, at today's prices, until the period ends. Tiers are as if it were a
    month's first use."""
    uses, rater, last = Uses(), Rater(None), None
    for seq, record in source():
        uses.apply(seq, record)
        last = record
        for event in record.events:
            if isinstance(event, PricesApplied):
                rater = Rater(PriceList(event.book))
    if last is None:
        return
    shift = uses.calendar.wall(last.t_us) - last.t_us
    for use in uses.open(max(last.t_us, period[1] - shift)):
        for amount in rater.rate(use.team, use.device_kind, use.priority_class, use.milli, use.straight):
            hour_us = amount.hour * HOUR_US
            if period[0] <= hour_us < period[1]:
                yield Charge(use, amount, 0, 0, hour_us, late=False, correction=False)


def key_of(charge: Charge, by: str, zone: ZoneInfo, centres: Mapping[str, str]) -> str:
    """In which line it is."""
    use = charge.use
    if by == "day":
        moment = datetime.fromtimestamp(charge.billed_us // 1_000_000, UTC).astimezone(zone)
        return moment.strftime("%Y-%m-%d")
    if by == "cost-centre":
        return centres.get(use.team, NO_CENTRE)
    return {
        "team": use.team, "user": f"{use.team}.{use.user}" if use.user else use.team, "job": use.job_id,
        "device": use.device_kind, "class": use.priority_class,
    }[by]  # fmt: skip


def centres_of(path: Path) -> dict[str, str]:
    """Team -> cost centre. Raises UsageFault."""
    try:
        documents = read(path.read_text("utf-8"))
    except Broken as e:
        raise UsageFault(f"{path}:{e.problem.line}: {e.problem.problem}; {e.problem.fix}") from None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageFault(f"{path} cannot be read: {e}; name a YAML file in UTF-8") from None
    found = documents[0] if documents else Document({}, {})
    wrong = found.problems[0] if found.problems else None
    if wrong is None and (len(documents) > 1 or not isinstance(found.data, dict)):
        wrong = YamlProblem(1, 1, "file", "is not one mapping", "write a line `team: cost centre` for each")
    for team, centre in found.data.items() if wrong is None else ():
        if isinstance(centre, dict | list) or centre is None:
            wrong = YamlProblem(
                *found.at((team,)), str(team), "has no cost centre", "write its name or number behind the team"
            )
            break
    if wrong is not None:
        raise UsageFault(f"{path}:{wrong.line}: {wrong.field}: {wrong.problem}; {wrong.fix}")
    return {str(team): found.texts.get((team,), str(centre)) for team, centre in found.data.items()}


def shown(found: Mapping[str, StatementLine], by: str, output: Format, currency: str) -> None:
    """The table, or the whole as a document. `currency` empty: no book is in the ledger."""
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
    """What a bill says of use without a price; `units` negative: it was posted in a period before."""
    seconds = f"{abs(units) / 1e9:.3f} device-seconds{whose}"
    if units < 0:
        return f"priced now: {seconds} were told to be unpriced in a period before"
    return f"unpriced: {seconds} are in no cost; `baton prices apply` prices them"


def _forecast(total: StatementLine, currency: str) -> str:
    if not total.forecast_micros:
        return ""
    return f"; with what runs now {units.money(total.cost_micros + total.forecast_micros, currency)}"
