"""`baton bill`: GPU-seconds and money, exact."""

from typing import Annotated

import typer
from pydantic import ValidationError

from libs.bus.reasons import reasons_of
from libs.cli import bill_files, bill_page, bill_push, units
from libs.cli.budget import overdrawn
from libs.cli.exits import UsageFault
from libs.cli.options import NoHeader, Output, Pool, Team, Url
from libs.cli.output import Column, Format, hint, show
from libs.cli.session import run, whole_id
from libs.client import Baton
from schemas.billing import BillQuery, BillReply

app = typer.Typer(help="GPU-seconds and money.", invoke_without_command=True, rich_markup_mode=None)
app.command("export")(bill_files.export)
app.command("verify")(bill_files.verify)
app.command("statement")(bill_files.statement)
app.command("push")(bill_push.push)
app.command("page")(bill_page.page)
app.command("close")(bill_files.close)


@app.callback()
def command(
    ctx: typer.Context,
    *,
    by: Annotated[str, typer.Option("--by", help="team, day, job, attempt or model.")] = "team",
    start: Annotated[str | None, typer.Option("--from", help="First day, YYYY-MM-DD (UTC).")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Last day, YYYY-MM-DD (UTC).")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only this job.")] = None,
    running: Annotated[bool, typer.Option("--running", help="Count what is still held, up to now.")] = False,
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

    until = time.time_ns() // 1000 if running else None

    async def ask(baton: Baton) -> tuple[BillReply, list[str]]:
        job_id = await whole_id(baton, job) if job else None
        query = _query(group_by=by, from_day=start, to_day=end, job_id=job_id, open_until_us=until)
        return await baton.bill(query), await overdrawn(baton) if output in (Format.TABLE, Format.WIDE) else []

    _query(group_by=by, from_day=start, to_day=end)  # what is wrong is told before anybody is asked
    bill, over = run(ask, team, url, pool=pool)
    unpriced = bill.unpriced_milli_us > 0
    columns = [
        Column(by.upper(), lambda r: r.key),
        *([] if by == "team" else [Column("TEAM", lambda r: r.team)]),
        Column("JOBS", lambda r: r.jobs, right=True),
        Column("ATTEMPTS", lambda r: r.attempts, right=True),
        Column("DEVICE-SECONDS", lambda r: f"{r.milli_us / 1e9:.3f}", right=True),
        Column("DEVICE-HOURS", lambda r: f"{r.milli_us / 3.6e12:.4f}", right=True),
        Column("MILLI-US", lambda r: r.milli_us, wide=True, right=True),
        *([Column("UNPRICED-SECONDS", lambda r: f"{r.unpriced_milli_us / 1e9:.3f}", right=True)] if unpriced else []),
        *([Column("CREDITS", lambda r: units.money(r.credit_micros), right=True)] if bill.total_credit_micros else []),
        Column(f"COST {bill.currency}", lambda r: units.money(r.cost_micros), right=True),
    ]
    show(bill.rows, columns, output, name=lambda r: r.key, header=not no_header, whole=bill)
    if output in (Format.TABLE, Format.WIDE):
        seconds = f"{bill.total_milli_us / 1e9:.3f}"
        cost = units.money(bill.total_cost_micros, bill.currency)
        if bill.total_credit_micros:
            cost += f" ({units.money(bill.total_credit_micros, bill.currency)} of it are credits)"
        hint(f"total: {seconds} device-seconds, {cost}; exact up to ledger sequence {bill.ledger_seq}")
        for line in over:
            hint(line)
        if unpriced:
            hint(
                f"unpriced: {bill.unpriced_milli_us / 1e9:.3f} device-seconds of {', '.join(bill.unpriced_models)} "
                f"are in no cost; an operator adds them to the price book"
            )


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
    "group_by": (
        "--by",
        "use team, day, job, attempt or model; `baton bill statement` has user, class, device and cost-centre",
    ),
    "from_day": ("--from", "write YYYY-MM-DD"),
    "to_day": ("--to", "write YYYY-MM-DD"),
    "job_id": ("--job", ""),
}
