"""Quota_billing's answers: load the meter, price or count, return."""

import asyncio
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from functools import cache
from typing import Protocol

from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from libs.adapters.mongo.use import UseStore
from libs.bus.queries import AskAgain, InvalidQuestion
from libs.core.billing.in_days import MOST_USES, Days, bill_in_days, with_forecast
from libs.core.billing.metering import Meter
from libs.core.billing.open_claims import TeamUse
from libs.core.billing.posted import TooManyUses
from libs.core.billing.pricing import Prices, at_least, bill, bill_of_sums, days_of, is_summed
from libs.core.billing.use_hours import GroupedUse
from libs.core.billing.use_lines.line import utc_day
from libs.core.billing.wall import DAY_US, ENDLESS_US, HOUR_US, day_text, days_of_zone, us_of
from libs.ledger.chain import LedgerStopped
from libs.ledger.parts import part_after
from libs.ledger.segments import RecordsArchived
from libs.ports import clock
from libs.service.mongo_questions import asks_mongo
from schemas.billing import BillQuery, BillReply, QuotaSnapshot
from schemas.jobs import Reason
from schemas.pool_status import PoolStatusQuery
from schemas.proofs import LedgerPart, LedgerRead
from schemas.subjects import FINANCE, OPERATOR
from schemas.use import UseQuery, UseReply

SEES_ALL = (OPERATOR, FINANCE)
"""Askers that see all teams' money."""
MOST_AHEAD_US = 400 * DAY_US
"""The longest forecast: to the end of the month a year ahead."""

MAX_ROWS = 3000
"""About 750 KB; the broker's limit per answer is 1 MiB."""
MAX_READ = 1_000_000
"""The most sums read for one answer about use: a few seconds of a thread. A team has at most 500 per hour by job, and
one per user otherwise: 2,000 hours of the largest team, or a year of a hundred users who always work."""
MAX_LINES = 2_000_000
"""The most packed lines (`libs.core.billing.use_lines`) read for one answer, over all teams: some seconds of a thread,
during which no record is folded."""
MAX_HOURS = 20_000
"""The most stored hours in one answer about use; one team's 27 months."""


class LockableMeter(Protocol):
    """A meter that others update, and a lock that stops them."""

    projection: Meter

    def still(self) -> AbstractAsyncContextManager[None]: ...


async def answer_bill(kept: LockableMeter, prices: Prices, query: BillQuery, team: str) -> BillReply:
    """`get_bill`. Slow questions run in a thread, one at a time, so records and other questions go on."""
    if kept.projection.money.book is not None and is_summed(query) and not _takes_long(query):
        return get_bill(kept.projection, prices, query, team)
    async with kept.still():
        return await asyncio.to_thread(get_bill, kept.projection, prices, query, team, now_us=clock.wall_us())


def get_bill(meter: Meter, prices: Prices, query: BillQuery, team: str, *, now_us: int = 0) -> BillReply:
    """A team's bill has its own jobs only; another team's job looks nonexistent. `now_us`: wall time, since the ledger
    may have been quiet for long. Raises InvalidQuestion."""
    if query.from_day and query.to_day and query.from_day > query.to_day:
        raise _invalid("from_day", query.from_day, f"is after to_day ({query.to_day})", "swap them")
    whose = None if team in SEES_ALL else team
    _check_horizon(query, max(meter.wall_us, now_us))
    query, days = _query_and_days(query)
    if days.day_of is not utc_day:
        try:
            reply = bill_in_days(meter, prices, query, whose, days)
        except TooManyUses:
            problem = f"more uses are to be cut at its midnights than the {MOST_USES} of one answer"
            fix = "narrow it with from_us and to_us, ask for days of UTC, or make a statement (`baton bill statement`)"
            raise _invalid("time_zone", query.time_zone or "", problem, fix) from None
    elif meter.money.book is not None and is_summed(query):
        reply = bill_of_sums(meter, query, whose)
    else:
        _check_size(at_least(meter, query, whose), query)
        asked = cache(days_of(query))
        if (lines := meter.money.lines.opens(whose, asked, query.job_id)) > MAX_LINES:
            problem = (
                f"{lines} attempts lie in blocks of that time, more than the {MAX_LINES} that one answer looks through"
            )
            fix = "narrow it with from_day and to_day, group by team, day or model, or use `baton bill statement`"
            raise _invalid("group_by", query.group_by, problem, fix)
        usage = meter.usage(whose, open_until_us=query.open_until_us, of_day=asked, job_id=query.job_id)
        currency = meter.money.book.currency if meter.money.book is not None else ""
        reply = bill(usage, prices, query, meter.seq, currency)
    if query.forecast_until_us is not None:
        reply = with_forecast(reply, meter, prices, query, whose, days)
    _check_size(len(reply.rows), query)
    return reply


def _check_horizon(query: BillQuery, now_us: int) -> None:
    """Refuses forecasts too far ahead, since held devices are counted hour by hour."""
    latest = now_us + MOST_AHEAD_US
    for field, moment in (("open_until_us", query.open_until_us), ("forecast_until_us", query.forecast_until_us)):
        if moment is not None and moment > latest:
            problem = f"is more than {MOST_AHEAD_US // DAY_US} days ahead"
            raise _invalid(field, str(moment), problem, f"name a moment up to {latest}")


def _takes_long(query: BillQuery) -> bool:
    ahead = query.open_until_us is not None or query.forecast_until_us is not None
    return ahead or _in_days(query)


def _in_days(query: BillQuery) -> bool:
    """Whether the query needs days other than UTC's."""
    return query.from_us is not None or query.to_us is not None or query.time_zone is not None


def _query_and_days(query: BillQuery) -> tuple[BillQuery, Days]:
    """The query and its days. A span of whole UTC days becomes a query by days, whose rows exist."""
    if not _in_days(query):
        start = 0 if query.from_day is None else _begin_of(query.from_day)
        end = ENDLESS_US if query.to_day is None else _begin_of(query.to_day) + DAY_US
        return query, Days(utc_day, start, end)
    if query.from_day is not None or query.to_day is not None:
        day = query.from_day or query.to_day or ""
        raise _invalid("from_day", day, "is said beside a zone or moments", "say from_us and to_us alone")
    start, end = query.from_us or 0, query.to_us if query.to_us is not None else ENDLESS_US
    if start >= end:
        raise _invalid("from_us", str(start), f"is not before to_us ({end})", "swap them")
    zone = query.time_zone or "UTC"
    if zone == "UTC" and start % DAY_US == 0 and end % DAY_US == 0:
        first, last = (day_text(min(us, ENDLESS_US) // DAY_US) for us in (start, end - 1))
        return query.model_copy(update={"from_day": first, "to_day": last}), Days(utc_day, start, end)
    try:
        return query, Days(days_of_zone(zone), start, end)
    except ValueError:
        raise _invalid("time_zone", zone, "is no zone that is known here", "write e.g. Europe/Berlin") from None


def _begin_of(day: str) -> int:
    try:
        return us_of(datetime.fromisoformat(day).replace(tzinfo=UTC))
    except ValueError:
        raise _invalid("from_day", day, "there is no such day", "correct it") from None


def _check_size(rows: int, query: BillQuery) -> None:
    if rows > MAX_ROWS:
        problem = f"the bill has {rows} rows, more than the {MAX_ROWS} of one answer"
        raise _invalid("group_by", query.group_by, problem, "narrow it with from_day and to_day, or group by day")


async def list_use(store: UseStore | None, query: UseQuery, team: str) -> UseReply:
    """A team sees its own use. Raises InvalidQuestion, and AskAgain while MongoDB is unreachable."""
    if store is None:
        raise AskAgain("quota_billing keeps no sums of use: set BATON_QUOTA_BILLING_KEEP_USE_DAYS")
    try:
        day_of = days_of_zone(query.time_zone)
    except ValueError:
        raise _invalid("time_zone", query.time_zone, "is no zone that is known here", "write e.g. UTC") from None
    start, end = -(-(query.from_us or 0) // HOUR_US), -(-(query.to_us or ENDLESS_US) // HOUR_US)
    if start >= end:
        raise _invalid("from_us", str(query.from_us), f"no hour begins from there to to_us ({query.to_us})", "say more")
    whose = query.team if team in SEES_ALL else team
    grouped = GroupedUse(query.group_by, lambda hour: day_text(day_of(hour * HOUR_US)))
    span: list[int] = []
    count = read = 0
    by_job = query.group_by == "job"
    async with (
        asks_mongo("quota_billing", "the hours of use"),
        aclosing(store.pages(whose, start, end, limit=MAX_HOURS + 1, jobs=by_job)) as pages,
    ):
        async for hours in pages:
            count, span = count + len(hours), [*span[:1], hours[0].hour, hours[-1].hour]
            if count > MAX_HOURS:
                problem, fix = f"more than {MAX_HOURS} hours of teams are kept of that time", "or ask for one team"
                raise _invalid("from_us", str(query.from_us), problem, f"narrow it with from_us and to_us, {fix}")
            read += sum(len(rows) for hour in hours for rows in hour.slots.values())
            if read > MAX_READ:
                problem = f"more than {MAX_READ} sums of users or jobs are kept of that time"
                fix = "narrow it with from_us and to_us, or ask for one team"
                raise _invalid("from_us", str(query.from_us), problem, fix + ("; or group by user" if by_job else ""))
            await asyncio.to_thread(grouped.add, hours)
            if len(grouped) > MAX_ROWS:
                problem, fix = f"there are more than the {MAX_ROWS} rows of one answer", "or group by team"
                raise _invalid("group_by", query.group_by, problem, f"narrow it with from_us and to_us, {fix}")
    return UseReply(
        rows=tuple(grouped.rows()),
        first_us=span[0] * HOUR_US if span else None,
        last_us=(span[-1] + 1) * HOUR_US if span else None,
    )


async def read_ledger(js: JetStreamContext, pool: str, query: LedgerRead, team: str) -> LedgerPart:
    """The broker admits no other asker. Raises InvalidQuestion, and AskAgain while the broker is unreachable."""
    if team not in SEES_ALL:
        raise _invalid("(asker)", team, "may not read the ledger", "ask for your own part: `baton audit verify --team`")
    try:
        return await part_after(js, pool, query.after_seq)
    except RecordsArchived as e:
        fix = f"ask for what is behind message {e.seq + e.records - 1}, and take the rest from the archive"
        raise _invalid("after_seq", str(query.after_seq), str(e), fix) from None
    except (LedgerStopped, NatsError) as e:
        raise AskAgain(f"the ledger cannot be read now ({e!r}): ask again") from None


def list_quotas(meter: Meter, query: PoolStatusQuery, team: str) -> QuotaSnapshot:
    """The operator sees all teams with a quota or unfinished jobs; a team sees itself."""
    uses = meter.open_claims.teams(meter.quotas)
    if team != OPERATOR:
        uses = {team: uses.get(team, TeamUse(meter.quotas.get(team), {}, 0, 0))}
    return QuotaSnapshot(teams=tuple(use.usage_of(name) for name, use in uses.items()), ledger_seq=meter.seq)


def _invalid(field: str, value: str, problem: str, fix: str) -> InvalidQuestion:
    return InvalidQuestion([Reason(field=field, value=value, problem=problem, fix=fix)])
