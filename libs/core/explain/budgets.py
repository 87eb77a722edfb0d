"""How budgets stand: what was given, is spent, held and available, for people."""

from collections import Counter

from libs.core.state.budgets import BudgetBalance
from libs.core.state.model import State
from schemas.queue_status import BudgetsReply, BudgetStanding
from schemas.subjects import OPERATOR


def budgets_of(state: State, team: str, t_us: int) -> BudgetsReply:
    """All budgets that `team` may see, at `t_us`, no earlier than the state."""
    applied = state.budgets.applied
    currency = state.book.currency if state.book is not None else ""
    queues = tuple(state.tree.queues) if team == OPERATOR else ()
    if applied is None:
        return BudgetsReply(currency=currency, queues=queues)
    jobs: Counter[str] = Counter()
    for of, held in Counter(hold.team for hold in state.budgets.holds.values()).items():
        jobs.update({balance.about.key: held for balance in state.budgets.covering(of)})
    every = state.budgets.balances.values()
    seen = every if team == OPERATOR else state.budgets.covering(team)
    return BudgetsReply(
        version=applied.version,
        time_zone=applied.time_zone,
        renewal_s=applied.renewal_s,
        budgets=tuple(_standing(state, balance, t_us, jobs[balance.about.key]) for balance in seen),
        currency=currency,
        queues=queues,
    )


def _standing(state: State, balance: BudgetBalance, t_us: int, jobs: int) -> BudgetStanding:
    """`jobs`: how many hold some of it."""
    scale, available = balance.scale, state.budgets.available(balance, t_us)
    spent = balance.spent(t_us)
    return BudgetStanding(
        budget=balance.about,
        from_us=balance.from_us,
        to_us=max(0, balance.to_us),
        carried=balance.carried // scale,
        topped_up=balance.topped // scale,
        spent=spent // scale,
        held=-((spent - balance.captured - state.budgets.held(balance, t_us)) // scale),
        available=None if available is None else available // scale,
        soft_reached=balance.told > 0,
        jobs=jobs,
    )
