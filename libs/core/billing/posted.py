"""Money as it was posted, for who answers bills: what each use came to when it ended, what was given back, and what a later
book corrected.

The same rule as an export's (`libs.core.billing.charges`), in sums: a use costs on its day what the book that was applied then
makes of its hours, and a credit gives back on that day; a book that prices the past otherwise adds, on the day on which it is
applied, what it makes of both less what was billed. What is posted for a period that is closed by then is on the day on which
it was posted. Uses are kept, one line for all devices of an attempt that were alike, because a later book rates them again, and
because a seal counts from a record that is there already.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Any, NamedTuple

from libs.core.billing.credited import CreditedPart, DeviceOfAttempt, GivenBack, Parts, differences, given_back
from libs.core.billing.prices import Amount, PriceList, Rater, Unchanged
from libs.core.billing.wall import DAY_US, HOUR_US
from schemas.prices import ClosedPeriod, CreditCause, RateBook

NOT_POSTED = 1 << 62
"""The record of what is held still."""
NOTHING_POSTED = (0, 0, 0, 0)
"""For a row of `PostedMoney.rows` that is not there."""

Key = tuple[str, int, int, str, str, str]
"""Job id, attempt, UTC day, device kind, priority class, user."""
SumKey = tuple[int, str, str]
"""UTC day, device kind, priority class."""


DayOf = Callable[[int], int]
"""The number of the day on which a moment of the wall lies."""


def utc_day(wall_us: int) -> int:
    """Days since 1970-01-01."""
    return wall_us // DAY_US


class AlikeUses(NamedTuple):
    """`alike` claims of one attempt of devices of one kind, one after the other, by the wall: (start, end, start by the wall)
    pieces. Record `seq` posted them, at `posted_us` of the wall."""

    team: str
    user: str
    job_id: str
    attempt: int
    device_kind: str
    priority_class: str
    milli: int
    alike: int
    seq: int
    posted_us: int
    straight: tuple[tuple[int, int, int], ...]


class CreditedUse(NamedTuple):
    """What is given back of one of the devices of a line of uses."""

    use: int
    place: int
    seq: int
    posted_us: int
    parts: Parts


class AppliedBook(NamedTuple):
    seq: int
    posted_us: int
    book: RateBook


class TooManyUses(ValueError):
    """So many would have to be rated anew, more than are rated at once."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{number} uses")
        self.number = number


class PostedMoney:
    """Money by team and row. `book` None: no book is in the ledger, nothing is posted, and a file may say what use costs."""

    def __init__(self, closed: Sequence[ClosedPeriod] = (), day_of: DayOf = utc_day) -> None:
        """`day_of`: the number of the day on which a moment lies."""
        self._day_of = day_of
        self.rows: dict[str, dict[int, dict[Key, list[int]]]] = {}
        """Team -> UTC day -> row -> [cost, list cost, units without a price, what of the cost is credits], in millionths."""
        self.sums: dict[str, dict[SumKey, list[int]]] = {}
        """As `rows`, of all attempts together: what is kept of a team's month grows with its days, and not with its jobs."""
        self.touched: set[tuple[str, int]] = set()
        """(team, UTC day) of sums that changed since whoever keeps them emptied this."""
        self.fresh: list[tuple[str, Key]] = []
        """Rows that are new since whoever counts them emptied this."""
        self.totals: dict[str, int] = {}
        """Team -> cost."""
        self.credits: dict[str, int] = {}
        """Team -> what of its cost is credits."""
        self.unpriced: dict[tuple[str, str], int] = {}
        """(team, device kind) -> units."""
        self._rater = Rater(None)
        self._closed = list(closed)
        self._uses: list[AlikeUses] = []
        self._of_team: dict[str, list[int]] = {}
        """Team -> its lines in `_uses`."""
        self._books: list[AppliedBook] = []
        self._credited: list[CreditedUse] = []
        self._parts: dict[int, list[tuple[int, Parts]]] = {}
        """Line of uses -> (place, parts) of its devices that were credited."""
        self._open: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
        """Attempt that is not closed -> device that is freed -> its line of uses, and its place there."""
        self._lines: set[int] = set()
        """The lines in `_open`."""
        self._tiered: dict[int, list[Sequence[Amount]]] = {}
        """Of `_lines` whose price has tiers: what each device costs by the book of now."""

    @property
    def book(self) -> RateBook | None:
        """The one that is applied now."""
        return self._books[-1].book if self._books else None

    @property
    def prices(self) -> PriceList | None:
        return self._rater.prices

    @property
    def policy(self) -> Mapping[CreditCause, int]:
        """What is given back, thousandths by cause."""
        return self._books[-1].book.credits if self._books else {}

    def ahead(self, day_of: "DayOf | None" = None) -> "PostedMoney":
        """For what is held still: what it would come to, at the prices of now."""
        other = PostedMoney(self._closed, day_of or self._day_of)
        other._books, other._rater = self._books, self._rater.fork()
        return other

    # ----------------------------------------------------------------------------------------------------- what is posted

    def post(self, uses: AlikeUses, devices: Sequence[str] = ()) -> None:
        """What ended, at the prices of now. `devices`: the claims', of an attempt that may be credited."""
        number = self._keep(uses)
        if devices:
            places = self._open.setdefault((uses.job_id, uses.attempt), {})
            places.update((device, (number, place)) for place, device in enumerate(devices))
            self._lines.add(number)
        if self._books:
            each = self._rated(self._rater, number, uses)
            for hour, (cost, listed, unpriced) in _by_hour(each).items():
                self._add(uses, self._day(hour, uses.seq, uses.posted_us), cost, listed, unpriced, 0)

    def _keep(self, uses: AlikeUses) -> int:
        number = len(self._uses)
        self._uses.append(uses)
        self._of_team.setdefault(uses.team, []).append(number)
        return number

    def give_back(self, found: Mapping[DeviceOfAttempt, Parts], seq: int, posted_us: int) -> None:
        """What attempts that are closed by record `seq` are credited; all that they held is posted."""
        for (job_id, attempt, device), parts in found.items():
            number, place = self._open[job_id, attempt][device]
            self._give_back(CreditedUse(number, place, seq, posted_us, parts))

    def close_attempt(self, job_id: str, attempt: int) -> None:
        """Nothing more will be credited."""
        for number, _ in self._open.pop((job_id, attempt), {}).values():
            self._lines.discard(number)
            self._tiered.pop(number, None)

    def apply(self, applied: AppliedBook) -> None:
        """Another book: from now on by it, and what was billed is corrected."""
        first = not self._books
        before, then = Rater(self._rater.prices), Rater(prices := PriceList(applied.book))
        self._books.append(applied)
        self._rater, self._tiered = then, {}
        day = self._day_of(self._posted(applied.seq, applied.posted_us))
        same = Unchanged(before.prices, prices, applied.posted_us)
        for number, uses in enumerate(self._uses):
            if same.of(uses.team, uses.device_kind, uses.priority_class, uses.straight):
                continue
            was_each, now_each = _rated(before, uses), self._rated(then, number, uses)
            was, now = _by_hour(was_each), _by_hour(now_each)
            for hour, (cost, listed, unpriced) in now.items():
                old = was[hour]
                if more := unpriced - (0 if first else old[2]):
                    self._add(uses, self._day(hour, uses.seq, uses.posted_us), 0, 0, more, 0)
                if (cost, listed) != old[:2]:
                    self._add(uses, day, cost - old[0], listed - old[1], 0, 0)
            for place, parts in self._parts.get(number, ()):
                for back in differences(uses.milli, was_each[place], now_each[place], parts):
                    self._credit(uses, day, back)

    def close_period(self, period: ClosedPeriod) -> bool:
        """Seals it. Whether that laid something on another day: what was posted since the seal's record, for that period."""
        self._closed.append(period)
        late = (
            any(
                wall // HOUR_US * HOUR_US < period.to_us
                for one in _since(self._uses, period)
                for _, _, wall in one.straight
            )
            or any(True for _ in _since(self._credited, period))
            or any(one.posted_us < period.to_us for one in _since(self._books, period))
        )
        if late and self._books:
            self._again()
        return late

    def _again(self) -> None:
        """Posts all once more, by the seals that there are now."""
        money = PostedMoney(self._closed, self._day_of)
        money._lines = self._lines | self._parts.keys()
        money._post_all(self._uses, self._credited, self._books)
        money.touched |= self.touched | {(team, key[0]) for team, sums in self.sums.items() for key in sums}
        money._open, money._lines = self._open, self._lines
        money._tiered = {number: each for number, each in money._tiered.items() if number in self._lines}
        self.__dict__.update(money.__dict__)

    def recut(
        self, day_of: DayOf, team: str | None, span: tuple[int, int], most: int
    ) -> tuple["PostedMoney", list[AlikeUses]]:
        """The same, on the days of another calendar, and the uses that it looked at. Whole is what is billed in the span,
        [from, to) of the wall, of one team or of all; what is not needed for that is passed over.

        Raises TooManyUses when more than `most` are needed.
        """
        wanted = self._needed(team, span)
        if len(wanted) > most:
            raise TooManyUses(len(wanted))
        place = {number: here for here, number in enumerate(wanted)}
        uses = [self._uses[number] for number in wanted]
        credited = [one._replace(use=place[one.use]) for one in self._credited if one.use in place]
        money = PostedMoney(self._closed, day_of)
        money._lines = {one.use for one in credited}
        money._post_all(uses, credited, self._books)
        return money, uses

    def _needed(self, team: str | None, span: tuple[int, int]) -> list[int]:
        """The lines of uses of which something is, or may be, billed in a span. Tiers count all that their team used."""
        tiered = {c.team for one in self._books for c in one.book.contracts if len(c.tiers) > 1}
        priced, before = list[Unchanged](), None
        for one in self._books:
            prices = PriceList(one.book)
            if span[0] <= self._posted(one.seq, one.posted_us) < span[1]:
                priced.append(Unchanged(before, prices, one.posted_us))
            before = prices
        span = span[0], span[1] + HOUR_US  # an hour is billed where it begins
        credited = {c.use for c in self._credited if span[0] <= self._posted(c.seq, c.posted_us) < span[1]}
        numbers = range(len(self._uses)) if team is None else self._of_team.get(team, ())
        return [
            number
            for number, one in zip(numbers, map(self._uses.__getitem__, numbers), strict=True)
            if one.team in tiered
            or any(
                wall // HOUR_US * HOUR_US < span[1] and wall + end - start > span[0]
                for start, end, wall in one.straight
            )
            or span[0] <= self._posted(one.seq, one.posted_us) < span[1]
            or number in credited
            or not all(b.of(one.team, one.device_kind, one.priority_class, one.straight) for b in priced)
        ]

    # -------------------------------------------------------------------------------------------------------- shared steps

    def _post_all(
        self, uses: Sequence[AlikeUses], credited: Sequence[CreditedUse], books: Sequence[AppliedBook]
    ) -> None:
        """Those of one record in this order, as they were."""
        posted: Iterator[AlikeUses | CreditedUse | AppliedBook] = merge(uses, credited, books, key=lambda one: one.seq)
        for one in posted:
            match one:
                case AlikeUses():
                    self.post(one)
                case CreditedUse():
                    self._give_back(one)
                case AppliedBook():
                    self.apply(one)

    def _rated(self, rater: Rater, number: int, uses: AlikeUses) -> list[Sequence[Amount]]:
        each = _rated(rater, uses)
        if number in self._lines and not rater.flat(uses.team, uses.device_kind, uses.priority_class):
            self._tiered[number] = each
        return each

    def _give_back(self, one: CreditedUse) -> None:
        uses = self._uses[one.use]
        self._credited.append(one)
        self._parts.setdefault(one.use, []).append((one.place, one.parts))
        each = self._tiered.get(one.use) or _rated(self._rater, uses)
        for back in given_back(uses.milli, each[one.place], one.parts):
            self._credit(uses, self._day(back.amount.hour, one.seq, one.posted_us), back)

    def _credit(self, uses: AlikeUses, day: int, back: GivenBack) -> None:
        self._add(uses, day, back.amount.cost_micros, back.amount.list_micros, 0, back.amount.cost_micros)

    def _day(self, hour: int, seq: int, posted_us: int) -> int:
        """On which what record `seq` posts for an hour is billed."""
        until_us = self._until(seq)
        return self._day_of(hour * HOUR_US if hour * HOUR_US >= until_us else max(posted_us, until_us))

    def _posted(self, seq: int, posted_us: int) -> int:
        """When what record `seq` posts late is billed."""
        return max(posted_us, self._until(seq))

    def _until(self, seq: int) -> int:
        """Up to when periods are closed for what record `seq` posts."""
        return max((period.to_us for period in self._closed if period.upto_seq < seq), default=0)

    def _add(self, uses: AlikeUses, day: int, cost: int, listed: int, unpriced: int, credit: int) -> None:
        key = (uses.job_id, uses.attempt, day, uses.device_kind, uses.priority_class, uses.user)
        rows = self.rows.setdefault(uses.team, {}).setdefault(day, {})
        if (row := rows.get(key)) is None:
            row = rows[key] = [0, 0, 0, 0]
            self.fresh.append((uses.team, key))
        for place, more in enumerate((cost, listed, unpriced, credit)):
            row[place] += more
        self._count(uses.team, key, cost, listed, unpriced, credit)

    def _count(self, team: str, key: Key, cost: int, listed: int, unpriced: int, credit: int) -> None:
        """Of a row: what is more in all that is summed over rows."""
        _, _, day, kind, klass, _ = key
        self.totals[team] = self.totals.get(team, 0) + cost
        if credit:
            self.credits[team] = self.credits.get(team, 0) + credit
        if unpriced:
            self.unpriced[team, kind] = self.unpriced.get((team, kind), 0) + unpriced
        found = self.sums.setdefault(team, {}).setdefault((day, kind, klass), [0, 0, 0, 0])
        for place, more in enumerate((cost, listed, unpriced, credit)):
            found[place] += more
        self.touched.add((team, day))

    # ------------------------------------------------------------------------------------------------------- the snapshot

    def dump(self) -> tuple[dict[str, Any], dict[str, Iterable[Any]]]:
        """For a snapshot: small things, and tables."""
        about = {
            "books": [[seq, posted_us, book.model_dump(mode="json")] for seq, posted_us, book in self._books],
            "closed": [period.model_dump(mode="json") for period in self._closed],
        }
        return about, {
            "money": (
                (team, *key, *row)
                for team, days in sorted(self.rows.items())
                for rows in days.values()
                for key, row in rows.items()
            ),
            "uses": iter(self._uses),
            "credited": iter(self._credited),
            "freed": ([*key, places] for key, places in self._open.items()),
        }

    def load_rows(self, table: str, rows: Iterable[Any]) -> None:
        """Some rows of one of the tables."""
        match table:
            case "money":
                for team, job, attempt, day, kind, klass, user, *row in rows:
                    key = (job, attempt, day, kind, klass, user)
                    self.rows.setdefault(team, {}).setdefault(day, {})[key] = row
                    self._count(team, key, *row)
            case "uses":
                for one in rows:
                    self._keep(AlikeUses._make([*one[:-1], tuple((a, b, c) for a, b, c in one[-1])]))
            case "credited":
                for number, place, seq, posted_us, parts in rows:
                    told = tuple(CreditedPart(CreditCause(cause), *more) for cause, *more in parts)
                    self._credited.append(CreditedUse(number, place, seq, posted_us, told))
                    self._parts.setdefault(number, []).append((place, told))
            case "freed":
                for job, attempt, places in rows:
                    self._open[job, attempt] = {device: (number, place) for device, (number, place) in places.items()}

    def loaded(self, about: Mapping[str, Any]) -> None:
        """All rows are there: counts what contracts have used."""
        self._closed = [ClosedPeriod.model_validate(period) for period in about["closed"]]
        self._books = [
            AppliedBook(seq, posted_us, RateBook.model_validate(book)) for seq, posted_us, book in about["books"]
        ]
        if self._books:
            self._rater = Rater(PriceList(self._books[-1].book))
            self._lines = {number for places in self._open.values() for number, _ in places.values()}
            for number, one in enumerate(self._uses):
                if not self._rater.flat(one.team, one.device_kind, one.priority_class):
                    self._rated(self._rater, number, one)


def _rated(rater: Rater, uses: AlikeUses) -> list[Sequence[Amount]]:
    """Of each device: tiers are used up by one after the other."""
    about = (uses.team, uses.device_kind, uses.priority_class)
    if rater.flat(*about):
        return [rater.rate(*about, uses.milli, uses.straight)] * uses.alike
    return [rater.rate(*about, uses.milli, uses.straight) for _ in range(uses.alike)]


def _by_hour(each: Sequence[Sequence[Amount]]) -> dict[int, tuple[int, int, int]]:
    """Cost, list cost and units without a price of all devices."""
    found: dict[int, tuple[int, int, int]] = {}
    alike = len(each) if each[0] is each[-1] else 1
    for amounts in each[:1] if alike > 1 else each:
        for amount in amounts:
            cost, listed, unpriced = found.get(amount.hour, (0, 0, 0))
            units = amount.units if amount.quote is None else 0
            found[amount.hour] = (
                cost + amount.cost_micros * alike, listed + amount.list_micros * alike, unpriced + units * alike
            )  # fmt: skip
    return found


def _since(posted: Sequence[Any], period: ClosedPeriod) -> Iterator[Any]:
    """What was posted after the record up to which the seal knows."""
    for one in reversed(posted):
        if one.seq <= period.upto_seq:
            return
        yield one
