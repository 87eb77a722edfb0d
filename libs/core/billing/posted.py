"""Posted money, for answering bills: the cost of each use when it ended, credits, and corrections by later books.

The same rule as the exports' (`libs.core.billing.charges`), as sums. A use costs, on its day, what the book in force
made of its hours; a credit counts on the same day. When a book that changes past prices is applied, the difference is
added on the day of that record. What is posted late, for a closed period, counts on the day of posting.

Uses are kept, one line for all equal devices of an attempt, because a later book rates them again and a seal applies
from an earlier record on. Old lines and rows are packed (`libs.core.billing.use_lines`).
"""

import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

from libs.core.billing.credited import DeviceOfAttempt, GivenBack, Parts, differences, given_back
from libs.core.billing.prices import Amount, PriceList, Rater, Unchanged
from libs.core.billing.use_lines.line import AlikeUses, CreditedUse, DayOf, Key, any_day, utc_day
from libs.core.billing.use_lines.lines import LinesBlock, UseLines
from libs.core.billing.use_lines.money_rows import FRESH_ROWS, RowsBlock, packed_rows, rows_of
from libs.core.billing.use_lines.packing import JobIds
from libs.core.billing.wall import HOUR_US
from libs.core.state.parts import SharedTable
from schemas.prices import ClosedPeriod, CreditCause, RateBook

NOT_POSTED = 1 << 62
"""The record number for use that is still open."""
NOTHING_POSTED = (0, 0, 0, 0)
"""Default for rows missing from `PostedMoney.rows`."""

SumKey = tuple[int, str, str]
"""UTC day, device kind, priority class."""


class AppliedBook(NamedTuple):
    seq: int
    posted_us: int
    book: RateBook


class PastBook(NamedTuple):
    """An applied book, kept to rate old uses again: compressed JSON, a hundredth of the object's size."""

    seq: int
    posted_us: int
    packed: bytes

    @classmethod
    def of(cls, one: AppliedBook) -> "PastBook":
        return cls(one.seq, one.posted_us, zlib.compress(one.book.model_dump_json().encode()))

    @property
    def book(self) -> RateBook:
        return RateBook.model_validate_json(zlib.decompress(self.packed))


class TooManyUses(ValueError):
    """A question needs more uses rated again than are allowed at once."""


class PostedMoney:
    """Money by team and row. Without a book in the ledger (`book` None) nothing is posted, and the service's price file
    may price use."""

    def __init__(self, closed: Sequence[ClosedPeriod] = (), day_of: DayOf = utc_day) -> None:
        """`day_of`: day number of a moment."""
        self._day_of = day_of
        self.rows: dict[str, dict[int, dict[Key, list[int]]]] = {}
        """Team -> UTC day -> row -> [cost, list cost, units without a price, credits within the cost], in millionths:
        added since the last block in `packed`."""
        self.packed: list[RowsBlock] = []
        """A row may be in several blocks and in `rows`; its value is the sum."""
        self._table = SharedTable("packed")
        self._fresh_rows = 0
        self.sums: dict[str, dict[SumKey, list[int]]] = {}
        """As `rows`, summed over attempts, so that a team's month grows with its days and not with its jobs."""
        self.touched: set[tuple[str, int]] = set()
        """(team, UTC day) of changed sums. Their reader clears it."""
        self.fresh: list[tuple[str, Key]] = []
        """New rows. Their reader clears it."""
        self.totals: dict[str, int] = {}
        """Team -> cost."""
        self.credits: dict[str, int] = {}
        """Team -> credits within its cost."""
        self.unpriced: dict[tuple[str, str], int] = {}
        """(team, device kind) -> units."""
        self._rater = Rater(None)
        self._closed = list(closed)
        self.lines = UseLines()
        self.book: RateBook | None = None
        """The book in force; None without one."""
        self._books: list[PastBook] = []
        """All earlier books."""
        self._tiered_teams: set[str] = set()
        """Teams with tiers in any book."""
        self._open: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
        """Open attempt -> freed device -> (line of uses, index in the line)."""
        self._lines: set[int] = set()
        """The lines in `_open`."""
        self._tiered: dict[int, list[Sequence[Amount]]] = {}
        """Lines in `_lines` whose price has tiers -> each device's amounts by the current book."""

    @property
    def prices(self) -> PriceList | None:
        return self._rater.prices

    @property
    def policy(self) -> Mapping[CreditCause, int]:
        """Credit policy: cause -> thousandths."""
        return self.book.credits if self.book is not None else {}

    def ahead(self, day_of: "DayOf | None" = None) -> "PostedMoney":
        """A rater for use that is still open, at current prices."""
        other = PostedMoney(self._closed, day_of or self._day_of)
        other.book, other._books, other._rater = self.book, self._books, self._rater.fork()
        return other

    def all_rows(
        self, team: str | None = None, of_day: Callable[[int], bool] = any_day, job_id: str | None = None
    ) -> Iterator[tuple[str, Key, Sequence[int]]]:
        """(team, row, value) of the selected days. A row may occur several times; its value is the sum. `team`,
        `job_id` None: all."""
        for block in self.packed:
            if block.has(team, of_day, job_id):
                yield from block.rows(team, of_day, job_id)
        yield from rows_of(self.rows, team, of_day, job_id)

    # ----------------------------------------------------------------------------------------------------- what is posted

    def post(self, uses: AlikeUses, devices: Sequence[str] = ()) -> None:
        """Posts ended uses at current prices. `devices`: of the claims, if the attempt may be credited."""
        number = self.lines.add(uses)
        if devices:
            places = self._open.setdefault((uses.job_id, uses.attempt), {})
            places.update((device, (number, place)) for place, device in enumerate(devices))
            self._lines.add(number)
        if self._books:
            each = self._rated(self._rater, number, uses)
            for hour, (cost, listed, unpriced) in _by_hour(each).items():
                self._add(uses, self._day(hour, uses.seq, uses.posted_us), cost, listed, unpriced, 0)

    def give_back(self, found: Mapping[DeviceOfAttempt, Parts], seq: int, posted_us: int) -> None:
        """Posts credits of attempts that record `seq` closes. All their use is posted by then."""
        for (job_id, attempt, device), parts in found.items():
            number, place = self._open[job_id, attempt][device]
            self._give_back(CreditedUse(number, place, seq, posted_us, parts))

    def close_attempt(self, job_id: str, attempt: int) -> None:
        """Ends an attempt: no more credits."""
        for number, _ in self._open.pop((job_id, attempt), {}).values():
            self._lines.discard(number)
            self._tiered.pop(number, None)
            self.lines.settled(number)

    def apply(self, applied: AppliedBook) -> bool:
        """Puts another book in force, and corrects what was billed. Returns whether anything was corrected."""
        first = not self._books
        before, then = Rater(self._rater.prices), Rater(prices := PriceList(applied.book))
        same = Unchanged(before.prices, prices, applied.posted_us, self.lines.last_used())
        then.go_on(self._rater, same.with_tiers)
        self._tiered = {
            number: each
            for number, each in self._tiered.items()
            if same.with_tiers(*self.lines.awaited(number).about[:2])
        }
        self._use_book(applied.book)
        self._books.append(PastBook.of(applied))
        self._rater = then
        day = self._day_of(self._posted(applied.seq, applied.posted_us))
        corrected = False
        for uses, number, parts in self._with_parts(lambda block: not same.of_all(block.wall)):
            if same.of(*uses.about, uses.straight):
                continue
            corrected = True
            was_each, now_each = _rated(before, uses), self._rated(then, number, uses)
            was, now = _by_hour(was_each), _by_hour(now_each)
            for hour, (cost, listed, unpriced) in now.items():
                old = was[hour]
                if more := unpriced - (0 if first else old[2]):
                    self._add(uses, self._day(hour, uses.seq, uses.posted_us), 0, 0, more, 0)
                if (cost, listed) != old[:2]:
                    self._add(uses, day, cost - old[0], listed - old[1], 0, 0)
            for place, some in parts:
                for back in differences(uses.milli, was_each[place], now_each[place], some):
                    self._credit(uses, day, back)
            if self._fresh_rows >= FRESH_ROWS:
                self._pack_rows()
                self.fresh.clear()  # everything is counted again
        return corrected

    def _past(self) -> Iterator[AppliedBook]:
        return (AppliedBook(one.seq, one.posted_us, one.book) for one in self._books)

    def _use_book(self, book: RateBook) -> None:
        self.book = book
        self._tiered_teams.update(contract.team for contract in book.contracts if len(contract.tiers) > 1)

    def _with_parts(
        self, wanted: Callable[[LinesBlock], bool]
    ) -> Iterator[tuple[AlikeUses, int, Sequence[tuple[int, Parts]]]]:
        """(number, line, credits) of each line in the selected blocks, and of each unpacked line."""
        lines = self.lines
        for block in filter(wanted, lines.blocks):
            parts = lines.parts_of(block.first, block.end)
            for number, uses in enumerate(lines.opened(block), start=block.first):
                yield uses, number, parts.get(number, ())
        first = len(lines) - len(lines.fresh())
        parts = lines.parts_of(first, len(lines))
        for number, uses in enumerate(lines.fresh(), start=first):
            yield uses, number, parts.get(number, ())

    def close_period(self, period: ClosedPeriod) -> bool:
        """Closes a period. Returns whether a posting moved to another day: one for that period since the seal's record."""
        self._closed.append(period)
        late = (
            any(
                wall // HOUR_US * HOUR_US < period.to_us
                for one in self.lines.since(period.upto_seq)
                for _, _, wall in one.straight
            )
            or any(True for _ in self.lines.credited_since(period.upto_seq))
            or any(one.seq > period.upto_seq and one.posted_us < period.to_us for one in self._books)
        )
        if late and self._books:
            self._repost()
        return late

    def _repost(self) -> None:
        """Posts everything again under the present seals."""
        money = PostedMoney(self._closed, self._day_of)
        money._lines = self._lines | {one.use for one in self.lines.credited()}
        uses = (uses for _, uses in self.lines.all())
        money._post_all(uses, self.lines.credited(), self._past(), packed=True)
        money.touched |= self.touched | {(team, key[0]) for team, sums in self.sums.items() for key in sums}
        money._open, money._lines = self._open, self._lines
        money.lines.await_only(self._lines)
        money._tiered = {number: each for number, each in money._tiered.items() if number in self._lines}
        self.__dict__.update(money.__dict__)

    def recut(
        self, day_of: DayOf, team: str | None, span: tuple[int, int], most: int
    ) -> tuple["PostedMoney", list[AlikeUses]]:
        """The same money by the days of another calendar, and the uses that were rated. Only what is billed in `span`
        ([from, to), wall time) for the team, or all teams, is complete; the rest is skipped.

        Raises TooManyUses when more than `most` uses are needed.
        """
        needed = self._needed(team, span)
        found = list(islice(needed, most + 1))
        if len(found) > most:
            raise TooManyUses(f"more than {most} uses")
        wanted, uses = [number for number, _ in found], [one for _, one in found]
        place = {number: here for here, number in enumerate(wanted)}
        first, end = (wanted[0], wanted[-1] + 1) if wanted else (0, 0)
        credited = [one._replace(use=place[one.use]) for one in self.lines.credited_of(first, end) if one.use in place]
        money = PostedMoney(self._closed, day_of)
        money._lines = {one.use for one in credited}
        money._post_all(uses, credited, self._past())
        return money, uses

    def _needed(self, team: str | None, span: tuple[int, int]) -> Iterator[tuple[int, AlikeUses]]:
        """The lines of uses that are, or may be, billed in a span. With tiers, all use of the team counts."""
        priced = [
            Unchanged(PriceList(before.book) if before is not None else None, PriceList(one.book), one.posted_us)
            for before, one in pairwise([None, *self._books])
            if one is not None and span[0] <= self._posted(one.seq, one.posted_us) < span[1]
        ]
        used = span[0], span[1] + HOUR_US  # an hour is billed where it starts
        credited = {
            one.use
            for one in self.lines.credited(
                lambda block: (
                    block.credited_us[0] < span[1]
                    and span[0] <= max(block.credited_us[1], self._until(block.credited_seq))
                )
            )
            if span[0] <= self._posted(one.seq, one.posted_us) < span[1]
        }
        ascending = sorted(credited)

        def may(block: LinesBlock) -> bool:
            """Whether the block may contain a needed line."""
            if bisect_left(ascending, block.first) < bisect_left(ascending, block.end):
                return True
            late = block.posted[0] < span[1] and span[0] <= max(block.posted[1], self._until(block.last_seq))
            for about, (since, until) in block.wall.items():
                if team in (None, about[0]) and (
                    late
                    or about[0] in self._tiered_teams
                    or (since // HOUR_US * HOUR_US < used[1] and until > used[0])
                    or not all(book.of_all({about: (since, until)}) for book in priced)
                ):
                    return True
            return False

        return (
            (number, one)
            for number, one in self.lines.all(may)
            if team in (None, one.team)
            and (
                one.team in self._tiered_teams
                or any(
                    wall // HOUR_US * HOUR_US < used[1] and wall + end - start > used[0]
                    for start, end, wall in one.straight
                )
                or span[0] <= self._posted(one.seq, one.posted_us) < span[1]
                or number in credited
                or not all(book.of(*one.about, one.straight) for book in priced)
            )
        )

    # -------------------------------------------------------------------------------------------------------- shared steps

    def _post_all(
        self,
        uses: Iterable[AlikeUses],
        credited: Iterable[CreditedUse],
        books: Iterable[AppliedBook],
        *,
        packed: bool = False,
    ) -> None:
        """Posts uses and credits in their order, record by record. `packed`: pack on the way."""
        posted: Iterator[AlikeUses | CreditedUse | AppliedBook] = merge(uses, credited, books, key=lambda one: one.seq)
        for one in posted:
            match one:
                case AlikeUses():
                    self.post(one)
                case CreditedUse():
                    self._give_back(one)
                case AppliedBook():
                    self.apply(one)
            if packed:
                self.pack()

    def pack(self) -> None:
        """Packs lines and rows once there are enough."""
        if self.lines.full:
            ids = chain((one.job_id for one in self.lines.fresh()), (key[0] for _, key, _ in rows_of(self.rows)))
            jobs = JobIds.of(ids)
            self.lines.pack(self._lines, jobs)
            self._pack_rows(jobs)
        elif self._fresh_rows >= FRESH_ROWS:
            self._pack_rows()

    def _pack_rows(self, jobs: JobIds | None = None) -> None:
        """`jobs`: ids that a block of lines already stores."""
        self.packed.append(packed_rows(self.rows, jobs))
        self.rows, self._fresh_rows = {}, 0

    def _rated(self, rater: Rater, number: int, uses: AlikeUses) -> list[Sequence[Amount]]:
        each = _rated(rater, uses)
        if number in self._lines and not rater.flat(*uses.about):
            self._tiered[number] = each
        return each

    def _give_back(self, one: CreditedUse) -> None:
        uses = self.lines.awaited(one.use)
        self.lines.credit(one)
        each = self._tiered.get(one.use) or _rated(self._rater, uses)
        for back in given_back(uses.milli, each[one.place], one.parts):
            self._credit(uses, self._day(back.amount.hour, one.seq, one.posted_us), back)

    def _credit(self, uses: AlikeUses, day: int, back: GivenBack) -> None:
        self._add(uses, day, back.amount.cost_micros, back.amount.list_micros, 0, back.amount.cost_micros)

    def _day(self, hour: int, seq: int, posted_us: int) -> int:
        """The day on which what record `seq` posts for an hour is billed."""
        until_us = self._until(seq)
        return self._day_of(hour * HOUR_US if hour * HOUR_US >= until_us else max(posted_us, until_us))

    def _posted(self, seq: int, posted_us: int) -> int:
        """When a late posting of record `seq` is billed."""
        return max(posted_us, self._until(seq))

    def _until(self, seq: int) -> int:
        """End of the closed periods for postings of record `seq`."""
        return max((period.to_us for period in self._closed if period.upto_seq < seq), default=0)

    def _add(self, uses: AlikeUses, day: int, cost: int, listed: int, unpriced: int, credit: int) -> None:
        key = (uses.job_id, uses.attempt, day, uses.device_kind, uses.priority_class, uses.user)
        rows = self.rows.setdefault(uses.team, {}).setdefault(day, {})
        if (row := rows.get(key)) is None:
            row = rows[key] = [0, 0, 0, 0]
            self._fresh_rows += 1
            self.fresh.append((uses.team, key))
        for place, more in enumerate((cost, listed, unpriced, credit)):
            row[place] += more
        self._count(uses.team, (day, uses.device_kind, uses.priority_class), cost, listed, unpriced, credit)

    def _count(self, team: str, key: SumKey, cost: int, listed: int, unpriced: int, credit: int) -> None:
        """Adds a row's change to all sums over rows."""
        day, kind, _ = key
        self.totals[team] = self.totals.get(team, 0) + cost
        if credit:
            self.credits[team] = self.credits.get(team, 0) + credit
        if unpriced:
            self.unpriced[team, kind] = self.unpriced.get((team, kind), 0) + unpriced
        found = self.sums.setdefault(team, {}).setdefault(key, [0, 0, 0, 0])
        for place, more in enumerate((cost, listed, unpriced, credit)):
            found[place] += more
        self.touched.add((team, day))

    # ------------------------------------------------------------------------------------------------------- the snapshot

    def dump(self) -> tuple[dict[str, Any], dict[str, Iterable[Any]]]:
        """For a snapshot: a header, and tables."""
        about = {
            "closed": [period.model_dump(mode="json") for period in self._closed],
        }
        return about, {
            "books": ((seq, posted_us, b64encode(packed).decode()) for seq, posted_us, packed in self._books),
            "sums": (
                (team, *key, *row) for team, sums in sorted(self.sums.items()) for key, row in sorted(sums.items())
            ),
            **self.lines.dump(),
            "packed": self._dump_packed(),
            "money": (
                (team, *key, *row)
                for team, days in sorted(self.rows.items())
                for rows in days.values()
                for key, row in rows.items()
            ),
            "freed": ([*key, places] for key, places in self._open.items()),
            "contracts": self._rater.dump(),
            "tiered": self._tiered.items(),
        }

    def _dump_packed(self) -> Iterator[Any]:
        """Ids stored with lines are not written again."""
        with_lines = {id(block.jobs): number for number, block in enumerate(self.lines.blocks)}
        return self._table.rows(self.packed, lambda block: block.dump(with_lines.get(id(block.jobs))))

    def load_rows(self, table: str, rows: Iterable[Any]) -> None:
        """Loads rows of one table."""
        match table:
            case "books":
                self._books += (PastBook(seq, posted_us, b64decode(packed)) for seq, posted_us, packed in rows)
            case "sums":
                for team, day, kind, klass, *row in rows:
                    self._count(team, (day, kind, klass), *row)
            case "packed":
                jobs = [block.jobs for block in self.lines.blocks]
                self.packed += (RowsBlock.load(row, jobs) for row in rows)
            case "money":
                for team, job, attempt, day, kind, klass, user, *row in rows:
                    key = (job, attempt, day, kind, klass, user)
                    self.rows.setdefault(team, {}).setdefault(day, {})[key] = row
                    self._fresh_rows += 1
            case "freed":
                for job, attempt, places in rows:
                    self._open[job, attempt] = {device: (number, place) for device, (number, place) in places.items()}
            case "contracts":
                self._rater.load_rows(rows)
            case "tiered":
                for number, each in rows:
                    self._tiered[number] = [[*map(Amount.load, amounts)] for amounts in each]
            case _:
                self.lines.load_rows(table, rows)

    def loaded(self, about: Mapping[str, Any]) -> None:
        """Finishes loading, after all rows."""
        self._closed = [ClosedPeriod.model_validate(period) for period in about["closed"]]
        self._lines = {number for places in self._open.values() for number, _ in places.values()}
        for book in self._past():
            self._use_book(book.book)
        if self.book is not None:
            self._rater.prices = PriceList(self.book)


def _rated(rater: Rater, uses: AlikeUses) -> list[Sequence[Amount]]:
    """The amounts of each device. Tiers are used up device by device."""
    if rater.flat(*uses.about):
        return [rater.rate(*uses.about, uses.milli, uses.straight)] * uses.alike
    return [rater.rate(*uses.about, uses.milli, uses.straight) for _ in range(uses.alike)]


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
