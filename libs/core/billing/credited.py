"""Credits in money: what a price book gives back of what attempts were billed (`libs.core.billing.credits` says for what).

    credit of an hour = cost of the hour x credited microseconds x share / (microseconds of the hour x 1000)      of each price

Rounded half to even, the sum so far and not each part, so nobody is given back more than was billed. It is told when the
attempt is closed, at the prices at which it was billed and by the policy of the book that was applied then; a later book
changes neither.

Memory: of attempts that are open, what their devices that are freed were billed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from libs.core.billing.accounts import Accounts
from libs.core.billing.credits import WHOLE, Credit, Credits
from libs.core.billing.prices import Amount
from libs.core.billing.rounding import round_half_even
from libs.core.billing.uses import DeviceUse, RecordsFromFirst
from libs.core.billing.wall import HOUR_US
from schemas import ledger as led
from schemas.prices import CreditCause


class GivenBack(NamedTuple):
    """Of one device in one hour at one price; `amount` has no units, and money below 0."""

    use: DeviceUse
    amount: Amount
    cause: CreditCause
    why: str


class Billed:
    """What open attempts were billed so far, by device."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], dict[str, tuple[DeviceUse, Sequence[Amount]]]] = {}

    def note(self, use: DeviceUse, amounts: Sequence[Amount]) -> None:
        self._of.setdefault((use.job_id, use.attempt), {})[use.device] = use, amounts

    def of(self, job_id: str, attempt: int) -> Mapping[str, tuple[DeviceUse, Sequence[Amount]]]:
        return self._of.get((job_id, attempt), {})

    def closed(self, record: led.LedgerRecord) -> None:
        """After the record's credits are told."""
        if self._of:
            for event in record.events:
                if isinstance(event, led.AttemptClosed):
                    self._of.pop((event.job_id, event.attempt), None)


class CreditedMoney:
    """Folds records into what is given back. Made when the first book with a policy is applied, by record `seq`."""

    def __init__(self, records: RecordsFromFirst, seq: int, billed: Billed) -> None:
        self.policy: Mapping[CreditCause, int] = {}
        self._accounts, self._credits, self._billed = Accounts(), Credits(), billed
        for number, record in records():
            if number > seq:
                break
            self._credits.apply(record, number, self._accounts.apply(record, number))

    def apply(self, record: led.LedgerRecord, seq: int) -> Iterator[GivenBack]:
        """What this record gives back; `billed` has what it freed already."""
        given: dict[tuple[str, int, str, int], int] = {}
        for credit in self._credits.apply(record, seq, self._accounts.apply(record, seq)):
            share = self.policy.get(credit.cause, 0)
            found = self._billed.of(credit.posting.job_id, credit.posting.attempt).get(credit.posting.device)
            if share and found is not None:
                yield from _of(credit, share, *found, given)


def _of(
    credit: Credit, share: int, use: DeviceUse, amounts: Sequence[Amount], given: dict[tuple[str, int, str, int], int]
) -> Iterator[GivenBack]:
    """`given`: (job, attempt, device, hour) -> microseconds x share that are given back so far."""
    by_hour: dict[int, list[Amount]] = {}
    for amount in amounts:
        by_hour.setdefault(amount.hour, []).append(amount)
    start, end = credit.posting.wall_start_us, credit.posting.wall_end_us
    while start < end:
        hour = start // HOUR_US
        stop = min(end, (hour + 1) * HOUR_US)
        key = (use.job_id, use.attempt, use.device, hour)
        before = given.get(key, 0)
        after = given[key] = before + (stop - start) * share
        amounts = by_hour.get(hour, [])
        whole = sum(amount.units for amount in amounts) // use.milli * WHOLE
        for amount in amounts:
            cost = amount.cost_micros
            if micros := round_half_even(cost * after, whole) - round_half_even(cost * before, whole):
                less = Amount(hour, 0, amount.quote, amount.tier, -micros, -micros)
                yield GivenBack(use, less, credit.cause, credit.why)
        start = stop
