"""`baton bill`: GPU-seconds and money, exact."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from libs.cli import bill_close, bill_files, bill_page, bill_push, bill_used, units
from libs.cli.bill_period import DaysOf, Until, days_between, forecast_end, zone_of
from libs.cli.budget import overdrawn
from libs.cli.exits import UsageFault
from libs.cli.options import NoHeader, Output, Pool, Team, Url
from libs.cli.output import Column, Format, hint, show
from libs.cli.session import run, whole_id
from libs.client import Baton
from libs.core.billing.wall import DAY_US, day_text
from schemas.billing import BillQuery, BillReply
from schemas.reasons import reasons_of

app = typer.Typer(help="GPU-seconds and money.", invoke_without_command=True, rich_markup_mode=None)
app.command("export")(bill_files.export)
app.command("verify")(bill_files.verify)
app.command("statement")(bill_files.statement)
app.command("push")(bill_push.push)
app.command("page")(bill_page.page)
app.command("close")(bill_close.close)
app.command("used")(bill_used.used)


@app.callback()
def command(
    ctx: typer.Context,
    *,
    by: Annotated[
        str, typer.Option("--by", help="What is summed: team, user, job, attempt, device, class, day or cost-centre.")
    ] = "team",
    start: Annotated[
        str | None,
        typer.Option("--from", help="First day, month or full hour: 2026-11-01, 2026-11, 2026-11-01T12:00Z."),
    ] = None,
    end: Until = None,
    time_zone: DaysOf = "UTC",
    job: Annotated[str | None, typer.Option("--job", help="Only this job.")] = None,
    running: Annotated[bool, typer.Option("--running", help="Count what is still held, up to now.")] = False,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Tell what runs now as if it went on to --to, or this month's end.")
    ] = False,
    cost_centres: Annotated[
        Path | None, typer.Option("--cost-centres", help="YAML: team: cost centre, for --by cost-centre.")
    ] = None,
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """What jobs used and what it costs: the integral of the ledger, in integers."""
    if ctx.invoked_subcommand is not None:
        return
    import time

    from libs.cli.bill_centres import by_centre, centres_of

    now_us = time.time_ns() // 1000
    if by == "cost-centre" and cost_centres is None:
        raise UsageFault("--by cost-centre: say with --cost-centres FILE which team belongs to which")
    if forecast and running:
        raise UsageFault("--forecast tells what runs now already; leave --running out")
    centres = centres_of(cost_centres) if cost_centres is not None else {}
    asked = _days_asked(start, end, time_zone, now_us if forecast else None)
    asked["group_by"] = {"device": "model", "cost-centre": "team"}.get(by, by)
    asked["open_until_us"] = now_us if running else None
    _query(**asked)  # errors in the question come before any connection

    async def ask(baton: Baton) -> tuple[BillReply, list[str]]:
        query = _query(**asked, job_id=await whole_id(baton, job) if job else None)
        return await baton.bill(query), await overdrawn(baton) if output in (Format.TABLE, Format.WIDE) else []

    bill, over = run(ask, team, url, pool=pool)
    rows = by_centre(bill.rows, centres) if by == "cost-centre" else bill.rows
    show(rows, _columns(by, bill), output, name=lambda r: r.key, header=not no_header, whole=_whole(bill, rows))
    if output in (Format.TABLE, Format.WIDE):
        for line in [_total(bill), *_by_file(bill), *over, *_unpriced(bill)]:
            hint(line)


def _days_asked(start: str | None, end: str | None, time_zone: str, now_us: int | None) -> dict[str, Any]:
    """The days of the question; with `now_us`, also the end of the forecast. Whole UTC days are sent as days, the only
    form that older services know."""
    zone = zone_of(time_zone)
    first, last = days_between(start, end, zone)
    asked: dict[str, Any] = {}
    if now_us is not None:
        asked["forecast_until_us"] = last = forecast_end(start, end, zone, now_us)
    if time_zone == "UTC" and not any((us or 0) % DAY_US for us in (first, last)):
        asked["from_day"] = day_text(first // DAY_US) if first is not None else None
        asked["to_day"] = day_text(last // DAY_US - 1) if last is not None else None
    else:
        asked |= {"from_us": first, "to_us": last, "time_zone": time_zone}
    return asked


def _columns(by: str, bill: BillReply) -> list[Column]:
    unpriced = bill.unpriced_milli_us > 0
    return [
        Column(by.upper(), lambda r: r.key),
        *([] if by in ("team", "cost-centre") else [Column("TEAM", lambda r: r.team)]),
        Column("JOBS", lambda r: r.jobs, right=True),
        Column("ATTEMPTS", lambda r: r.attempts, right=True),
        Column("DEVICE-SECONDS", lambda r: f"{r.milli_us / 1e9:.3f}", right=True),
        Column("DEVICE-HOURS", lambda r: f"{r.milli_us / 3.6e12:.4f}", right=True),
        Column("MILLI-US", lambda r: r.milli_us, wide=True, right=True),
        *([Column("UNPRICED-SECONDS", lambda r: f"{r.unpriced_milli_us / 1e9:.3f}", right=True)] if unpriced else []),
        *([Column("CREDITS", lambda r: units.money(r.credit_micros), right=True)] if bill.total_credit_micros else []),
        Column(f"COST {bill.currency}", lambda r: units.money(r.cost_micros), right=True),
        *(
            [Column("TO COME", lambda r: units.money(r.forecast_micros), right=True)]
            if bill.total_forecast_micros
            else []
        ),
    ]


def _whole(bill: BillReply, rows: Sequence[Any]) -> Any:
    """The document for JSON and YAML: the answer, with rows by cost centre if requested."""
    return bill if rows is bill.rows else bill.model_dump() | {"rows": [asdict(row) for row in rows]}


def _total(bill: BillReply) -> str:
    cost = units.money(bill.total_cost_micros, bill.currency)
    if bill.total_credit_micros:
        cost += f" ({units.money(bill.total_credit_micros, bill.currency)} of it are credits)"
    if bill.total_forecast_micros:
        cost += (
            f", with what runs now {units.money(bill.total_cost_micros + bill.total_forecast_micros, bill.currency)}"
        )
    return (
        f"total: {bill.total_milli_us / 1e9:.3f} device-seconds, {cost}; exact up to ledger sequence {bill.ledger_seq}"
    )


def _by_file(bill: BillReply) -> list[str]:
    if not bill.by_file:
        return []
    return [
        "no price book is applied: this cost uses the pool's prices file, and exports and statements show all use as "
        "unpriced; an operator applies a book with `baton prices apply`"
    ]


def _unpriced(bill: BillReply) -> list[str]:
    if not bill.unpriced_milli_us:
        return []
    fix = (
        "an operator adds them to the prices file"
        if bill.by_file
        else "an operator adds them to the price book (exports tell what had none then)"
    )
    return [
        f"unpriced: {bill.unpriced_milli_us / 1e9:.3f} device-seconds of {', '.join(bill.unpriced_models)} "
        f"have no price now and are in no cost; {fix}"
    ]


def _query(**fields: object) -> BillQuery:
    try:
        return BillQuery.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as e:
        lines = []
        for r in reasons_of(e, model=BillQuery):
            flag, fix = _FLAGS.get(r.field, (r.field, ""))
            lines.append(f"{flag} {r.value}: {'not understood' if fix else r.problem}; {fix or r.fix}")
        raise UsageFault("\n".join(lines)) from None


_FLAGS = {
    "group_by": ("--by", "use team, user, job, attempt, device, class, day or cost-centre"),
    "job_id": ("--job", ""),
}
