"""Ledger time: one clock in microseconds that never goes back, and that no wall clock's jump moves. Pure.

Limits, bills and waits are measured in ledger time alone. It follows the broker's timestamps of inputs, because these are
there for every input; but a wall clock may be set, forward or back, at any moment. So each tick says what a clock that
cannot be set (CLOCK_BOOTTIME, with the id of its boot) read when it was sent. From one tick to the next

    the boot clock agrees with the wall clock     ledger time follows the wall clock
    it does not, by more than `TOLERANCE_US`      the wall clock jumped: ledger time follows the boot clock
    there is none to compare (a reboot)           witnesses do it: other machines' boot clocks, carried in ticks
    there is no witness either                    ledger time follows the wall clock, forward only, marked as estimated

A broker that was frozen looks like a clock that was set ahead: the first tick that it stores then was sent when the freeze
began. But the next ones, which waited as well, are stored in the same moment, and boot clocks went on between them. So behind
such a jump ledger time follows the boot clock, until a tick comes when it should; then the wall clock is where it was.

Between two ticks it follows the wall clock, but never by more than `STEP_US` at once: the next tick says how much it was. A
tick that another one has overtaken on its way measures nothing, and counts as any other input.

A ledger from before ticks said this (no `Mark`) is timed as it was: the later of the last time and the wall clock.

What people call an hour or a day is wall time: `Calendar` maps spans of ledger time to it. What the broker has stamped with its
clock lately `PastJumps` maps to ledger time.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from libs.core.state.ended import KEPT_US
from schemas.clock import MOST_READINGS, BootReading, ClockMark, MeasuredBy
from schemas.ledger import ClockJumped, LedgerRecord

STEP_US = 5_000_000
"""The most that ledger time advances on the word of a wall clock alone, between two ticks."""
TOLERANCE_US = 5_000_000
"""Between two ticks, how far the wall clock may differ from a boot clock before it jumped. A tick may wait so long for a
slow disk, and it is not worth a record each time."""
LATE_US = 60_000_000
"""So long after the last tick a tick with older readings is one that was overtaken. After that its readings are believed to be
what clocks say now, whoever lies or was put back: time must not wait for a tick that never comes."""
RATE = 1000
"""One part in so many, in which the rates of two clocks may differ."""
NOTABLE_US = 1_000_000
"""Changes of the distance between ledger time and wall time that are smaller do not move a calendar."""
MOST_JUMPS = 100
"""Of the broker's clock, that are remembered."""
MOST_PIECES = 1000
"""Of a calendar; the oldest are given up first, and what was before them counts as part of the first that is left."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Between two ticks the wall clock went to `to_us` when it should have gone to `from_us`; `elapsed_us` really passed."""

    from_us: int
    to_us: int
    elapsed_us: int
    measured: MeasuredBy


@dataclass(frozen=True, slots=True)
class LedgerClock:
    """Where the ledger's clock stands. Each record says it, so that whoever folds the ledger has it.

    `strayed`: since the mark, the wall clock made a step that could not be taken on its word. It is not in the records:
    who starts anew between such a step and the next tick takes the tick of an unknown boot for an ordinary one.
    `ahead_us`: by so much the wall clock jumped ahead at the last ticks, if these were not stored late. Nor is that in the
    records: who starts anew then takes it for a clock that was set.
    """

    t_us: int = 0
    wall_us: int | None = None
    mark: ClockMark | None = None
    strayed: bool = False
    ahead_us: int = 0

    @classmethod
    def of(cls, record: LedgerRecord) -> "LedgerClock":
        """The clock as a record says it."""
        return cls(record.t_us, record.wall_us, record.clock)

    @property
    def is_behind(self) -> bool:
        """Whether the wall clock has gone on since the last tick, or at it, by more than could be taken on its word: after a
        pause of everything, or of the broker, the next ticks make it whole, or say that the wall clock was set."""
        if self.mark is None or self.wall_us is None:
            return False
        return self.ahead_us > 0 or self.wall_us - self.mark.wall_us > self.t_us - self.mark.t_us

    def input(self, wall_us: int) -> "LedgerClock":
        """The clock after an input other than a tick, stored at `wall_us` by the broker's clock."""
        if self.mark is None:
            return replace(self, t_us=max(self.t_us, wall_us), wall_us=wall_us)
        step = wall_us - (self.wall_us if self.wall_us is not None else wall_us)
        strayed = self.strayed or not 0 <= step <= STEP_US
        return replace(self, t_us=self.t_us + min(max(0, step), STEP_US), wall_us=wall_us, strayed=strayed)

    def tick(self, wall_us: int, readings: tuple[BootReading, ...]) -> tuple["LedgerClock", Jump | None]:
        """The clock after a tick. `readings`: of the ticker's boot clock first, then of witnesses; empty: an old ticker's."""
        mark = self.mark
        if mark is None:
            after = self.input(wall_us)
            return (after._marked(after.t_us, readings), None) if readings else (after, None)
        passed = wall_us - mark.wall_us
        if self.t_us - mark.t_us <= LATE_US and _overtaken(mark.readings, readings):
            return self.input(wall_us), None
        measured = _elapsed(mark.readings, readings)
        jump: Jump | None = None
        ahead = 0
        if measured is None:
            elapsed = max(0, passed)
            step = wall_us - (self.wall_us if self.wall_us is not None else mark.wall_us)
            if self.strayed or not 0 <= step <= STEP_US:
                jump = Jump(mark.wall_us, wall_us, elapsed, MeasuredBy.WALL)
            else:  # another ticker took over, and time went on
                readings = _with_those_of_before(mark.readings, readings, elapsed)
        else:
            by, elapsed = measured
            ahead = max(0, self.ahead_us + passed - elapsed)
            if abs(passed - elapsed) > TOLERANCE_US + elapsed // RATE:
                jump = Jump(mark.wall_us + elapsed, wall_us, elapsed, by)
            elif not self.ahead_us or elapsed - passed <= elapsed // 2:  # it came when it should
                elapsed = max(0, passed) + (self.ahead_us if self.ahead_us <= TOLERANCE_US else 0)
                ahead = 0
        reached = mark.t_us + elapsed
        now = replace(self, t_us=max(self.t_us, reached), wall_us=wall_us, strayed=False, ahead_us=ahead)
        return now._marked(reached, readings), jump

    def _marked(self, reached_us: int, readings: tuple[BootReading, ...]) -> "LedgerClock":
        """`reached_us`: where time is. The ledger's may be ahead of it for a while, as it cannot go back."""
        assert self.wall_us is not None
        return replace(self, mark=ClockMark(t_us=reached_us, wall_us=self.wall_us, readings=readings))


def _with_those_of_before(
    before: Sequence[BootReading], after: Sequence[BootReading], elapsed_us: int
) -> tuple[BootReading, ...]:
    """`after`, and as far as there is room what the clocks of `before` read by now. Two tickers may take turns while one goes:
    the next tick is then of a clock that is known, and measures, whoever sets the wall clock meanwhile."""
    on = (BootReading(boot=reading.boot, at_us=reading.at_us + elapsed_us) for reading in before)
    return tuple([*after, *on][:MOST_READINGS])


def _overtaken(before: Sequence[BootReading], after: Sequence[BootReading]) -> bool:
    """Whether `after` was read before `before`: no clock in both has gone on, and one says less."""
    known = {reading.boot: reading.at_us for reading in before}
    went_on = [reading.at_us - known[reading.boot] for reading in after if reading.boot in known]
    return bool(went_on) and min(went_on) < 0 and max(went_on) <= 0


def _elapsed(before: Sequence[BootReading], after: Sequence[BootReading]) -> tuple[MeasuredBy, int] | None:
    """How long it was, by a clock that ran through: the ticker's own, else that of the witness in the middle, the shorter of
    two, for one of them may lie. None: no clock did."""
    if before and after and before[0].boot == after[0].boot and after[0].at_us >= before[0].at_us:
        return MeasuredBy.BOOT_TIME, after[0].at_us - before[0].at_us
    known = {reading.boot: reading.at_us for reading in before}
    told = sorted(r.at_us - known[r.boot] for r in after if r.at_us >= known.get(r.boot, r.at_us + 1))
    return (MeasuredBy.WITNESS, told[(len(told) - 1) // 2]) if told else None


class BothTimes(NamedTuple):
    """When a record is, in ledger time and by the broker's clock; None: that is not known any more."""

    t_us: int
    wall_us: int | None


class PastJump(NamedTuple):
    """A jump of the broker's clock, as the ledger told it."""

    t_us: int
    """When, in ledger time."""
    shown_us: int
    """What the clock would have shown then."""
    to_us: int
    """What it showed."""
    ahead_us: int
    """By so much ledger time was ahead of it before; less than 0: behind."""


class PastJumps:
    """Maps what the broker has stamped lately to ledger time: by the distance of the two clocks when it was stamped.

    Today's distance is wrong for a stamp of before a jump: what was stored before a moment then seems to come after it. To
    compare wall times does not help, because a clock that was set back shows the same times twice. Of a stamp that it has shown
    twice the later time counts: what comes late is rare. Jumps stay for as long as a stamp may matter (`KEPT_US`), `MOST_JUMPS`
    at the most; what was stamped before the oldest counts as if there had been none before.
    """

    def __init__(self, rows: Iterable[Sequence[int]] = ()) -> None:
        self._jumps = [PastJump(*row) for row in rows]

    def note(self, e: ClockJumped, t_us: int, wall_us: int) -> None:
        """The ledger tells a jump, in a record of `t_us`, when the broker's clock showed `wall_us`."""
        shown_us = e.from_us + (e.elapsed_us if e.measured is MeasuredBy.WALL else 0)
        if shown_us == e.to_us:
            return  # the wall clock was believed
        last = PastJump(t_us, shown_us, e.to_us, t_us - wall_us + e.to_us - shown_us)
        self._jumps = [*(one for one in self._jumps if one.t_us >= t_us - KEPT_US), last][-MOST_JUMPS:]

    def ledger_time(self, stamp_us: int, wall_us: int, ahead_us: int) -> int:
        """When the broker's clock showed `stamp_us`, now that it shows `wall_us` and ledger time is `ahead_us` ahead of it. Of
        a cluster one server's clock may be somewhat ahead of another's."""
        latest_us = wall_us + TOLERANCE_US
        for jump in reversed(self._jumps):
            if jump.to_us <= stamp_us <= latest_us:
                break
            latest_us, ahead_us = jump.shown_us, jump.ahead_us
        return stamp_us + ahead_us

    def since(self, t_us: int) -> bool:
        """Whether one came after this ledger time."""
        return bool(self._jumps) and self._jumps[-1].t_us > t_us

    def rows(self) -> list[list[int]]:
        return [list(jump) for jump in self._jumps]

    def __bool__(self) -> bool:
        return bool(self._jumps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PastJumps) and self._jumps == other._jumps


class Calendar:
    """Maps ledger time to wall time: pieces (ledger time from which on it holds, microseconds to add), in order."""

    def __init__(self, pieces: Iterable[Sequence[int]] = ()) -> None:
        self._from: list[int] = []
        self._add: list[int] = []
        for since, add in pieces:
            self._from.append(since)
            self._add.append(add)

    @property
    def pieces(self) -> list[tuple[int, int]]:
        return list(zip(self._from, self._add, strict=True))

    @property
    def last(self) -> tuple[int, int] | None:
        """The piece that holds now; None before the first."""
        return (self._from[-1], self._add[-1]) if self._from else None

    def hear(self, record: LedgerRecord) -> None:
        """Notes what a record says. After a pause of everything inputs come before the first tick, and take ledger time along
        by little: the wall clock is ahead of it by what the tick will add, and was not set. So where a record shows the wall
        clock ahead of what the last tick says, the tick counts; if it was set, the next tick says so a second later."""
        wall_us, mark = record.wall_us, record.clock
        if wall_us is not None and mark is not None:
            wall_us = min(wall_us, record.t_us + mark.wall_us - mark.t_us)
        self.note(record.t_us, wall_us)

    def note(self, t_us: int, wall_us: int | None) -> None:
        """A record says that at ledger time `t_us` it was `wall_us`; None: an old one, whose time was the wall's."""
        add = 0 if wall_us is None else wall_us - t_us
        if abs(add - (self._add[-1] if self._add else 0)) < NOTABLE_US:
            return
        self._from.append(t_us)
        self._add.append(add)
        if len(self._from) > MOST_PIECES:
            del self._from[0], self._add[0]

    def wall(self, t_us: int) -> int:
        """Wall time at ledger time `t_us`, as it was shown then."""
        at = bisect_right(self._from, t_us) - 1
        return t_us + (self._add[at] if at >= 0 else 0)

    def split(self, start_us: int, end_us: int, period_us: int) -> Iterator[tuple[int, int]]:
        """(number of the period in wall time, microseconds of ledger time) of the span [start_us, end_us) of ledger time.

        The parts add up to the span exactly. A period may come twice: after a jump back its hour was there twice.
        """
        while start_us < end_us:
            at = bisect_right(self._from, start_us)
            stop = min(end_us, self._from[at]) if at < len(self._from) else end_us
            add = self._add[at - 1] if at else 0
            while start_us < stop:
                period = (start_us + add) // period_us
                until = min(stop, (period + 1) * period_us - add)
                yield period, until - start_us
                start_us = until

    def straight(self, start_us: int, end_us: int) -> Iterator[tuple[int, int, int]]:
        """The span [start_us, end_us) of ledger time in pieces within which the wall clock did not jump, each as (start, end,
        wall time at its start); nothing when it is empty or reversed."""
        while start_us < end_us:
            at = bisect_right(self._from, start_us)
            stop = min(end_us, self._from[at]) if at < len(self._from) else end_us
            yield start_us, stop, start_us + (self._add[at - 1] if at else 0)
            start_us = stop
