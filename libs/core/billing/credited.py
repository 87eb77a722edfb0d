"""Credits in money: what a price book gives back of what attempts were billed (`libs.core.billing.credits` says for what).

    credit of an hour = cost of the hour x credited microseconds x share / (microseconds of the hour x 1000)      of each price

Rounded half to even, the sum so far and not each part, so nobody is given back more than was billed. It is told when the
attempt is closed, by the policy of the book that was applied then, at the prices of that book. A later book changes no share;
where it prices the past otherwise, it corrects what was given back as it corrects what was billed (`differences`).
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
    """Of one device of one attempt: `share` thousandths of what [start_us, end_us) of the wall's time cost. `why`: the ledger's
    own words."""

    cause: CreditCause
    why: str
    share: int
    start_us: int
    end_us: int


Parts = tuple[CreditedPart, ...]
"""Of one device of one attempt, in the order in which they were told."""
DeviceOfAttempt = tuple[str, int, str]
"""Job id, attempt, device."""


class CreditedTime:
    """Folds records into the time that is given back. Memory: that of accounts, and of attempts that are open."""

    def __init__(self, recent: int = 0) -> None:
        """`recent`: so many postings of attempts are kept, the newest."""
        self.accounts, self._credits = Accounts(), Credits()
        self.recent: deque[Posting] = deque(maxlen=recent)

    def apply(
        self, record: led.LedgerRecord, seq: int, policy: Mapping[CreditCause, int]
    ) -> dict[DeviceOfAttempt, Parts]:
        """Of what attempts that this record closed."""
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
        """A void record."""
        self.accounts.skip(seq)

    def forget(self, before_us: int) -> None:
        """Of what is recent, what ended before. Anew, not in place: a snapshot may be halfway through it."""
        kept = (posting for posting in self.recent if posting.wall_end_us > before_us)
        self.recent = deque(kept, maxlen=self.recent.maxlen)

    # ------------------------------------------------------------------------------------------------- the snapshot

    def dump(self) -> dict[str, Iterable[Any]]:
        """Tables for a snapshot. A row of `accounts` is as large as a part of one."""
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
    """Of one device in one hour; `amount` has no units. Its money is below 0, or above where less is given back than was."""

    amount: Amount
    cause: CreditCause
    why: str


def given_back(milli: int, amounts: Sequence[Amount], parts: Parts) -> Iterator[GivenBack]:
    """What these parts of a device come to, of which so many thousandths were held. `amounts`: all that it was billed."""
    by_hour: dict[int, list[Amount]] = {}
    for amount in amounts:
        by_hour.setdefault(amount.hour, []).append(amount)
    weights: dict[int, int] = {}  # microseconds x share that are given back so far
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
    """What is given back more, or less, of a device that costs `now` what another book has said: a row an hour and cause."""
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
