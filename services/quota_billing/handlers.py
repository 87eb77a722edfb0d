"""Quota_billing's answers: load the meter, price or count, return."""

from functools import cache

from libs.bus.queries import InvalidQuestion
from libs.core.billing.metering import Meter, TeamUse
from libs.core.billing.pricing import Prices, at_least, bill, bill_of_sums, days_of, is_summed
from libs.core.state.limits import Limits
from schemas.billing import BillQuery, BillReply, QuotaSnapshot, TeamUsage
from schemas.jobs import Reason
from schemas.queries import PoolStatusQuery
from schemas.subjects import OPERATOR

MAX_ROWS = 3000
"""About 750 KB: the broker carries 1 MiB in one answer."""


def get_bill(meter: Meter, prices: Prices, query: BillQuery, team: str) -> BillReply:
    """A team's bill has its own jobs only: another team's job is as if it did not exist. Raises InvalidQuestion."""
    if query.from_day and query.to_day and query.from_day > query.to_day:
        raise _invalid("from_day", query.from_day, f"is after to_day ({query.to_day})", "swap them")
    whose = None if team == OPERATOR else team
    if meter.money.book is not None and is_summed(query):
        reply = bill_of_sums(meter, query, whose)
    else:
        _narrow(at_least(meter, query, whose), query)
        usage = meter.usage(whose, open_until_us=query.open_until_us, of_day=cache(days_of(query)), job_id=query.job_id)
        currency = meter.money.book.currency if meter.money.book is not None else ""
        reply = bill(usage, prices, query, meter.seq, currency)
    _narrow(len(reply.rows), query)
    return reply


def _narrow(rows: int, query: BillQuery) -> None:
    if rows > MAX_ROWS:
        problem = f"the bill has {rows} rows, more than the {MAX_ROWS} of one answer"
        raise _invalid("group_by", query.group_by, problem, "narrow it with from_day and to_day, or group by day")


def list_quotas(meter: Meter, query: PoolStatusQuery, team: str) -> QuotaSnapshot:
    """The operator sees every team that has a quota or unfinished jobs; a team sees itself."""
    uses = meter.teams()
    if team != OPERATOR:
        uses = {team: uses.get(team, TeamUse(meter.quotas.get(team), {}, 0, 0))}
    return QuotaSnapshot(teams=tuple(_shown(name, use) for name, use in uses.items()), ledger_seq=meter.seq)


def _shown(team: str, use: TeamUse) -> TeamUsage:
    limits = use.limits or Limits()
    return TeamUsage(
        team=team,
        limit_milli=limits.total_milli,
        by_type=dict(limits.by_type),
        used_by_type=use.used_by_type(),
        used_milli=use.used_milli,
        queued_jobs=use.queued_jobs,
        running_jobs=use.running_jobs,
    )


def _invalid(field: str, value: str, problem: str, fix: str) -> InvalidQuestion:
    return InvalidQuestion([Reason(field=field, value=value, problem=problem, fix=fix)])
