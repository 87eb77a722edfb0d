"""Charges: rated use in the order in which the ledger posted it, and corrections of what was billed.

    for charge in charges(records, closed): ...  # records() yields the valid (sequence, record) anew on each call

A use is one claim from its grant until it is freed. It is rated when it is freed, by the price book in force then
(`billing.prices`). When a new book changes prices of the past, every earlier use is rated by both books. Where they
differ, the record that applied the new book posts a correction: the new cost of an hour minus what was billed. Posted
charges never change, and all charges are a function of the ledger.

A book may grant credits (`billing.credited`). The record that closes an attempt posts its credits; they are corrected
like charges.

A charge is billed in the hour of its use. If that hour's period is already closed, the charge is billed when it is
posted, as every correction is. A seal (`PeriodClosed`) applies from the record after the last one that it names.

Memory: devices held now, amounts billed to open attempts, credited parts of devices, and each contract's use this
month.
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
    """One row of a bill: one use in one hour at one price, or its correction. `billed_us`: wall time at which it is
    billed. `version`: of the price book, 0 without one. `late`: its hour lies before the open period."""

    use: DeviceUse
    amount: Amount
    version: int
    posted_seq: int
    billed_us: int
    late: bool
    correction: bool
    priced_later: bool = False
    """The use was posted unpriced, and has a price now."""
    credit: CreditCause | None = None
    """A credit of the book's policy: money without units, like a correction."""
    why: str = ""
    """Cause of a credit, in the ledger's words."""


def charges(
    records: RecordsFromFirst, closed: Sequence[ClosedPeriod] = (), *, upto_seq: int | None = None
) -> Iterator[Charge]:
    """All charges of the ledger up to `upto_seq`, in posting order.

    Args:
        closed: all seals of the ledger.
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
                for use, was, now in () if same else _rated_by_both(records, seq, rater.prices, then):
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
    """The kinds of use so far. If a new book leaves all of them unchanged, the ledger need not be read again."""

    def __init__(self) -> None:
        self._kinds: dict[PricedBy, tuple[int, int, int]] = {}
        """Team, device kind, class -> the piece that ends last."""

    def note(self, use: DeviceUse) -> None:
        about = (use.team, use.device_kind, use.priority_class)
        known = self._kinds.get(about)
        for piece in use.straight:
            if known is None or piece[2] + piece[1] - piece[0] > known[2] + known[1] - known[0]:
                known = self._kinds[about] = piece

    def last(self) -> dict[PricedBy, int]:
        """Wall time at which the last use of each kind ends."""
        return {about: wall + end - start for about, (start, end, wall) in self._kinds.items()}

    def cost_the_same(self, by: Unchanged) -> bool:
        """Whether the new book changes the cost of none of them."""
        return all(by.of(*about, (last,)) for about, last in self._kinds.items())


class Billed:
    """Amounts billed so far to open attempts, by device, at current prices."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], dict[str, tuple[DeviceUse, Sequence[Amount]]]] = {}

    def note(self, use: DeviceUse, amounts: Sequence[Amount]) -> None:
        self._of.setdefault((use.job_id, use.attempt), {})[use.device] = use, amounts

    def again(self, use: DeviceUse, amounts: Sequence[Amount]) -> None:
        """Replaces a use's amounts after another book was applied."""
        if (use.job_id, use.attempt) in self._of:
            self.note(use, amounts)

    def given_back(self, device: DeviceOfAttempt, parts: Parts) -> Iterator[tuple[DeviceUse, GivenBack]]:
        job_id, attempt, name = device
        use, amounts = self._of[job_id, attempt][name]
        return ((use, back) for back in given_back(use.milli, amounts, parts))

    def closed(self, record: led.LedgerRecord) -> None:
        """Forgets the attempts that the record closes. Call it after their credits were posted."""
        if self._of:
            for event in record.events:
                if isinstance(event, led.AttemptClosed):
                    self._of.pop((event.job_id, event.attempt), None)


def _rated_by_both(
    records: RecordsFromFirst, upto_seq: int, before: PriceList | None, then: Rater
) -> Iterator[tuple[DeviceUse, Sequence[Amount], Sequence[Amount]]]:
    """Each use up to a record with its billed amounts and its amounts by the new book. Afterwards `then` has counted
    all of them."""
    first, uses = Rater(before), Uses()
    for seq, record in records():
        if seq > upto_seq:
            return
        for use in uses.apply(seq, record):
            yield use, _rated(first, use), _rated(then, use)


def _corrections(
    use: DeviceUse, billed: Sequence[Amount], costs: Sequence[Amount], earlier: list[tuple[int, PriceList]]
) -> Iterator[Amount]:
    """For each hour of a use: the new cost minus the billed cost. An hour that never had a price becomes a charge with
    units; any other is money alone. `earlier`: replaced books, each with the record that replaced it."""
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
    """Whether any book since the use was posted had a price for that hour; if so, its units are billed already."""
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
