"""Charges: what attempts used, rated, in the order in which the ledger posted it; and corrections of what was billed.

    for charge in charges(records, closed): ...  # records(): the valid ones, (sequence, record), from the first, each time

Each claim is a use from its grant until it is freed, and is rated then, by the book that is applied (`billing.prices`).
When another book is applied that prices a time before it differently, every use so far is rated by both. Where they differ,
that record posts a correction: what the new book makes of an hour, less what was billed. So what was posted is never
changed, and the whole is a function of the ledger alone.

A book may say what bills give back (`billing.credited`): such a credit is posted by the record that closes its attempt.

When a charge is billed: in the hour of its use. What is posted for a period that is closed by then, and every correction, is
billed when it is posted. A seal (`PeriodClosed`) counts from the record after the one that it names as the last it knows.

Memory: what is held now, what open attempts were billed, and what contracts have used of their months.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from libs.core.billing.credited import Billed, CreditedMoney, GivenBack
from libs.core.billing.prices import Amount, PriceList, Quote, Rater
from libs.core.billing.uses import DeviceUse as DeviceUse
from libs.core.billing.uses import RecordsFromFirst as RecordsFromFirst
from libs.core.billing.uses import Uses as Uses
from libs.core.billing.wall import HOUR_US
from schemas import ledger as led
from schemas.prices import ClosedPeriod, CreditCause


class Charge(NamedTuple):
    """One row of a bill: a use in one hour at one price, or the correction of one. `billed_us`: by the wall, when it is billed.
    `version`: of the book, 0 without one. `late`: it is of a time before what is open."""

    use: DeviceUse
    amount: Amount
    version: int
    posted_seq: int
    billed_us: int
    late: bool
    correction: bool
    priced_later: bool = False
    """It is of use that was posted without a price, and told to be unpriced, before."""
    credit: CreditCause | None = None
    """It gives back what the book's policy says. Money alone, as a correction."""
    why: str = ""
    """Of a credit: the ledger's own words."""


def charges(
    records: RecordsFromFirst, closed: Sequence[ClosedPeriod] = (), *, upto_seq: int | None = None
) -> Iterator[Charge]:
    """All charges of a ledger up to a record, in the order in which they were posted.

    Args:
        closed: the seals of the whole ledger.
    """
    uses, rater, version = Uses(), Rater(None), 0
    earlier: list[tuple[int, PriceList]] = []
    billed, credited = Billed(), None
    for seq, record in records():
        if upto_seq is not None and seq > upto_seq:
            return
        until = max((period.to_us for period in closed if period.upto_seq < seq), default=0)
        ended = uses.apply(seq, record)
        posted = max(uses.calendar.wall(record.t_us), until)
        for use in ended:
            amounts = _rated(rater, use)
            billed.note(use, amounts)
            for amount in amounts:
                hour_us = amount.hour * HOUR_US
                late = hour_us < until
                yield Charge(use, amount, version, seq, posted if late else hour_us, late, correction=False)
        back: Iterable[GivenBack] = credited.apply(record, seq) if credited is not None else ()
        for given in back:
            hour_us = given.amount.hour * HOUR_US
            late = hour_us < until
            at_us = posted if late else hour_us
            yield Charge(given.use, given.amount, version, seq, at_us, late, True, credit=given.cause, why=given.why)
        billed.closed(record)
        for event in record.events:
            if isinstance(event, led.PricesApplied):
                then = Rater(PriceList(event.book))
                for use, amount in _corrections(records, seq, rater.prices, then, earlier):
                    money = amount.units == 0
                    yield Charge(use, amount, event.book.version, seq, posted, True, money, not money)
                if rater.prices is not None:
                    earlier.append((seq, rater.prices))
                rater, version = then, event.book.version
                if credited is None and event.book.credits:
                    credited = CreditedMoney(records, seq, billed)
                if credited is not None:
                    credited.policy = event.book.credits


def _rated(rater: Rater, use: DeviceUse) -> list[Amount]:
    return rater.rate(use.team, use.device_kind, use.priority_class, use.milli, use.straight)


def _corrections(
    records: RecordsFromFirst,
    upto_seq: int,
    before: PriceList | None,
    then: Rater,
    earlier: list[tuple[int, PriceList]],
) -> Iterator[tuple[DeviceUse, Amount]]:
    """What each hour of each use up to a record costs more, or less, than was billed; `then` has counted them all afterwards.
    An hour that never had a price is a charge of its own now, with its units; one that had is money alone. `earlier`: books
    that were replaced before, and by which record."""
    first, uses = Rater(before), Uses()
    for seq, record in records():
        if seq > upto_seq:
            return
        for use in uses.apply(seq, record):
            was, now = _by_hour(_rated(first, use)), _by_hour(_rated(then, use))
            for hour, amounts in now.items():
                old = was.get(hour, [])
                if all(amount.quote is None for amount in old) and not _was_priced(earlier, use, hour):
                    yield from ((use, amount) for amount in amounts if amount.quote is not None)
                    continue
                list_micros = sum(a.list_micros for a in amounts) - sum(a.list_micros for a in old)
                cost_micros = sum(a.cost_micros for a in amounts) - sum(a.cost_micros for a in old)
                if list_micros or cost_micros:
                    yield use, Amount(hour, 0, _quote_of(amounts) or _quote_of(old), 0, list_micros, cost_micros)


def _was_priced(earlier: list[tuple[int, PriceList]], use: DeviceUse, hour: int) -> bool:
    """Whether a book that was applied since the use was posted had a price for an hour of it: then its units are billed."""
    return any(
        amount.hour == hour and amount.quote is not None
        for until_seq, prices in earlier
        if use.to_seq <= until_seq
        for amount in _rated(Rater(prices), use)
    )


def _by_hour(amounts: list[Amount]) -> dict[int, list[Amount]]:
    found: dict[int, list[Amount]] = {}
    for amount in amounts:
        found.setdefault(amount.hour, []).append(amount)
    return found


def _quote_of(amounts: list[Amount]) -> Quote | None:
    return next((amount.quote for amount in amounts if amount.quote is not None), None)
