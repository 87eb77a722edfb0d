"""Numbered lines of uses in posting order. The newest are objects. Older ones are packed in blocks, whose headers say
which teams and days they contain."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from libs.core.billing.credited import CreditedPart, Parts
from libs.core.billing.prices import PricedBy
from libs.core.billing.use_lines.line import AlikeUses, CreditedUse, UseOwner
from libs.core.billing.use_lines.packing import JobIds, Numbering, packed_columns, running_sums, unpacked_columns
from libs.core.billing.wall import DAY_US
from libs.core.state.parts import SharedTable
from schemas.prices import CreditCause

FRESH: Final = 4096
"""The most lines kept as objects, some 600 bytes each."""
_KEPT_OPEN = 2
"""Blocks kept unpacked after use: questions about a block often repeat."""
PartsByLine = Mapping[int, Sequence[tuple[int, Parts]]]
"""Line -> (index in the line, parts) of its credited devices."""
_NONE = (1 << 62, -1)
"""An empty range."""


@dataclass(frozen=True, slots=True)
class LinesBlock:
    """Lines `first`, `first` + 1, ..., and the credits, of any line, since the previous block. Ranges are (least,
    greatest). `wall`: owner -> first and last moment of use."""

    first: int
    count: int
    jobs: JobIds
    wall: Mapping[PricedBy, tuple[int, int]]
    posted: tuple[int, int]
    last_seq: int
    credited: tuple[int, int]
    """Range of the lines that were credited."""
    credited_us: tuple[int, int]
    """Range of the credited wall time."""
    credited_seq: int
    """Last record with one of these credits."""
    packed: bytes

    @property
    def end(self) -> int:
        return self.first + self.count

    def on(self, team: str | None, of_day: Callable[[int], bool]) -> bool:
        """Whether the block may have lines of the team (or any team) on a selected day (UTC)."""
        return any(
            any(map(of_day, range(since // DAY_US, until // DAY_US + 1)))
            for (name, *_), (since, until) in self.wall.items()
            if team in (None, name)
        )

    def dump(self) -> list[Any]:
        return [
            self.first, self.count, self.jobs.dump(),
            [[*about, *span] for about, span in self.wall.items()], self.posted, self.last_seq, self.credited,
            self.credited_us, self.credited_seq, b64encode(self.packed).decode(),
        ]  # fmt: skip

    @classmethod
    def load(cls, row: Sequence[Any]) -> "LinesBlock":
        first, count, jobs, wall, posted, last_seq, credited, credited_us, credited_seq, packed = row
        spans = {(team, kind, klass): (since, until) for team, kind, klass, since, until in wall}
        return cls(
            first, count, JobIds.load(jobs), spans, _pair(posted), last_seq, _pair(credited),
            _pair(credited_us), credited_seq, b64decode(packed),
        )  # fmt: skip


class UseLines:
    """All lines. Memory: `FRESH` lines as objects, and some 40 bytes per older line."""

    def __init__(self) -> None:
        self.blocks: list[LinesBlock] = []
        self._fresh: list[AlikeUses] = []
        self._credited: list[CreditedUse] = []
        self._parts: dict[int, list[tuple[int, Parts]]] = {}
        """Index of `_credited` by line."""
        self._awaited: dict[int, AlikeUses] = {}
        """Packed lines that may still be credited."""
        self._opened: dict[int, _Opened] = {}
        self._table = SharedTable("lines")

    def __len__(self) -> int:
        return self._first + len(self._fresh)

    @property
    def _first(self) -> int:
        return self.blocks[-1].end if self.blocks else 0

    @property
    def full(self) -> bool:
        """Whether the unpacked lines should be packed."""
        return len(self._fresh) >= FRESH

    def add(self, uses: AlikeUses) -> int:
        """Adds a line; returns its number."""
        self._fresh.append(uses)
        return len(self) - 1

    def credit(self, one: CreditedUse) -> None:
        self._credited.append(one)
        self._parts.setdefault(one.use, []).append((one.place, one.parts))

    def awaited(self, number: int) -> AlikeUses:
        """A line that is unpacked, or was awaiting credits when packed."""
        at = number - self._first
        return self._fresh[at] if at >= 0 else self._awaited[number]

    def last_used(self) -> dict[PricedBy, int]:
        """Kind of use -> wall time of its last end."""
        found: dict[PricedBy, int] = {}
        for spans in (*(block.wall for block in self.blocks), _walls(self._fresh)):
            for about, (_, until) in spans.items():
                found[about] = max(until, found.get(about, until))
        return found

    def settled(self, number: int) -> None:
        """Marks that a line gets no more credits."""
        self._awaited.pop(number, None)

    # ------------------------------------------------------------------------------------------------------------- reading

    def fresh(self) -> Sequence[AlikeUses]:
        """Unpacked lines."""
        return self._fresh

    def opened(self, block: LinesBlock) -> Sequence[AlikeUses]:
        """A block's lines."""
        return self._open(block).lines()

    def of(self, team: str | None, of_day: Callable[[int], bool], job_id: str | None) -> Iterator[AlikeUses]:
        """Lines of a team and job (None: all). Blocks without one of the selected days stay packed."""
        for block in self._blocks_of(team, of_day, job_id):
            yield from self._open(block).of(team, job_id)
        yield from (one for one in self._fresh if team in (None, one.team) and job_id in (None, one.job_id))

    def opens(self, team: str | None, of_day: Callable[[int], bool], job_id: str | None) -> int:
        """Number of lines in blocks that `of` would unpack."""
        return sum(block.count for block in self._blocks_of(team, of_day, job_id))

    def _blocks_of(self, team: str | None, of_day: Callable[[int], bool], job_id: str | None) -> Iterator[LinesBlock]:
        return (block for block in self.blocks if (job_id is None or job_id in block.jobs) and block.on(team, of_day))

    def all(self, wanted: Callable[[LinesBlock], bool] = lambda block: True) -> Iterator[tuple[int, AlikeUses]]:
        """(number, line) in order, without unwanted blocks."""
        for block in filter(wanted, self.blocks):
            yield from enumerate(self.opened(block), start=block.first)
        yield from enumerate(self._fresh, start=self._first)

    def since(self, seq: int) -> Iterator[AlikeUses]:
        """Lines posted by later records."""
        return (one for _, one in self.all(lambda block: block.last_seq > seq) if one.seq > seq)

    def credited(self, wanted: Callable[[LinesBlock], bool] = lambda block: True) -> Iterator[CreditedUse]:
        """Credits in order, without unwanted blocks."""
        for block in self.blocks:
            if block.credited != _NONE and wanted(block):
                yield from self._open(block).credited()
        yield from self._credited

    def credited_since(self, seq: int) -> Iterator[CreditedUse]:
        """Credits posted by later records."""
        return (one for one in self.credited(lambda block: block.credited_seq > seq) if one.seq > seq)

    def credited_of(self, first: int, end: int) -> Iterator[CreditedUse]:
        """Credits of lines [first, end)."""
        found = self.credited(lambda block: block.credited[0] < end and first <= block.credited[1])
        return (one for one in found if first <= one.use < end)

    def parts_of(self, first: int, end: int) -> PartsByLine:
        """Credited parts of lines [first, end)."""
        if first >= self._first:
            return self._parts
        found: dict[int, list[tuple[int, Parts]]] = {}
        for one in self.credited_of(first, end):
            found.setdefault(one.use, []).append((one.place, one.parts))
        return found

    # ------------------------------------------------------------------------------------------------------------- packing

    def pack(self, awaited: Collection[int], jobs: JobIds) -> None:
        """Packs all unpacked lines into a block. `awaited`: lines that may still be credited. `jobs`: a superset of
        their job ids."""
        first = self._first
        self._awaited.update((number, one) for number, one in enumerate(self._fresh, start=first) if number in awaited)
        self.blocks.append(_block(first, self._fresh, self._credited, jobs))
        self._fresh, self._credited, self._parts = [], [], {}

    def await_only(self, awaited: Collection[int]) -> None:
        """Only these lines may still be credited."""
        self._awaited = {number: one for number, one in self._awaited.items() if number in awaited}

    def _open(self, block: LinesBlock) -> "_Opened":
        found = self._opened.pop(block.first, None) or _Opened(block)
        self._opened[block.first] = found
        if len(self._opened) > _KEPT_OPEN:
            del self._opened[next(iter(self._opened))]
        return found

    # ------------------------------------------------------------------------------------------------------------ snapshot

    def dump(self) -> dict[str, Iterable[Any]]:
        """Tables for a snapshot."""
        return {
            "lines": self._table.rows(self.blocks, LinesBlock.dump),
            "uses": iter(self._fresh),
            "credited": iter(self._credited),
            "awaited": ((number, one) for number, one in self._awaited.items()),
        }

    def load_rows(self, table: str, rows: Iterable[Any]) -> None:
        """Loads rows of one table, in the order of `dump`."""
        match table:
            case "lines":
                self.blocks += map(LinesBlock.load, rows)
            case "uses":
                self._fresh += map(_line, rows)
            case "credited":
                for number, place, seq, posted_us, parts in rows:
                    self.credit(CreditedUse(number, place, seq, posted_us, _parts(parts)))
            case "awaited":
                self._awaited.update((number, _line(one)) for number, one in rows)


class _Opened:
    """An unpacked block."""

    def __init__(self, block: LinesBlock) -> None:
        self._jobs = block.jobs
        self._columns, (self._owners, pieces, self._credited) = unpacked_columns(block.packed)
        self._pieces = {number: tuple(map(_triple, some)) for number, some in pieces}
        self._numbers, self._abouts, *_ = self._columns
        _, _, _, _, _, more_seq, begins_after, *_ = self._columns
        self._seq, self._begin = running_sums(more_seq), running_sums(begins_after)
        self._lines: list[AlikeUses] | None = None

    def lines(self) -> Sequence[AlikeUses]:
        if self._lines is None:
            self._lines = list(self._lines_at(np.arange(len(self._seq))))
        return self._lines

    def of(self, team: str | None, job_id: str | None) -> Iterator[AlikeUses]:
        """Lines of a team and job (None: all)."""
        wanted = [n for n, (name, *_) in enumerate(self._owners) if team in (None, name)]
        mask = np.isin(self._abouts, wanted)
        if job_id is not None:
            mask &= self._numbers == self._jobs.number(job_id)
        return self._lines_at(np.flatnonzero(mask))

    def _lines_at(self, places: npt.NDArray[np.intp]) -> Iterator[AlikeUses]:
        columns = (column[places].tolist() for column in (*self._columns, self._seq, self._begin))
        for number, (job, about, attempt, milli, alike, _, _, lasted, add, late, seq, wall) in zip(
            places.tolist(), zip(*columns, strict=True), strict=True
        ):
            straight = self._pieces.get(number)
            if straight is None:
                straight = ((wall - add, wall - add + lasted, wall),)
            team, user, kind, klass = self._owners[about]
            yield AlikeUses(
                team,
                user,
                self._jobs.name(job),
                attempt,
                kind,
                klass,
                milli,
                alike,
                seq,
                wall + lasted + late,
                straight,
            )

    def credited(self) -> Iterator[CreditedUse]:
        for number, place, seq, posted_us, parts in self._credited:
            yield CreditedUse(number, place, seq, posted_us, _parts(parts))


def _block(first: int, lines: Sequence[AlikeUses], credited: Sequence[CreditedUse], jobs: JobIds) -> LinesBlock:
    number_of = jobs.numbers()
    names = Numbering[UseOwner]()
    begins = [one.straight[0][2] if one.straight else one.posted_us for one in lines]
    simple = [
        one.straight[0] if len(one.straight) == 1 else (begin, begin, begin)
        for one, begin in zip(lines, begins, strict=True)
    ]
    columns = [
        [number_of[one.job_id] for one in lines],
        [names((one.team, one.user, one.device_kind, one.priority_class)) for one in lines],
        [one.attempt for one in lines],
        [one.milli for one in lines],
        [one.alike for one in lines],
        [after - before for before, after in pairwise(chain((0,), (one.seq for one in lines)))],
        [after - before for before, after in pairwise(chain((0,), begins))],
        [end - start for start, end, _ in simple],
        [wall - start for start, _, wall in simple],
        [one.posted_us - begin - (end - start) for one, begin, (start, end, _) in zip(lines, begins, simple, strict=True)],
    ]  # fmt: skip
    pieces = [(number, one.straight) for number, one in enumerate(lines) if len(one.straight) != 1]
    return LinesBlock(
        first, len(lines), jobs, _walls(lines), _range(one.posted_us for one in lines),
        max((one.seq for one in lines), default=0),
        _range(one.use for one in credited), _range(one.posted_us for one in credited),
        max((one.seq for one in credited), default=0), packed_columns(columns, [list(names.all), pieces, credited]),
    )  # fmt: skip


def _walls(lines: Iterable[AlikeUses]) -> dict[PricedBy, tuple[int, int]]:
    """Owner -> first and last moment of use, wall time."""
    wall: dict[PricedBy, tuple[int, int]] = {}
    for one in lines:
        for start, end, begin in one.straight:
            since, until = wall.get(one.about, _NONE)
            wall[one.about] = min(since, begin), max(until, begin + end - start)
    return wall


def _range(numbers: Iterable[int]) -> tuple[int, int]:
    least, greatest = _NONE
    for number in numbers:
        least, greatest = min(least, number), max(greatest, number)
    return least, greatest


def _line(row: Sequence[Any]) -> AlikeUses:
    return AlikeUses._make([*row[:-1], tuple(map(_triple, row[-1]))])


def _parts(values: Iterable[Any]) -> Parts:
    return tuple(CreditedPart(CreditCause(cause), *more) for cause, *more in values)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return first, second


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = values
    return first, second, third
