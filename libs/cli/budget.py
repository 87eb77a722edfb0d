"""`baton budget`: lists budgets, and tops one up."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from libs.cli.budgetsfile import read_amount
from libs.cli.exits import UsageFault
from libs.cli.options import NoHeader, Output, Pool, Team, Url, UserOption
from libs.cli.output import Column, Format, done, show
from libs.cli.pool_commands import say_to_pool
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import ClientError
from schemas import subjects
from schemas.budgets import BudgetPeriod, BudgetUnit
from schemas.inbox import TopUpBudget
from schemas.queue_status import BudgetsQuery, BudgetsReply, BudgetStanding

app = typer.Typer(
    help="Budgets: what is spent and held of them; more for one (operators).",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    pass


def amount(millionths: int | None) -> str:
    """For people: GPU-hours or money with at most two decimals; empty: none."""
    return "" if millionths is None else f"{millionths / 1e6:,.2f}".rstrip("0").rstrip(".")


def _whose(one: BudgetStanding) -> str:
    about = one.budget
    return f"team {about.team}" if about.team is not None else f"queue {about.queue}"


def _note(one: BudgetStanding) -> str:
    if one.available is not None and one.available < 0:
        return "overdrawn"
    return "soft limit reached" if one.soft_reached else ""


def columns(zone: str) -> list[Column]:
    """Columns of a table of budgets; times are in this zone."""
    day: Callable[[int], str] = lambda us: datetime.fromtimestamp(us // 1_000_000, ZoneInfo(zone)).strftime("%Y-%m-%d")  # noqa: E731
    return [
        Column("BUDGET", _whose),
        Column("UNIT", lambda one: one.budget.unit.value),
        Column("PERIOD", lambda one: one.budget.period.value),
        Column("SINCE", lambda one: day(one.from_us) if one.to_us else ""),
        Column("SOFT", lambda one: amount(one.budget.soft), right=True),
        Column("HARD", lambda one: amount(one.budget.hard), right=True),
        Column("CARRIED", lambda one: amount(one.carried), right=True),
        Column("TOPPED-UP", lambda one: amount(one.topped_up), right=True),
        Column("SPENT", lambda one: amount(one.spent), right=True),
        Column("HELD", lambda one: amount(one.held), right=True),
        Column("LEFT", lambda one: amount(one.available), right=True),
        Column("WHEN-SPENT", lambda one: one.budget.when_spent.value if one.budget.hard is not None else "", wide=True),
        Column("JOBS", lambda one: one.jobs, right=True, wide=True),
        Column("NOTE", _note),
    ]


def tightest(reply: BudgetsReply) -> dict[str, str]:
    """Team or queue -> its budget with the least left: `812/1000 gpu-hours a month`."""
    found: dict[str, tuple[float, str]] = {}
    for one in reply.budgets:
        about = one.budget
        most = about.hard if about.hard is not None else about.soft
        if most is None:
            continue
        most += one.carried + one.topped_up
        part = one.spent / most if most > 0 else float("inf")
        note = f" ({_note(one)})" if _note(one) else ""
        text = f"{amount(one.spent)}/{amount(most)} {about.unit.value} a {about.period.value}{note}"
        name = about.team or about.queue or ""
        found[name] = max(found.get(name, (-1.0, "")), (part, text))
    return {name: text for name, (_, text) in found.items()}


async def standing(baton: Baton, timeout_s: float = 5.0) -> BudgetsReply:
    """The budgets, from queries."""
    reply: BudgetsReply = await ask(baton.nats, "budgets.list", baton.place, BudgetsQuery(), timeout_s=timeout_s)
    return reply


async def overdrawn(baton: Baton) -> list[str]:
    """A line for each overdrawn budget, to go with a bill; none without an answer, since the bill does not wait for it."""
    try:
        reply = await standing(baton, timeout_s=1.0)
    except ClientError:
        return []
    return [
        f"overdrawn: the budget of {one.budget.label}, by {amount(-one.available)}"
        for one in reply.budgets
        if one.available is not None and one.available < 0
    ]


@app.command("show")
def show_budgets(
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """What each budget has in its present period, and what is spent and held of it: GPU-hours, or money."""
    reply = run(standing, team, url, pool=pool)
    show(reply.budgets, columns(reply.time_zone), output, name=lambda one: one.budget.key, header=not no_header)


@app.command("top-up")
def top_up(
    whose: Annotated[str, typer.Argument(metavar="TEAM", help="Whose budget: a team, or `queue:NAME`.")],
    *,
    gpu_hours: Annotated[str | None, typer.Option("--gpu-hours", metavar="N", help="So many GPU-hours more.")] = None,
    money: Annotated[
        str | None, typer.Option("--money", metavar="N", help="So much more, in the pool's currency.")
    ] = None,
    period: Annotated[
        BudgetPeriod | None, typer.Option("--period", help="Of the budget for this period, where there are several.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger.")],
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Give a budget more, until its present period ends. Said again it is meant anew."""
    if (gpu_hours is None) is (money is None):
        raise UsageFault("give either --gpu-hours N or --money N")
    if not reason.strip():
        raise UsageFault("--reason is empty: say why, since it is what an audit shows")
    unit = BudgetUnit.GPU_HOURS if gpu_hours is not None else BudgetUnit.MONEY
    option = "--gpu-hours" if gpu_hours is not None else "--money"
    try:
        more = read_amount(gpu_hours if gpu_hours is not None else money)
    except ValueError as error:
        raise UsageFault(f"{option}: {error}") from None
    if not more:
        raise UsageFault(f"{option} 0 changes nothing: write how much more it gets")

    async def work(baton: Baton) -> dict[str, Any]:
        reply = await standing(baton)
        key = _key(reply, whose, unit, period)
        who = baton.place.user or "operator"
        said = TopUpBudget(budget=key, amount=more, reason=reason, user=who)
        pool = baton.place.pool
        seq = await say_to_pool(baton, pool, said, subjects.top_up_budget(pool, who), f"budget:{key}")
        return {"pool": pool, "budget": key, "amount": more, "done": "topped up", "ledger_seq": seq}

    document = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    key = document["budget"]
    done(document, [f"{key} has {amount(more)} more until its period ends"], output, names=[key])


def _key(reply: BudgetsReply, whose: str, unit: BudgetUnit, period: BudgetPeriod | None) -> str:
    """The selected budget. Raises UsageFault when there is none, or more than one."""
    kind, colon, name = whose.partition(":")
    scope = f"{kind}:{name}" if colon else f"team:{whose}"
    found = [
        one.budget
        for one in reply.budgets
        if one.budget.key.startswith(f"{scope}:{unit.value}:") and period in (None, one.budget.period)
    ]
    if not found:
        there = ", ".join(one.budget.key for one in reply.budgets[:10]) or "none"
        raise UsageFault(f"{scope} has no budget of {unit.value}: `baton budget show` lists them ({there})")
    if len(found) > 1:
        periods = ", ".join(about.period.value for about in found)
        raise UsageFault(f"{scope} has several budgets of {unit.value} ({periods}): say which with --period")
    return found[0].key
