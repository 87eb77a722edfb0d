"""Charges: what attempts used, rated, in the order in which the ledger posted it; and corrections of what was billed.

    for charge in charges(records, closed): ...  # records(): the valid ones, (sequence, record), from the first, each time

Each claim is a use from its grant until it is freed, and is rated then, by the book that is applied (`billing.prices`).
When another book is applied that prices a time before it differently, every use so far is rated by both. Where they differ,
that record posts a correction: what the new book makes of an hour, less what was billed. So what was posted is never
changed, and the whole is a function of the ledger alone.

A book may say what bills give back (`billing.credited`): such a credit is posted by the record that closes its attempt, and
corrected with what was billed.

When a charge is billed: in the hour of its use. What is posted for a period that is closed by then, and every correction, is
billed when it is posted. A seal (`PeriodClosed`) counts from the record after the one that it names as the last it knows.

Memory: what is held now, what open attempts were billed, which parts of devices were credited, and what contracts have used of
their months.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from libs.core.billing.credited import CreditedTime, DeviceOfAttempt, GivenBack, Parts, differences, given_back
from libs.core.billing.prices import Amount, PricedBy, PriceList, Quote, Rater, Unchanged
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
    policy: Mapping[CreditCause, int] = {}
    billed, credited, given = Billed(), None, dict[DeviceOfAttempt, Parts]()
    seen = KindsOfUse()
    for seq, record in records():
        if upto_seq is not None and seq > upto_seq:
            return
        until = max((period.to_us for period in closed if period.upto_seq < seq), default=0)
        ended = uses.apply(seq, record)
        posted = max(uses.calendar.wall(record.t_us), until)
        for use in ended:
            seen.note(use)
            amounts = _rated(rater, use)
            billed.note(use, amounts)
            for amount in amounts:
                hour_us = amount.hour * HOUR_US
                late = hour_us < until
                yield Charge(use, amount, version, seq, posted if late else hour_us, late, False)
        found = credited.apply(record, seq, policy) if credited is not None else dict[DeviceOfAttempt, Parts]()
        for device, parts in found.items():
            given[device] = parts
            for use, back in billed.given_back(device, parts):
                hour_us = back.amount.hour * HOUR_US
                late = hour_us < until
                at_us = posted if late else hour_us
                yield Charge(use, back.amount, version, seq, at_us, late, True, credit=back.cause, why=back.why)
        billed.closed(record)
        for event in record.events:
            if isinstance(event, led.PricesApplied):
                version, then = event.book.version, Rater(prices := PriceList(event.book))
                by = Unchanged(rater.prices, prices, uses.calendar.wall(record.t_us), seen.last())
                if same := seen.cost_the_same(by):
                    then.go_on(rater, by.with_tiers)
                for use, was, now in () if same else _twice(records, seq, rater.prices, then):
                    billed.again(use, now)
                    for amount in _corrections(use, was, now, earlier):
                        money = amount.units == 0
                        yield Charge(use, amount, version, seq, posted, True, money, not money)
                    if (parts := given.get((use.job_id, use.attempt, use.device), ())) != ():
                        for back in differences(use.milli, was, now, parts):
                            yield Charge(
                                use, back.amount, version, seq, posted, True, True, False, back.cause, back.why
                            )
                if rater.prices is not None:
                    earlier.append((seq, rater.prices))
                rater, policy = then, event.book.credits
                if credited is None and policy:
                    credited = CreditedTime()
                    for number, before in records():
                        if number > seq:
                            break
                        credited.apply(before, number, {})


def _rated(rater: Rater, use: DeviceUse) -> Sequence[Amount]:
    return rater.rate(use.team, use.device_kind, use.priority_class, use.milli, use.straight)


class KindsOfUse:
    """What kinds of uses there were, so that a book that leaves them as they were is no reason to read all of them again."""

    def __init__(self) -> None:
        self._kinds: dict[PricedBy, tuple[int, int, int]] = {}
        """Team, device kind, class -> the piece of a use that ends last."""

    def note(self, use: DeviceUse) -> None:
        about = (use.team, use.device_kind, use.priority_class)
        known = self._kinds.get(about)
        for piece in use.straight:
            if known is None or piece[2] + piece[1] - piece[0] > known[2] + known[1] - known[0]:
                known = self._kinds[about] = piece

    def last(self) -> dict[PricedBy, int]:
        """Of each, when by the wall the last of it ends."""
        return {about: wall + end - start for about, (start, end, wall) in self._kinds.items()}

    def cost_the_same(self, by: Unchanged) -> bool:
        """Whether another book changes none of them."""
        return all(by.of(*about, (last,)) for about, last in self._kinds.items())


class Billed:
    """What open attempts were billed so far, by device, at the prices of now."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], dict[str, tuple[DeviceUse, Sequence[Amount]]]] = {}

    def note(self, use: DeviceUse, amounts: Sequence[Amount]) -> None:
        self._of.setdefault((use.job_id, use.attempt), {})[use.device] = use, amounts

    def again(self, use: DeviceUse, amounts: Sequence[Amount]) -> None:
        """Another book prices it."""
        if (use.job_id, use.attempt) in self._of:
            self.note(use, amounts)

    def given_back(self, device: DeviceOfAttempt, parts: Parts) -> Iterator[tuple[DeviceUse, GivenBack]]:
        job_id, attempt, name = device
        use, amounts = self._of[job_id, attempt][name]
        return ((use, back) for back in given_back(use.milli, amounts, parts))

    def closed(self, record: led.LedgerRecord) -> None:
        """After the record's credits are told."""
        if self._of:
            for event in record.events:
                if isinstance(event, led.AttemptClosed):
                    self._of.pop((event.job_id, event.attempt), None)


def _twice(
    records: RecordsFromFirst, upto_seq: int, before: PriceList | None, then: Rater
) -> Iterator[tuple[DeviceUse, Sequence[Amount], Sequence[Amount]]]:
    """Each use up to a record, with what it was billed and what it costs by another book; `then` has counted them all
    afterwards."""
    first, uses = Rater(before), Uses()
    for seq, record in records():
        if seq > upto_seq:
            return
        for use in uses.apply(seq, record):
            yield use, _rated(first, use), _rated(then, use)


def _corrections(
    use: DeviceUse, billed: Sequence[Amount], costs: Sequence[Amount], earlier: list[tuple[int, PriceList]]
) -> Iterator[Amount]:
    """What each hour of a use costs more, or less, than was billed. An hour that never had a price is a charge of its own now,
    with its units; one that had is money alone. `earlier`: books that were replaced before, and by which record."""
    was = _by_hour(billed)
    for hour, amounts in _by_hour(costs).items():
        old = was.get(hour, [])
        if all(amount.quote is None for amount in old) and not _was_priced(earlier, use, hour):
            yield from (amount for amount in amounts if amount.quote is not None)
            continue
        list_micros = sum(a.list_micros for a in amounts) - sum(a.list_micros for a in old)
        cost_micros = sum(a.cost_micros for a in amounts) - sum(a.cost_micros for a in old)
        if list_micros or cost_micros:
            yield Amount(hour, 0, _quote_of(amounts) or _quote_of(old), 0, list_micros, cost_micros)


def _was_priced(earlier: list[tuple[int, PriceList]], use: DeviceUse, hour: int) -> bool:
    """Whether a book that was applied since the use was posted had a price for an hour of it: then its units are billed."""
    return any(
        amount.hour == hour and amount.quote is not None
        for until_seq, prices in earlier
        if use.to_seq <= until_seq
        for amount in _rated(Rater(prices), use)
    )


def _by_hour(amounts: Sequence[Amount]) -> dict[int, list[Amount]]:
    found: dict[int, list[Amount]] = {}
    for amount in amounts:
        found.setdefault(amount.hour, []).append(amount)
    return found


def _quote_of(amounts: list[Amount]) -> Quote | None:
    return next((amount.quote for amount in amounts if amount.quote is not None), None)
