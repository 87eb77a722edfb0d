"""`baton bill close`: computes a period's seal from the ledger and writes it into the ledger."""

import time
from typing import Annotated, Any

import typer

from libs.cli.bill_files import From, To, Zone, ledger_of
from libs.cli.bill_period import period_of, zone_of
from libs.cli.exits import UsageFault
from libs.cli.options import ArchiveFolder, Output, Pool, Url, UserOption
from libs.cli.output import Format, done
from libs.cli.session import run
from libs.client import Baton
from libs.core.billing.charges import charges
from libs.core.billing.sealing import Sealing
from libs.core.billing.wall import DAY_US, day_text
from libs.core.state.moments import text_of
from libs.ledger.records import FiledLedger
from schemas import subjects
from schemas.inbox import ClosePeriod
from schemas.prices import NO_CURRENCY, ClosedPeriod


def close(
    *,
    start: From = None,
    end: To = None,
    time_zone: Zone = "UTC",
    empty: Annotated[
        bool,
        typer.Option("--empty", help="Also when it is the first and nothing was billed in it: all others follow it."),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger.")] = "",
    archive: ArchiveFolder = None,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Seal a period that is over, in the ledger: its rows' hash and totals. What changes it later is billed later."""
    from libs.cli.pool_commands import say_to_pool

    if start is None:
        raise UsageFault("--from: say which period is closed, e.g. --from 2026-11")
    zone = zone_of(time_zone)
    with ledger_of(None, pool, url, archive) as source:
        period = period_of(start, end, zone, source.wall_us)
        seal, rows = seal_of(source, period, empty=empty)

    async def work(baton: Baton) -> dict[str, Any]:
        who = baton.place.user or "operator"
        said = ClosePeriod(period=seal, reason=reason, user=who)
        pool, about = baton.place.pool, f"close:{seal.from_us}-{seal.to_us}"
        seq = await say_to_pool(baton, pool, said, subjects.close_period(pool, who), about)
        return {"pool": pool, "period": seal, "row_count": rows, "done": "closed", "ledger_seq": seq}

    document = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    done(document, [f"{text_of(seal.from_us)} to {text_of(seal.to_us)} is closed: {rows} rows, {seal.rows}"], output)


def seal_of(source: FiledLedger, period: tuple[int, int], *, empty: bool) -> tuple[ClosedPeriod, int]:
    """The seal, and its number of rows. Periods follow each other without a gap, so the first one is checked carefully:
    nothing before it can ever be sealed. Raises UsageFault."""
    sealing, before, first_us = Sealing(), 0, None
    for charge in charges(source, source.closed):
        if period[0] <= charge.billed_us < period[1]:
            sealing.take(charge)
        if charge.amount.quote is not None:
            before += charge.billed_us < period[0]
            first_us = charge.billed_us if first_us is None else min(first_us, charge.billed_us)
    if not source.closed and period[1] <= max(source.wall_us, time.time_ns() // 1000):
        _check_first(period, sealing.rows, before, first_us, empty=empty)
    seal = ClosedPeriod(
        from_us=period[0],
        to_us=period[1],
        upto_seq=source.head.seq,
        head=source.head.hash,
        rows=sealing.digest,
        currency=source.currency or NO_CURRENCY,
        totals=sealing.totals,
    )
    return seal, sealing.rows


def _check_first(period: tuple[int, int], rows: int, before: int, first_us: int | None, *, empty: bool) -> None:
    """Raises UsageFault for a first period that leaves something out for good, or is empty."""
    begins = "nothing was billed yet" if first_us is None else f"the first that was billed is of {text_of(first_us)}"
    if before and first_us is not None:
        raise UsageFault(
            f"--from {text_of(period[0])}: {before} rows lie before it, and no seal would ever have them, because "
            f"periods follow each other without a gap; {begins}: begin by then, e.g. with --from {day_text(first_us // DAY_US)}"
        )
    if not rows and not empty:
        raise UsageFault(
            f"{text_of(period[0])} to {text_of(period[1])} has no rows, and would be the first that is closed: all others must "
            f"follow it without a gap; {begins}; correct --from, or say --empty if that is meant"
        )
