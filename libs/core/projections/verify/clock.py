"""Checks ledger time (I10): it never goes back, and advances no further than clocks explain.

A tick reports clocks that cannot be set. Each record carries the last tick as its mark. Between two records, time may
advance as far as such a clock did, give or take what one input may add by a wall clock alone. If no clock ran through,
the record must report the step as a jump (`clock.jumped`).

Records from before marks get only a plausibility check: a running pool writes a record every few hours. While older
readers live, jumps are not reported, since no newer format may be written. A record that declares its format
(`records`) shows whether that is so; others must report jumps once the ledger has used a kind of a later format.
"""

from dataclasses import dataclass
from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from libs.core.state.formats import FIRST, FORMAT_OF
from schemas import ledger as led
from schemas.clock import BootReading, ClockMark, MeasuredBy

DAY_US = 86_400_000_000
LONGEST_STEP_US = DAY_US
LONGEST_IDLE_STEP_US = 7 * DAY_US
"""The longest steps without marks: a day while billed work runs, else a week. More means that a clock was set."""
PER_INPUT_US = 10_000_000
"""Time that one input may add beyond the clocks. Twice placement's limit, since the checker does not share its
constants."""
_MOST_DEVIATIONS = 1000
"""The most records remembered between two ticks, as a report lists no more."""
RATE = 500
"""Two clocks may differ by one part in this many."""
UNTICKED_US = 300_000_000
UNTICKED_BEFORE_US = DAY_US
"""Without any tick, a moment is past `UNTICKED_US` after it by the records' own time, and `UNTICKED_BEFORE_US` in ledgers
from before ticks reported clocks. The granter of leases ticks, so without ticks nothing runs for long."""


class LedgerTime(Subject):
    """Follows time from record to record."""

    handlers: ClassVar = {led.ClockJumped: "jumped"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._began = False
        self._inbox_seq = 0
        self._mark: ClockMark | None = None
        self._reports_jumps = False
        """The record's format is later than the first; without a declaration: some record used a kind of a later
        format."""
        self._both_report_jumps = False
        """The same held for the record before. Otherwise an older reader lived, and changes between the two go
        unreported."""
        self._step: _Step | None = None
        """From the last mark to this record's."""
        self._inputs = 0
        """The inbox's offset at the last mark."""
        self._deviations: list[_Deviation] = []
        """Records since the last mark whose wall time disagrees with it."""

    def begin(self, record: led.LedgerRecord) -> None:
        books, before, mark = self.books, self._mark, record.clock
        both_report = self._reports_jumps
        if record.format is not None:
            self._reports_jumps = record.format > FIRST
            both_report &= self._reports_jumps
        else:
            self._reports_jumps = self._reports_jumps or any(FORMAT_OF[event.kind] > FIRST for event in record.events)
            both_report = self._reports_jumps
        self._both_report_jumps = both_report
        if record.format is not None and before is not None and (mark is None or record.wall_us is None):
            books.broken("I10", "tells no tick and wall clock any more, by which its time can be judged")
        step_us = record.t_us - books.t_us
        if step_us < 0:
            books.broken("I10", f"time goes back from {books.t_us} to {record.t_us}")
        elif self._began:
            if mark is not None and before is not None:
                self._by_marks(before, mark, record)
            elif step_us > LONGEST_STEP_US:
                self._long_step(step_us)
        if mark is not None and before is not None and record.wall_us is not None:
            self._by_wall(before, mark, record)
        self._began, self._mark = True, mark if mark is not None else before
        self._inbox_seq = max(self._inbox_seq, record.inbox_seq)
        books.t_us = max(record.t_us, books.t_us)
        unticked_us = UNTICKED_US if self._reports_jumps else UNTICKED_BEFORE_US
        books.ticked_us = max(books.ticked_us, self._mark.t_us if self._mark is not None else books.t_us - unticked_us)

    def _by_marks(self, before: ClockMark, mark: ClockMark, record: led.LedgerRecord) -> None:
        broken = self.books.broken
        allowed_us = (1 + max(0, record.inbox_seq - self._inbox_seq)) * PER_INPUT_US
        on_us, reached_us = mark.t_us - before.t_us, max(self.books.t_us, mark.t_us)
        if on_us < 0:
            broken("I10", f"the mark of time goes back from {before.t_us} to {mark.t_us}")
        if record.t_us > reached_us + allowed_us:
            ahead = (record.t_us - reached_us) / 1e6
            broken("I10", f"time is {ahead:g} s ahead of what the last tick said, {allowed_us / 1e6:g} s are allowed")
        ran_us = _elapsed_us(before.readings, mark.readings)
        if ran_us is not None and abs(on_us - ran_us) > allowed_us + ran_us // RATE:
            by, clocks = on_us / 1e6, ran_us / 1e6
            broken(
                "I10", f"time went on by {by:g} s between two ticks, and by {clocks:g} s on a clock that cannot be set"
            )
        self._step = _Step(on_us, mark.wall_us - before.wall_us, allowed_us, ran_us is None)

    def _by_wall(self, before: ClockMark, mark: ClockMark, record: led.LedgerRecord) -> None:
        """Calendars are made from records' wall times. The wall clock may be set once between two ticks, so each record
        must agree with one of the two marks. After a long pause, inputs arrive before the first tick and advance time
        little by little, so the wall clock may be ahead by as much as that tick adds."""
        if mark != before:
            for one in self._deviations:
                behind_us = max(0, mark.t_us - one.t_us)
                nearest_us = min(one.off(before, behind_us), one.off(mark, behind_us))
                if nearest_us > one.allowed_us:
                    nearest_s = nearest_us / 1e6
                    self.books.broken(
                        "I10", f"record {one.seq} shows a wall clock that is {nearest_s:g} s from what ticks say"
                    )
            self._deviations.clear()
            self._inputs = self._inbox_seq
        allowed_us = (2 + max(0, record.inbox_seq - self._inputs)) * PER_INPUT_US
        shown = _Deviation(self.books.seq, record.t_us, record.wall_us or 0, allowed_us)
        if min(shown.off(before), shown.off(mark)) > allowed_us and len(self._deviations) < _MOST_DEVIATIONS:
            self._deviations.append(shown)

    def _long_step(self, step_us: int) -> None:
        running = sum(job.open is not None for job in self.books.jobs.values())
        if running or step_us > LONGEST_IDLE_STEP_US:
            days = f"{step_us / DAY_US:.1f} days"
            self.books.broken("I10", f"time jumps by {days} while {running} attempts are open, and nothing explains it")

    def jumped(self, e: led.ClockJumped) -> None:
        by_wall = e.measured is MeasuredBy.WALL
        if e.estimated != by_wall:
            self.books.broken(
                "I10", f"a jump of the clock was measured by {e.measured.value}; estimated: {e.estimated}"
            )
        if by_wall and e.elapsed_us != max(0, e.to_us - e.from_us):
            self.books.broken("I10", f"a jump by the wall clock from {e.from_us} to {e.to_us} took {e.elapsed_us} us")
        if self._step is not None:
            self._step.reported_us += e.elapsed_us
            self._step.reported_shift_us += e.to_us - e.from_us - (e.elapsed_us if by_wall else 0)
            self._step.estimated |= by_wall

    def end(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        broken, on = self.books.broken, f"time went on by {step.on_us / 1e6:g} s"
        if step.reported_us > max(0, step.on_us) + step.allowed_us:
            broken("I10", f"{on}, and jumps of the clock are told that took {step.reported_us / 1e6:g} s")
        if not self._both_report_jumps:
            return
        if step.unmeasured and not step.estimated and abs(step.on_us) > step.allowed_us:
            broken("I10", f"{on} while no clock ran through, and it is not told as a jump")
        shift_us = step.wall_us - step.on_us
        if abs(shift_us - step.reported_shift_us) > step.allowed_us:
            jumps = f"jumps of {step.reported_shift_us / 1e6:g} s are told"
            broken("I10", f"the wall clock went {shift_us / 1e6:g} s elsewhere than time, and {jumps}")


@dataclass(slots=True)
class _Step:
    """Changes of time between two marks, and those that the record reports."""

    on_us: int
    wall_us: int
    allowed_us: int
    unmeasured: bool
    reported_us: int = 0
    reported_shift_us: int = 0
    estimated: bool = False


@dataclass(slots=True)
class _Deviation:
    """Ledger time and wall time of a record, and how far they may diverge between two ticks."""

    seq: int
    t_us: int
    wall_us: int
    allowed_us: int

    def off(self, mark: ClockMark, behind_us: int = 0) -> int:
        """Distance from a mark's wall time, if ledger time was up to `behind_us` behind at this record."""
        ahead_us = (self.wall_us - self.t_us) - (mark.wall_us - mark.t_us)
        return max(0, ahead_us - behind_us) if ahead_us > 0 else -ahead_us


def _elapsed_us(before: tuple[BootReading, ...], after: tuple[BootReading, ...]) -> int | None:
    """Elapsed time by the ticker's own clock, else by the (lower) median of the other clocks. None: no clock ran
    through."""
    if before and after and before[0].boot == after[0].boot and after[0].at_us >= before[0].at_us:
        return after[0].at_us - before[0].at_us
    known = {reading.boot: reading.at_us for reading in before}
    spans = [reading.at_us - known[reading.boot] for reading in after if reading.boot in known]
    elapsed = sorted(span for span in spans if span >= 0)
    return elapsed[(len(elapsed) - 1) // 2] if elapsed else None
