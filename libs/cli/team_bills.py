"""A team's bills and quota in one pool: from its quota_billing or, if nobody answers, from its ledger in the same way.
Only an operator can read a ledger; a team gets only answers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import Failed, Invalid
from libs.core.billing.metering import Meter
from libs.core.billing.open_claims import TeamUse
from libs.core.billing.pricing import NO_PRICES, bill
from libs.core.billing.pricing import days_of as days_asked
from libs.ledger.records import FiledLedger
from schemas.billing import BillQuery, BillReply, QuotaSnapshot
from schemas.pool_status import PoolStatusQuery

BillAnswerer = Callable[[BillQuery], Awaitable[BillReply]]


async def answered(baton: Baton, pool: str) -> tuple[list[BillReply], QuotaSnapshot]:
    """The pool's quota_billing's answers to the team of `baton`. Raises ClientError, Unreachable when nobody answers."""

    async def asked(query: BillQuery) -> BillReply:
        reply: BillReply = await ask(baton.nats, "bill.get", baton.place, query, pool=pool, timeout_s=30.0)
        return reply

    found = await bills(asked)
    quotas: QuotaSnapshot = await ask(baton.nats, "quota.list", baton.place, PoolStatusQuery(), pool=pool)
    return found, quotas


async def of_ledger(
    operator: Baton, pool: str, team: str, archive: Path | None, folder: Path
) -> tuple[list[BillReply], QuotaSnapshot]:
    """The same from a ledger, which is written into `folder` first. Raises RecordsArchived, NoLedger, BadLedgerFile."""
    from libs.cli.bill_files import of_pool

    source = await of_pool(operator, pool, archive, folder / "ledger.jsonl")
    meter = await asyncio.to_thread(_folded, source)
    currency = meter.money.book.currency if meter.money.book is not None else ""

    async def asked(query: BillQuery) -> BillReply:
        return bill(meter.usage(team, of_day=days_asked(query)), NO_PRICES, query, meter.seq, currency)

    use = meter.open_claims.teams(meter.quotas).get(team, TeamUse(meter.quotas.get(team), {}, 0, 0))
    return await bills(asked), QuotaSnapshot(teams=(use.usage_of(team),), ledger_seq=meter.seq)


def _folded(source: FiledLedger) -> Meter:
    meter = Meter()
    for seq, record in source():
        meter.apply(record, seq)
    return meter


async def bills(asked: BillAnswerer) -> list[BillReply]:
    """The bill of all days, then of each day by attempt, or by job if there are too many attempts; and the credits.
    Raises Failed when they do not add up because something ended meanwhile."""
    days = await asked(BillQuery(group_by="day"))
    out = [days]
    for row in days.rows:
        of_day: dict[str, Any] = {"from_day": row.key, "to_day": row.key}
        try:
            out.append(await asked(BillQuery(group_by="attempt", **of_day)))
        except Invalid:
            out.append(await asked(BillQuery(group_by="job", **of_day)))
    if sum(reply.total_milli_us for reply in out[1:]) != days.total_milli_us:
        raise Failed("the bill changed while it was read", "a job ended meanwhile", "run it again, into a new folder")
    return out
