"""Ledger time: what jumps of the broker's clock, reboots and silence do to it, and to bills by the hour."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.billing.metering import Meter
from libs.core.state.clock import MOST_JUMPS, MOST_PIECES, STEP_US, Calendar, Jump, LedgerClock, PastJumps
from libs.core.state.ended import KEPT_US
from schemas.clock import BootReading, MeasuredBy
from schemas.ledger import ClockJumped, LedgerRecord
from tests.core import builders

S = 1_000_000
HOUR = 3600 * S
START = 1_800_000_000 * S


@dataclass
class Wall:
    """Real time and a wall clock that can be set; ticks of one machine, or of the next after a reboot."""

    clock: LedgerClock = field(default_factory=LedgerClock)
    real_us: int = 0
    set_by_us: int = 0
    boot: str = "boot-1"
    witness: str = ""
    jumps: list[Jump] = field(default_factory=list)

    @property
    def wall_us(self) -> int:
        return START + self.real_us + self.set_by_us

    def tick(self, *, old: bool = False) -> None:
        readings = (BootReading(boot=self.boot, at_us=self.real_us + 77 * S),)
        if self.witness:
            readings += (BootReading(boot=self.witness, at_us=self.real_us + 5 * S),)
        self.clock, jump = self.clock.tick(self.wall_us, () if old else readings)
        if jump is not None:
            self.jumps.append(jump)

    def ticks(self, seconds: int, *, old: bool = False) -> None:
        for _ in range(seconds):
            self.real_us += S
            self.tick(old=old)

    def input(self) -> None:
        self.clock = self.clock.input(self.wall_us)


@pytest.fixture
def wall() -> Wall:
    made = Wall()
    made.tick()
    return made


def test_while_nobody_sets_it_ledger_time_is_the_brokers_clock(wall: Wall) -> None:
    for _ in range(100):
        wall.real_us += S // 3
        wall.input()
        wall.ticks(1)
        assert wall.clock.t_us == wall.wall_us
    assert wall.jumps == []


@pytest.mark.parametrize("by", [3 * HOUR, 3 * HOUR // 180, -120 * S, -3 * HOUR])
def test_a_jump_moves_the_wall_clock_and_not_the_ledgers(wall: Wall, by: int) -> None:
    wall.ticks(10)
    wall.set_by_us = by
    wall.ticks(10)
    assert wall.clock.t_us == START + 20 * S
    (jump,) = wall.jumps
    assert jump.measured is MeasuredBy.BOOT_TIME
    assert (jump.to_us - jump.from_us, jump.elapsed_us) == (by, S)


def test_an_input_between_two_ticks_cannot_take_the_ledger_along(wall: Wall) -> None:
    wall.ticks(5)
    wall.set_by_us = 3 * HOUR
    wall.real_us += S // 2
    wall.input()
    assert wall.clock.t_us <= START + 5 * S + STEP_US
    wall.ticks(30)
    assert wall.clock.t_us == START + wall.real_us, "what it went too far was waited out"


def test_an_input_after_a_pause_says_that_ledger_time_is_behind_until_a_tick_makes_it_whole(wall: Wall) -> None:
    wall.ticks(5)
    wall.real_us += S
    wall.input()
    assert not wall.clock.is_behind
    wall.real_us += 8 * HOUR
    wall.input()
    assert wall.clock.is_behind
    record = LedgerRecord(
        pool="main", prev_seq=0, prev_hash="", inbox_seq=1, writer="w", events=(), t_us=wall.clock.t_us,
        wall_us=wall.clock.wall_us, clock=wall.clock.mark,
    )  # fmt: skip
    assert LedgerClock.of(record).is_behind, "whoever goes on with the ledger knows it"
    wall.tick()
    assert not wall.clock.is_behind
    wall.set_by_us -= HOUR
    wall.input()
    assert not wall.clock.is_behind
    assert not LedgerClock().input(START).is_behind, "a ledger without ticks follows the wall clock"


@pytest.mark.parametrize("queued", [1, 2, 7, 20])
@pytest.mark.parametrize("first", ["tick", "input"])
def test_a_broker_that_was_frozen_costs_no_time_however_many_ticks_it_stores_at_once(
    wall: Wall, queued: int, first: str
) -> None:
    """Seen: 20 s of a freeze were billed as 14, and ledger time lay 6 s behind the wall clock from then on."""
    wall.ticks(10)
    began_us = wall.real_us
    thawed_us = wall.real_us + 20 * S + S // 3
    if first == "input":
        wall.clock = wall.clock.input(START + thawed_us)
    for number in range(1, queued + 1):  # what was sent later was lost
        sent = (BootReading(boot=wall.boot, at_us=began_us + number * S + 77 * S),)
        wall.clock, _ = wall.clock.tick(START + thawed_us + number, sent)
        assert wall.clock.is_behind, "nothing is granted yet"
    wall.real_us = began_us + 21 * S
    wall.tick()
    if queued >= 20:
        assert not wall.clock.is_behind
    wall.ticks(1)
    assert wall.clock.t_us == wall.wall_us
    assert not wall.clock.is_behind


@pytest.mark.parametrize("silence", [30 * S, 8 * HOUR])
def test_silence_of_a_machine_that_ran_on_counts_whole_and_is_no_jump(wall: Wall, silence: int) -> None:
    wall.real_us += silence
    wall.input()
    wall.tick()
    assert wall.clock.t_us == START + silence
    assert wall.jumps == []


def test_a_jump_during_silence_is_told_from_the_silence(wall: Wall) -> None:
    wall.real_us += 8 * HOUR
    wall.set_by_us = -5 * HOUR
    wall.tick()
    assert wall.clock.t_us == START + 8 * HOUR
    assert [jump.measured for jump in wall.jumps] == [MeasuredBy.BOOT_TIME]


def test_over_a_reboot_a_witness_measures_and_without_one_the_wall_clock_is_taken_as_an_estimate() -> None:
    seen, unseen = Wall(witness="other-machine"), Wall()
    for world in (seen, unseen):
        world.tick()
        world.real_us += 600 * S
        world.set_by_us, world.boot = 3 * HOUR, "boot-2"
        world.tick()
    assert seen.clock.t_us == START + 600 * S
    assert [jump.measured for jump in seen.jumps] == [MeasuredBy.WITNESS]
    assert unseen.clock.t_us == START + 600 * S + 3 * HOUR
    assert [jump.measured for jump in unseen.jumps] == [MeasuredBy.WALL]


@pytest.mark.parametrize("lie_us", [-500 * S, 2**61])
@pytest.mark.parametrize("place", range(3))
def test_over_a_reboot_one_witness_of_three_that_lies_moves_no_time(place: int, lie_us: int) -> None:
    """A node that was taken over moved a pool's time on by years: all limits passed, and bills were without end."""
    told = [BootReading(boot=f"machine-{n}", at_us=900 * S) for n in range(3)]
    later = [one.model_copy(update={"at_us": one.at_us + 600 * S}) for one in told]
    later[place] = later[place].model_copy(update={"at_us": 900 * S + 600 * S + lie_us})
    clock, _ = LedgerClock().tick(START, (BootReading(boot="boot-1", at_us=1), *told))
    clock, jump = clock.tick(START + 3 * HOUR, (BootReading(boot="boot-2", at_us=1), *later))
    assert clock.t_us == START + 600 * S
    assert jump is not None
    assert jump.measured is MeasuredBy.WITNESS


def test_of_two_witnesses_the_shorter_time_counts() -> None:
    clock, _ = LedgerClock().tick(START, tuple(BootReading(boot=name, at_us=S) for name in ("x", "a", "b")))
    after = (BootReading(boot="y", at_us=1), BootReading(boot="a", at_us=2**61), BootReading(boot="b", at_us=9 * S))
    assert clock.tick(START + 3 * HOUR, after)[0].t_us == START + 8 * S


def test_another_ticker_that_takes_over_at_once_is_no_jump(wall: Wall) -> None:
    wall.ticks(5)
    wall.boot = "boot-of-the-standby"
    wall.ticks(5)
    assert (wall.clock.t_us, wall.jumps) == (START + 10 * S, [])


@pytest.mark.parametrize("set_by_us", [HOUR, -HOUR])
def test_where_two_tickers_take_turns_the_clocks_of_the_first_still_measure(set_by_us: int) -> None:
    """Found by seed 62121 of the theme operators: a second process claimed the right to tick, had heard no node yet, and was
    refused. Then the broker's clock was set by an hour, and ledger time went with it."""
    wall = Wall(witness="node")
    wall.tick()
    wall.real_us += 1000
    wall.boot, wall.witness = "second", ""
    wall.tick()
    wall.set_by_us = set_by_us
    wall.boot, wall.witness = "boot-1", "node"
    wall.ticks(1)
    assert wall.clock.t_us == START + 1000 + S
    assert [jump.measured for jump in wall.jumps] == [MeasuredBy.WITNESS]
    wall.ticks(3)
    assert wall.clock.t_us == START + 1000 + 4 * S


@pytest.mark.parametrize("set_by_us", [0, HOUR, -HOUR])
@pytest.mark.parametrize("late_us", [S // 2, 30 * S])
def test_a_tick_that_was_overtaken_on_its_way_measures_nothing(set_by_us: int, late_us: int) -> None:
    """Found by seed 6410: one ticker's tick came after the next ticker's, and after the broker's clock was set."""
    wall = Wall(witness="node")
    wall.tick()
    wall.ticks(2)
    late = (
        BootReading(boot=wall.boot, at_us=wall.real_us + 78 * S),
        BootReading(boot="node", at_us=wall.real_us + 6 * S),
    )
    wall.boot = "boot-2"
    wall.ticks(3)
    wall.set_by_us = set_by_us
    wall.real_us += late_us
    wall.clock, jump = wall.clock.tick(wall.wall_us, late)
    assert jump is None
    assert 0 <= wall.clock.t_us - START <= wall.real_us + STEP_US, "on the word of a wall clock no more than this"
    wall.ticks(10)
    assert wall.clock.mark is not None
    assert abs(wall.clock.mark.t_us - START - wall.real_us) < S
    assert [jump.measured for jump in wall.jumps] == ([MeasuredBy.BOOT_TIME] if set_by_us else [])


def test_a_witness_that_was_put_back_holds_no_tick_up_for_longer_than_a_minute() -> None:
    wall = Wall(witness="node")
    wall.tick()
    wall.ticks(100)
    wall.boot = "boot-2"
    for _ in range(90):
        wall.real_us += S
        now = (
            BootReading(boot=wall.boot, at_us=wall.real_us + 77 * S),
            BootReading(boot="node", at_us=wall.real_us - 80 * S),
        )
        wall.clock, _ = wall.clock.tick(wall.wall_us, now)
    assert wall.clock.t_us == wall.wall_us
    assert wall.clock.mark is not None
    assert wall.clock.mark.t_us == wall.clock.t_us


def test_ticks_without_readings_time_a_ledger_as_before() -> None:
    wall = Wall()
    wall.ticks(5, old=True)
    wall.set_by_us = 3 * HOUR
    wall.ticks(1, old=True)
    assert (wall.clock.t_us, wall.clock.mark, wall.jumps) == (wall.wall_us, None, [])
    wall.set_by_us = 0
    wall.ticks(1, old=True)
    assert wall.clock.t_us == START + 6 * S + 3 * HOUR, "never back"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20 * S), st.integers(-4 * HOUR, 4 * HOUR) | st.just(0), st.sampled_from(["tick", "input"])
        ),
        max_size=40,
    )
)
def test_it_never_goes_back_and_ends_where_time_did(steps: list[tuple[int, int, str]]) -> None:
    wall = Wall()
    wall.tick()
    last = wall.clock.t_us
    for passed, by, what in steps:
        wall.real_us += passed
        wall.set_by_us += by
        wall.tick() if what == "tick" else wall.input()
        assert wall.clock.t_us >= last
        last = wall.clock.t_us
    wall.ticks(STEP_US // S * (len(steps) + 2))
    small = sum(1 for _, by, _ in steps if by) * 6 * S  # of each change, what is not worth being called a jump
    assert abs(wall.clock.t_us - (START + wall.real_us)) <= small


def test_the_clock_goes_on_from_a_record(wall: Wall) -> None:
    wall.ticks(3)
    clock = wall.clock
    record = LedgerRecord(
        pool="main", prev_seq=0, prev_hash="", inbox_seq=1, t_us=clock.t_us, wall_us=clock.wall_us, clock=clock.mark,
        writer="w", events=(),
    )  # fmt: skip
    assert LedgerClock.of(LedgerRecord.model_validate_json(record.model_dump_json())) == clock


# ------------------------------------------------------------------------------------------------------- calendars


def test_an_hour_with_a_jump_in_each_direction_is_billed_for_what_passed() -> None:
    """A job from 10:00 to 11:00 in truth; at 10:20 the clock goes 3 h ahead, at 10:40 back again."""
    ten = 1_800_003_600 * S // HOUR * HOUR
    calendar = Calendar()
    calendar.note(ten, ten)
    calendar.note(ten + 20 * 60 * S, ten + 20 * 60 * S + 3 * HOUR)
    calendar.note(ten + 40 * 60 * S, ten + 40 * 60 * S)
    by_hour: dict[int, int] = {}
    for period, us in calendar.split(ten, ten + HOUR, HOUR):
        by_hour[period - ten // HOUR] = by_hour.get(period - ten // HOUR, 0) + us
    assert by_hour == {0: 40 * 60 * S, 3: 20 * 60 * S}
    assert sum(by_hour.values()) == HOUR


def test_an_hour_in_which_everything_stood_still_is_billed_as_that_hour() -> None:
    """A kept job ran through it. Two inputs come before the first tick, and take ledger time along by seconds: their wall time
    was taken for that of a clock that was set, and the hour for the next one."""
    ten, clock, calendar = 1_800_003_600 * S // HOUR * HOUR, LedgerClock(), Calendar()
    for at_s, ticks in ((0, True), (1, True), (3000, False), (3002, False), (3003, True), (3600, True)):
        wall_us = ten + at_s * S
        clock = clock.tick(wall_us, (BootReading(boot="b", at_us=at_s * S),))[0] if ticks else clock.input(wall_us)
        said = {"pool": "main", "prev_seq": 0, "prev_hash": "", "inbox_seq": 1, "writer": "w", "events": ()}
        calendar.hear(LedgerRecord(t_us=clock.t_us, wall_us=clock.wall_us, clock=clock.mark, **said))
    assert clock.t_us == ten + HOUR
    assert list(calendar.split(ten, ten + HOUR, HOUR)) == [(ten // HOUR, HOUR)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3 * HOUR), st.integers(-5 * HOUR, 5 * HOUR)), max_size=8),
    st.integers(0, 10 * HOUR), st.integers(0, 10 * HOUR),
)  # fmt: skip
def test_the_parts_of_a_span_add_up_whatever_the_calendar_does(pieces: list[tuple[int, int]], a: int, b: int) -> None:
    calendar, t_us = Calendar(), START
    for gap, add in pieces:
        t_us += gap
        calendar.note(t_us, t_us + add)
    start, end = START + min(a, b), START + max(a, b)
    assert sum(us for _, us in calendar.split(start, end, HOUR)) == end - start


def test_a_calendar_stays_small() -> None:
    calendar = Calendar()
    for n in range(3 * MOST_PIECES):
        calendar.note(START + n * S, START + n * S + (n % 2) * HOUR)
    assert len(calendar.pieces) == MOST_PIECES
    assert calendar.wall(START + 3 * MOST_PIECES * S) - START - 3 * MOST_PIECES * S in (0, HOUR)


def test_days_of_a_bill_are_the_wall_clocks_and_its_sum_is_ledger_time() -> None:
    """The clock goes a day ahead in the midst of a job: each half is billed to the day that was shown."""
    world = builders.World(builders.node("a", 1))
    job = world.submit(builders.job("j", 1))
    world.started(job)
    world.now_us += 3600 * S
    world.released(job)
    plain, jumped = Meter(), Meter()
    opened = next(r.t_us for r in world.records for e in r.events if e.kind == "job.granted")
    for seq, record in enumerate(world.records, 1):
        plain.apply(record, seq)
        ahead = 24 * HOUR if record.t_us > opened + S else 0
        jumped.apply(record.model_copy(update={"wall_us": record.t_us + ahead}), seq)
    assert sum(row.milli_us for row in plain.usage()) == sum(row.milli_us for row in jumped.usage()) > 0
    assert jumped.load(iter(list(jumped.dump()))).sums() == jumped.sums()


def test_a_jump_that_was_estimated_says_so() -> None:
    jump = Jump(1, 2, 3, MeasuredBy.WALL)
    event = ClockJumped(from_us=jump.from_us, to_us=jump.to_us, elapsed_us=3, measured=jump.measured, estimated=True)
    assert event.skippable


def jumped(from_us: int, to_us: int, measured: MeasuredBy = MeasuredBy.BOOT_TIME, elapsed_us: int = S) -> ClockJumped:
    return ClockJumped(
        from_us=from_us, to_us=to_us, elapsed_us=elapsed_us, measured=measured, estimated=measured is MeasuredBy.WALL
    )


def test_a_stamp_of_before_a_jump_is_mapped_by_the_distance_of_then() -> None:
    """The clock is right, then two hours ahead, then an hour behind."""
    jumps = PastJumps()
    jumps.note(jumped(10 * HOUR, 12 * HOUR), 10 * HOUR, 12 * HOUR)
    jumps.note(jumped(13 * HOUR, 10 * HOUR), 11 * HOUR, 10 * HOUR)

    def at(stamp_us: int) -> int:
        return jumps.ledger_time(stamp_us, wall_us=11 * HOUR, ahead_us=HOUR)

    assert at(9 * HOUR) == 9 * HOUR
    assert at(12 * HOUR + S) == 10 * HOUR + S
    assert at(10 * HOUR + S) == 11 * HOUR + S, "shown once: before the first jump it was not so late"
    assert at(11 * HOUR + S) == 12 * HOUR + S, "another server's clock is a second ahead"
    assert PastJumps(jumps.rows()) == jumps


def test_a_stamp_that_the_clock_has_shown_twice_is_of_the_later_time() -> None:
    jumps = PastJumps()
    jumps.note(jumped(10 * HOUR, 9 * HOUR), 10 * HOUR, 9 * HOUR)
    assert jumps.ledger_time(9 * HOUR + S, 9 * HOUR + 60 * S, HOUR) == 10 * HOUR + S
    assert jumps.ledger_time(9 * HOUR + 600 * S, 9 * HOUR + 60 * S, HOUR) == 9 * HOUR + 600 * S, "not yet shown again"


def test_a_clock_that_was_believed_has_not_jumped() -> None:
    jumps = PastJumps()
    jumps.note(jumped(10 * HOUR, 12 * HOUR, MeasuredBy.WALL, 2 * HOUR), 12 * HOUR, 12 * HOUR)
    assert not jumps
    jumps.note(jumped(12 * HOUR, 10 * HOUR, MeasuredBy.WALL, 0), 12 * HOUR, 10 * HOUR)
    assert jumps.ledger_time(9 * HOUR, 11 * HOUR, 2 * HOUR) == 9 * HOUR


def test_jumps_are_forgotten_with_client_keys_and_by_their_number() -> None:
    jumps = PastJumps()
    for number in range(MOST_JUMPS + 5):
        jumps.note(jumped(number * HOUR, number * HOUR + 60 * S), number * S, number * S + 60 * S)
    assert len(jumps.rows()) == MOST_JUMPS
    jumps.note(jumped(0, 60 * S), KEPT_US + 3 * HOUR, KEPT_US + 3 * HOUR + 60 * S)
    assert len(jumps.rows()) == 1
