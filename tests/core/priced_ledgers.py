"""Random ledgers with prices: books at any instant, of the past and of the future, contracts with tiers, periods that are
closed; around summer time, leap days and new years."""

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from libs.core.billing.prices import problems
from schemas import ledger as led
from schemas.prices import ClosedPeriod, ContractRate, CreditCause, ListRate, RateBook, RateTier, Term
from tests.core.random_ledgers import RandomLedger

HOUR_US = 3_600_000_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")
"""With summer time on either half of the globe, by half an hour as well, and halves of hours all year."""
STARTS = tuple(
    int(datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000
    for moment, zone in (
        ("2027-03-27T22:10", "Europe/Berlin"), ("2027-10-30T23:59:59", "Europe/Berlin"),
        ("2027-03-13T20:00", "America/New_York"), ("2027-11-06T23:00", "America/New_York"),
        ("2028-02-27T12:00", "UTC"), ("2028-02-29T23:59:58", "Asia/Kolkata"),
        ("2027-02-27T23:30", "UTC"), ("2027-12-31T22:00", "UTC"), ("2027-04-03T22:30", "Australia/Lord_Howe"),
        ("2027-10-02T23:00", "Australia/Lord_Howe"),
    )
)  # fmt: skip
KINDS = ("H100", "H100:1g.10gb", "H100:2g.20gb", "H100:3g.40gb", "H100:4g.40gb", "H100:7g.80gb")
PRICES = (0, 1, 7, 333_333, 999_999, 1_000_001, 2_990_000, 10**9 + 1)


class PricedLedger(RandomLedger):
    """A ledger with books, most of which say what bills give back, and seals. `closed` are its seals."""

    def __init__(self, seed: int, steps: int = 40) -> None:
        self.closed: list[ClosedPeriod] = []
        self.version = 0
        self.last: RateBook | None = None
        super().__init__(seed, steps, STARTS[seed % len(STARTS)] + seed % 3_600_000_011)

    def _prices(self) -> Iterator[Any]:
        self.version += 1
        causes = self.random.sample(list(CreditCause), self.random.choice((0, 1, 2, 3, 4, 4)))
        credits = {cause: self.random.choice((1, 333, 1000)) for cause in causes}
        book = self.last if self.last is not None and self.random.random() < 0.4 else self._book()
        if book is self.last:
            book = self._later(book)
        book = book.model_copy(update={"credits": credits, "version": self.version})
        if not problems(book):
            self.last = book
            yield led.PricesApplied(book=book, reason="so", user="olga")

    def _close(self) -> Iterator[Any]:
        wall_us = self.t_us + self.jump_us
        last = self.closed[-1].to_us if self.closed else wall_us - 50 * 24 * HOUR_US
        if wall_us <= last:
            return
        period = ClosedPeriod(
            from_us=last, to_us=self.random.randint(last + 1, wall_us), upto_seq=len(self.records), head="a" * 64,
            rows="b" * 64, currency="USD",
        )  # fmt: skip
        self.closed.append(period)
        yield led.PeriodClosed(period=period, reason="invoiced", user="olga")

    def _moments(self, count: int) -> list[int]:
        """Near what has happened, to the microsecond of it, or to come."""
        times = [r.wall_us or r.t_us for r in self.records[-12:]] + [self.t_us + self.jump_us]
        near = (0, 1, -1, HOUR_US // 2, -HOUR_US, 25 * HOUR_US, -90_000_000_007)
        return sorted({max(0, self.random.choice(times) + self.random.choice(near)) for _ in range(count)})

    def _book(self) -> RateBook:
        chance, prices = self.random, list[ListRate]()
        for kind in KINDS:
            for klass in ("*", *chance.sample(("experiment", "production"), 1)):
                if chance.random() < 0.3:
                    continue
                cuts = [chance.choice((0, *self._moments(1))), *self._moments(chance.randint(0, 3))]
                ends = [*sorted(set(cuts)), None if chance.random() < 0.8 else max(cuts) + 7]
                prices += [
                    ListRate(
                        device=kind, priority_class=klass, micros=chance.choice(PRICES), from_us=since or 0, to_us=until,
                        term=chance.choice((Term.STANDARD, Term.SPOT)),
                    )
                    for since, until in pairwise(ends)
                ]  # fmt: skip
        if not prices:
            prices = [ListRate(device="H100", micros=1, from_us=0)]
        book = RateBook(version=self.version, currency="USD", prices=tuple(prices))
        for team in ("red", "blue"):
            book = self._with_contract(book, team)
        return book

    def _later(self, book: RateBook) -> RateBook:
        """As it was but for one price, mostly for one of a time to come: what was used costs what it did."""
        chance, now = self.random, self.t_us + self.jump_us + HOUR_US
        at = chance.randrange(len(book.prices))
        one = book.prices[at]
        since = max(one.from_us, now if chance.random() < 0.8 else one.from_us + HOUR_US)
        if one.to_us is not None and one.to_us <= since:
            return book
        parts = (
            one.model_copy(update={"to_us": since}),
            one.model_copy(update={"from_us": since, "micros": chance.choice(PRICES)}),
        )
        kept = tuple(part for part in parts if part.to_us is None or part.from_us < part.to_us)
        return book.model_copy(update={"prices": (*book.prices[:at], *kept, *book.prices[at + 1 :])})

    def _with_contract(self, book: RateBook, team: str) -> RateBook:
        """With a contract of the team, if the list prices cover its time."""
        chance = self.random
        above = sorted({0, *chance.sample((1, 2, 5, 17, 60, 300), chance.randint(0, 3))})
        more = book.model_copy(
            update={
                "contracts": (
                    *book.contracts,
                    ContractRate(
                        team=team, contract=f"c-{team}", device=chance.choice(KINDS[:1] * 4 + KINDS),
                        priority_class=chance.choice(("*", "*", "experiment")), term=chance.choice(tuple(Term)),
                        from_us=chance.choice((0, *self._moments(2))), to_us=chance.choice((None, self.t_us + 10**13)),
                        tiers=tuple(RateTier(above_hours=hours, micros=chance.choice(PRICES)) for hours in above),
                    ),
                )
            }
        )  # fmt: skip
        return book if problems(more) else more


PricedLedger.verbs = (*RandomLedger.verbs, "prices", "prices", "close", "grant", "release", "release", "release")
