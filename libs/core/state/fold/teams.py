"""What events of teams change in the state: their queues, quotas and budgets, and what is paid for."""

from collections.abc import Callable
from typing import Any

from libs.core.state import lifecycle
from libs.core.state.clock import BothTimes
from libs.core.state.ended import KEPT_US
from libs.core.state.limits import Limits, Suspension
from libs.core.state.model import State, running
from libs.core.state.queue_tree import QueueTree
from libs.core.state.waiting import moved, park, unpark
from schemas import ledger as led


def _quota_set(state: State, e: led.QuotaSet, t_us: int) -> None:
    limits = Limits.of(e.limit_milli, e.by_type)
    if limits is None:
        state.quotas.pop(e.team, None)
    else:
        state.quotas[e.team] = limits


def _queues_applied(state: State, e: led.QueuesApplied, t_us: int) -> None:
    state.tree = QueueTree.said(e)
    state.past_use.begins((e.half_life_s or 0) * 1_000_000, state.used, t_us)
    state.past_use_by.begins((e.half_life_s or 0) * 1_000_000, state.used_by, t_us)
    _share_by_user(state)
    state.budgets.rebase(state.tree, _attempts(state) if state.budgets else (), t_us)


def _share_by_user(state: State) -> None:
    """Jobs stand in the queues of their users, or of their teams, as the tree says from here on."""
    by_user: dict[str, bool] = {}
    for job in state.jobs.values():
        if job.team not in by_user:
            by_user[job.team] = state.tree.by_user(job.team)
        if job.by_user is not by_user[job.team]:
            with moved(state, job):
                job.shares(by_user[job.team])


def _team_suspended(state: State, e: led.TeamSuspended, t_us: int) -> None:
    known = state.suspended.get(e.team)
    state.suspended[e.team] = Suspension(known.since_us if known is not None else t_us, e.reason, e.user)
    park(state, e.team)


def _team_left(state: State, e: led.TeamLeft, t_us: int) -> None:
    if e.team not in state.suspended:
        raise lifecycle.Forbidden(f"team {e.team} has left, and is not suspended")
    state.left[e.team] = t_us


def _team_resumed(state: State, e: led.TeamResumed, t_us: int) -> None:
    del state.suspended[e.team]
    state.left.pop(e.team, None)
    state.resumed.pop(e.team, None)
    state.resumed = {team: at for team, at in state.resumed.items() if at.t_us >= t_us - KEPT_US}
    state.resumed[e.team] = BothTimes(t_us, state.wall_us)
    unpark(state, e.team)


def _prices_applied(state: State, e: led.PricesApplied, t_us: int) -> None:
    state.book = e.book


def _period_closed(state: State, e: led.PeriodClosed, t_us: int) -> None:
    state.closed_us = (state.closed_us[0] if state.closed_us else e.period.from_us, e.period.to_us)


def _budgets_applied(state: State, e: led.BudgetsApplied, t_us: int) -> None:
    state.budgets.apply(e.budgets, state.tree, _attempts(state), t_us)


def _budget_topped_up(state: State, e: led.BudgetToppedUp, t_us: int) -> None:
    state.budgets.top_up(e.budget, e.amount)


def _budget_period_began(state: State, e: led.BudgetPeriodBegan, t_us: int) -> None:
    state.budgets.turn(e.period, e.from_us, e.to_us, e.at_us, e.wall_us)


def _budget_holds_renewed(state: State, e: led.BudgetHoldsRenewed, t_us: int) -> None:
    for job_id in e.jobs:
        attempt = state.jobs[job_id].current
        if attempt is None:
            raise lifecycle.Forbidden(f"{job_id} has a hold renewed and no open attempt")
        state.budgets.renew(job_id, state.devices_of(attempt), e.hold, t_us)


def _budget_reached(state: State, e: led.BudgetReached, t_us: int) -> None:
    state.budgets.reached(e.budget, 2 if e.level == "hard" else 1)


def _attempts(state: State) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Job, team and devices of every open attempt."""
    return [(job.id, job.team, state.devices_of(job.current)) for job in running(state) if job.current is not None]


FOLD: dict[type, Callable[[State, Any, int], None]] = {
    led.QuotaSet: _quota_set,
    led.QueuesApplied: _queues_applied,
    led.TeamSuspended: _team_suspended,
    led.TeamLeft: _team_left,
    led.TeamResumed: _team_resumed,
    led.PricesApplied: _prices_applied,
    led.PeriodClosed: _period_closed,
    led.BudgetsApplied: _budgets_applied,
    led.BudgetToppedUp: _budget_topped_up,
    led.BudgetPeriodBegan: _budget_period_began,
    led.BudgetHoldsRenewed: _budget_holds_renewed,
    led.BudgetReached: _budget_reached,
}
