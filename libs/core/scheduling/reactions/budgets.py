"""Budgets: what operators say of them, periods that begin, holds that fall due, limits that are reached."""

from fractions import Fraction
from operator import attrgetter
from typing import Any

from libs.core.billing.budgets import period_of, problems
from libs.core.scheduling.limits.budget_headroom import (
    BudgetHeadroom,
    BudgetShort,
    counts_money,
    headrooms_of,
    terms_of,
)
from libs.core.scheduling.reactions.attempts import release_hold, stop
from libs.core.scheduling.reactions.decision import Decision, InputRefused, check_version
from libs.core.state.budgets import BudgetBalance
from libs.core.state.job import Job
from libs.core.state.lifecycle import UNDECIDED
from schemas import inbox, ledger
from schemas.attempts import Cause
from schemas.budgets import BudgetHold, WhenSpent

_LEAST_US = 10_000_000
"""A renewal for less is not worth while: the attempt ends."""
_AT_ONCE = 1000
"""Jobs of one event of renewals."""
_FROM_US, _TO_US = attrgetter("from_us"), attrgetter("to_us")
_MOST_TURNS = 400
"""Periods of one kind that begin by one decision: after more than a year without any the pool goes on with the present one."""


def budgets_applied(d: Decision, m: inbox.ApplyBudgets) -> None:
    """All or nothing."""
    now = d.state.budgets.applied
    if now == m.budgets:
        return
    if now is not None:
        check_version(m.budgets.version, now.version)
    if wrong := problems(m.budgets, d.state.tree.queues.keys()):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputRefused(wrong[0].text() + more)
    event = ledger.BudgetsApplied(budgets=m.budgets, reason=m.reason, user=m.user)
    if not d.may(event):
        raise InputRefused("a reader of this ledger is of a release that knows no budgets: `baton ledger readers`")
    begin_to_count(d, event)


def begin_to_count(d: Decision, event: ledger.BudgetsApplied | ledger.QueuesApplied) -> None:
    """Emits what says which budgets count whom. What runs is counted from then on, and has one renewal in any case: also what
    a budget of money has not counted so far, whose hold says units and no prices, and may be for days."""
    state = d.state
    before = {job_id for job_id, hold in state.budgets.holds.items() if counts_money(state, hold.team)}
    d.emit(event)
    begin_periods(d)
    if state.budgets.applied is not None:
        renewed, until_us = _Renewals(), d.t_us + state.budgets.applied.renewal_s * 1_000_000
        for job_id, hold in state.budgets.holds.items():
            job = state.jobs[job_id]
            if hold.told and job_id not in before and counts_money(state, job.team) and job.current is not None:
                renewed.add(job_id, terms_of(state, job, state.devices_of(job.current), until_us))
        renewed.emit(d)
    renew(d)


class _Renewals:
    """Jobs whose holds are renewed alike are told by one event."""

    def __init__(self) -> None:
        self._alike: dict[tuple[Any, ...], tuple[BudgetHold, list[str]]] = {}

    def add(self, job_id: str, hold: BudgetHold) -> None:
        alike = (hold.until_us, *hold.units.items(), *hold.prices.items())
        self._alike.setdefault(alike, (hold, []))[1].append(job_id)

    def emit(self, d: Decision) -> None:
        for hold, jobs in self._alike.values():
            for first in range(0, len(jobs), _AT_ONCE):
                d.emit(ledger.BudgetHoldsRenewed(hold=hold, jobs=tuple(jobs[first : first + _AT_ONCE])))
                d.may_end_here()


def topped_up(d: Decision, m: inbox.TopUpBudget) -> None:
    """Until the budget's present period ends. Said again it is meant anew."""
    balance = d.state.budgets.balances.get(m.budget)
    if balance is None:
        there = ", ".join(list(d.state.budgets.balances)[:10]) or "none"
        raise InputRefused(f"there is no budget {m.budget}: `baton budget show` lists them ({there})")
    if balance.about.hard is None:
        raise InputRefused(f"budget {m.budget} has no hard limit: there is nothing to top up")
    d.emit(ledger.BudgetToppedUp(budget=m.budget, amount=m.amount, reason=m.reason, user=m.user))
    renew(d)


def begin_periods(d: Decision) -> None:
    """Periods that are over by the calendar give way to the next ones, before anything else is decided; and those that are to
    come, since the broker's clock was ahead and was set back, to the present ones."""
    budgets = d.state.budgets
    if budgets.applied is None or not budgets:
        return
    zone, balances = budgets.applied.time_zone, budgets.balances.values()
    for _ in range(_MOST_TURNS):
        soonest = min(balances, key=_TO_US)
        if not soonest.over(d.wall_us):
            break
        _begin(d, soonest, soonest.to_us or d.wall_us, zone)
    if min(balances, key=_TO_US).over(d.wall_us) or max(balances, key=_FROM_US).to_come(d.wall_us):
        for balance in balances:
            if balance.over(d.wall_us) or balance.to_come(d.wall_us):
                _begin(d, balance, d.wall_us, zone)


def _begin(d: Decision, balance: BudgetBalance, wall_us: int, time_zone: str) -> None:
    from_us, to_us = period_of(balance.about.period, time_zone, wall_us)
    at_us = d.t_us if not balance.to_us else min(d.t_us, max(d.state.t_us, d.t_us - (d.wall_us - from_us)))
    d.emit(
        ledger.BudgetPeriodBegan(
            period=balance.about.period, from_us=from_us, to_us=to_us, at_us=at_us, wall_us=d.wall_us
        )
    )


def renew(d: Decision) -> None:
    """Holds that fall due are renewed: as a whole, or for as long as a hard budget still covers. Where that is not worth while,
    attempts save their work and end, or go on where the budget says so. What ran already when a budget came to count it has
    one renewal in any case."""
    budgets = d.state.budgets
    if not budgets or budgets.applied is None:
        return
    whole_us = budgets.applied.renewal_s * 1_000_000
    renewed = _Renewals()
    spent_out: list[tuple[Job, BudgetShort]] = []
    spent: dict[str, int] = {}
    for job_id in budgets.overdue(d.t_us):
        job, told = d.state.jobs[job_id], budgets.holds[job_id].told
        if job.current is None or (told and job.current.state not in UNDECIDED):
            continue
        devices = d.state.devices_of(job.current)
        # What it has spent since its hold ran out is held already, and stays spent when it is captured.
        headrooms = [headroom._replace(window_us=whole_us) for headroom in headrooms_of(d.state, job, d.t_us, spent)]
        window_us, short = whole_us, _uncovered(headrooms, devices) if told else None
        if short is not None:
            window_us = max(0, short.available) * whole_us // short.asked
            if window_us < min(_LEAST_US, whole_us):
                spent_out.append((job, short))
                continue
        for headroom in headrooms:
            spent[headroom.key] = spent.get(headroom.key, 0) + headroom._replace(window_us=window_us).cost(devices)
        renewed.add(job_id, terms_of(d.state, job, devices, d.t_us + window_us))
    renewed.emit(d)
    for job, short in spent_out:
        stop(d, job, Cause.BUDGET_SPENT, f"{short.text(job.team)}: it waits for more")
        _tell(d, budgets.balances[short.budget.key], 2)
        d.may_end_here()


def _uncovered(headrooms: list[BudgetHeadroom], devices: list[tuple[str, int]]) -> BudgetShort | None:
    """Of the budgets that stop at their end, the one that covers the least of the renewal; None: all cover it."""
    stops = (headroom for headroom in headrooms if headroom.about.when_spent is WhenSpent.STOP)
    shorts = [short for headroom in stops if (short := headroom.uncovered(devices)) is not None]
    return min(shorts, key=lambda short: Fraction(short.available, short.asked), default=None)


def reached(d: Decision) -> None:
    """Limits that are reached are told, once in each period: the hard one also when it does not cover a renewal."""
    for balance in d.state.budgets.balances.values():
        allowed, soft, spent = balance.allowed, balance.soft, balance.spent(d.t_us)
        if allowed is not None and spent >= allowed:
            _tell(d, balance, 2)
        elif soft is not None and spent >= soft:
            _tell(d, balance, 1)


def _tell(d: Decision, balance: BudgetBalance, level: int) -> None:
    about, limit = balance.about, balance.allowed if level == 2 else balance.soft
    if balance.told >= level or limit is None:
        return
    event = ledger.BudgetReached(
        budget=about.key,
        level="hard" if level == 2 else "soft",
        limit=max(0, limit) // balance.scale,
        spent=balance.spent(d.t_us) // balance.scale,
        teams=tuple(sorted(d.state.tree.below(about.queue or ""))) if about.team is None else (about.team,),
    )
    d.emit(event)
    d.may_end_here()


def let_go(d: Decision) -> None:
    """What is kept for a job that its budgets do not cover any more is open to others: nobody knows when it starts."""
    for job_id in list(d.state.holds):
        job = d.state.jobs[job_id]
        rows = [d.state.fleet.row(device) for device in d.state.holds[job_id]]
        devices = [(d.state.fleet.kind(row), job.shape.milli) for row in rows]
        if any(headroom.uncovered(devices) is not None for headroom in headrooms_of(d.state, job, d.t_us, {})):
            release_hold(d, job_id)
            d.may_end_here()
