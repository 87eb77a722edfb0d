"""Credits in money: what a price book returns of what attempts were billed (causes: `libs.core.billing.credits`).

    credit of an hour = cost of the hour x credited microseconds x share / (microseconds of the hour x 1000)      at each price

The running sum is rounded half to even, not each part, so no credit exceeds the bill. A credit is posted when its
attempt closes, by the policy and prices of the book in force then. A later book changes no share. If it changes past
prices, credits are corrected as charges are (`differences`).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from libs.core.billing.accounts import Account, Accounts, Posting
from libs.core.billing.credits import WHOLE, Credits
from libs.core.billing.prices import Amount, Quote
from libs.core.billing.rounding import round_half_even
from libs.core.billing.wall import HOUR_US
from schemas import ledger as led
from schemas.prices import CreditCause


class CreditedPart(NamedTuple):
    """`share` thousandths of the cost of one device of an attempt in [start_us, end_us), wall time. `why`: in the
    ledger's words."""

    cause: CreditCause
    why: str
    share: int
    start_us: int
    end_us: int


Parts = tuple[CreditedPart, ...]
"""The parts of one device of one attempt, in posting order."""
DeviceOfAttempt = tuple[str, int, str]
"""Job id, attempt, device."""


class CreditedTime:
    """Folds records into credited time. Memory: the accounts, and open attempts."""

    def __init__(self, recent: int = 0) -> None:
        """`recent`: number of postings of attempts to keep, newest first."""
        self.accounts, self._credits = Accounts(), Credits()
        self.recent: deque[Posting] = deque(maxlen=recent)

    def apply(
        self, record: led.LedgerRecord, seq: int, policy: Mapping[CreditCause, int]
    ) -> dict[DeviceOfAttempt, Parts]:
        """Credits of the attempts that this record closed."""
        found: dict[DeviceOfAttempt, Parts] = {}
        postings = self.accounts.apply(record, seq)
        self.recent.extend(posting for posting in postings if posting.attempt)
        for credit in self._credits.apply(record, seq, postings):
            if share := policy.get(credit.cause, 0):
                p = credit.posting
                part = CreditedPart(credit.cause, credit.why, share, p.wall_start_us, p.wall_end_us)
                key = (p.job_id, p.attempt, p.device)
                found[key] = (*found.get(key, ()), part)
        return found

    def skip(self, seq: int) -> None:
        """Skips a void record."""
        self.accounts.skip(seq)

    def forget(self, before_us: int) -> None:
        """Drops recent postings that ended before. Makes a new list, since a snapshot may be reading the old one."""
        kept = (posting for posting in self.recent if posting.wall_end_us > before_us)
        self.recent = deque(kept, maxlen=self.recent.maxlen)

    # ------------------------------------------------------------------------------------------------- the snapshot

    def dump(self) -> dict[str, Iterable[Any]]:
        """Tables for a snapshot. A row of `accounts` is as large as one part of its dump."""
        return {
            "accounts": (part.decode() for part in self.accounts.dump()),
            "credits": self._credits.dump(),
            "recent": iter(self.recent),
        }

    @classmethod
    def load(
        cls, accounts: Iterable[str], credits: Iterable[Any], recent: Iterable[Any], most: int = 0
    ) -> "CreditedTime":
        """The inverse of `dump`."""
        found = cls(most)
        found.recent.extend(Posting._make([Account(account), *more]) for account, *more in recent)
        found.accounts = Accounts.load(part.encode() for part in accounts)
        found._credits.load(credits)
        return found


class GivenBack(NamedTuple):
    """Credit for one device in one hour, by `amount` without units. Money below 0 is a credit, above 0 a reduced
    credit."""

    amount: Amount
    cause: CreditCause
    why: str


def given_back(milli: int, amounts: Sequence[Amount], parts: Parts) -> Iterator[GivenBack]:
    """The credits for these parts of a device of which `milli` thousandths were held. `amounts`: everything it was
    billed."""
    by_hour: dict[int, list[Amount]] = {}
    for amount in amounts:
        by_hour.setdefault(amount.hour, []).append(amount)
    weights: dict[int, int] = {}  # microseconds x share credited so far
    for part in parts:
        start = part.start_us
        while start < part.end_us:
            hour = start // HOUR_US
            stop = min(part.end_us, (hour + 1) * HOUR_US)
            before = weights.get(hour, 0)
            after = weights[hour] = before + (stop - start) * part.share
            of_hour = by_hour.get(hour, [])
            whole = sum(amount.units for amount in of_hour) // milli * WHOLE
            for amount in of_hour:
                cost = amount.cost_micros
                if micros := round_half_even(cost * after, whole) - round_half_even(cost * before, whole):
                    yield GivenBack(Amount(hour, 0, amount.quote, amount.tier, -micros, -micros), part.cause, part.why)
            start = stop


def differences(milli: int, was: Sequence[Amount], now: Sequence[Amount], parts: Parts) -> Iterator[GivenBack]:
    """Changes of a device's credits when its cost changes from `was` to `now`: one row per hour and cause."""
    sums: dict[tuple[int, CreditCause, str], tuple[Quote | None, int]] = {}
    for amounts, sign in ((was, -1), (now, 1)):
        for (hour, cause, why), some in groupby(
            given_back(milli, amounts, parts), key=lambda given: (given.amount.hour, given.cause, given.why)
        ):
            quote, micros = sums.get((hour, cause, why), (None, 0))
            for given in some:
                quote = given.amount.quote
                micros += sign * given.amount.cost_micros
            sums[hour, cause, why] = quote, micros
    for (hour, cause, why), (quote, micros) in sums.items():
        if micros:
            yield GivenBack(Amount(hour, 0, quote, 0, micros, micros), cause, why)
