"""What operators say about money: the price book, and that a period is closed. Placement prices nothing: it keeps the order."""

from libs.core.billing.prices import problems
from libs.core.scheduling.reactions.decision import Decision, InputRefused, check_version
from libs.core.state.moments import text_of
from schemas import inbox, ledger


def prices_applied(d: Decision, m: inbox.ApplyPrices) -> None:
    """All or nothing."""
    now = d.state.book
    if now == m.book:
        return
    if now is not None:
        check_version(m.book.version, now.version, look="`baton audit`")
    if now is not None and m.book.currency != now.currency:
        raise InputRefused(
            f"currency {m.book.currency} is not {now.currency}, which the pool bills in: convert the prices, or give "
            f"another currency a pool of its own"
        )
    if wrong := problems(m.book, d.state.fleet.offered(), first=now is None):
        first = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputRefused(f"{'.'.join(map(str, first.place))} = {first.value}: {first.problem}; {first.fix}{more}")
    event = ledger.PricesApplied(book=m.book, reason=m.reason, user=m.user)
    if not d.may(event):
        raise InputRefused("a reader of this ledger is of a release that knows no price book: `baton ledger readers`")
    if m.book.credits and not d.credits:
        raise InputRefused(
            "credits: a reader of this ledger is of a release that knows no credits in bills: `baton ledger readers`"
        )
    d.emit(event)


def period_closed(d: Decision, m: inbox.ClosePeriod) -> None:
    """Periods follow each other without a gap, and none that is not over yet is closed. Whether who closes it knew this ledger
    was looked at before (`libs.ledger.sealer`). That the totals are right is no matter of placement: whoever has the ledger
    recomputes them (`baton ledger verify`, `baton bill verify`)."""
    period, closed = m.period, d.state.closed_us
    if period.to_us <= period.from_us:
        raise InputRefused(
            f"the period ends at {text_of(period.to_us)} and begins at {text_of(period.from_us)}: an end comes after its start"
        )
    if closed is not None and period.to_us <= closed[1]:
        raise InputRefused(
            f"bills are closed up to {text_of(closed[1])} already: later corrections are rows of the open period"
        )
    if closed is not None and period.from_us != closed[1]:
        raise InputRefused(
            f"the period begins at {text_of(period.from_us)}, and bills are closed up to {text_of(closed[1])}: begin there"
        )
    if period.to_us > d.wall_us:
        raise InputRefused(
            f"the period ends at {text_of(period.to_us)}, and it is {text_of(d.wall_us)}: close it when it is over"
        )
    event = ledger.PeriodClosed(period=period, reason=m.reason, user=m.user)
    if not d.may(event):
        raise InputRefused("a reader of this ledger is of a release that closes no periods: `baton ledger readers`")
    d.emit(event)
