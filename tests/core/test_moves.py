"""Jobs that are in the way of a gang and go elsewhere; gangs whose turn it is; what a promise may count on."""

import numpy as np
import pytest

from libs.core.scheduling.precedence import OrderKnobs, OrderRule, Precedence, keep
from libs.core.scheduling.precedence.learned import Learned, cell_of
from schemas import inbox
from schemas.resources import Level
from tests.core.builders import job
from tests.core.test_precedence import Ruled

NODE = Level.NODE
MINUTES_US = 60_000_000


def holes(known: dict[str, float], knobs: OrderKnobs = OrderKnobs()) -> tuple[Ruled, list[str]]:
    """Two nodes of eight, on each a job of four devices in the way of a gang of eight."""
    world = Ruled(OrderRule.SHORTEST_REMAINING, nodes=2, knobs=knobs)
    world.precedence.declared = lambda job: known[job.spec.name]
    filler = world.run(job("filler", 8, required=NODE))
    first = world.run(job("first", 4, required=NODE))
    world.released(filler)
    other = world.submit(job("filler-2", 4, required=NODE))
    world.started(other)
    second = world.run(job("second", 4, required=NODE))
    world.released(other)
    assert world.nodes_of(first) != world.nodes_of(second)
    return world, [first, second]


SHORT = {"filler": 1.0, "filler-2": 1.0, "first": 4 * 2000.0, "second": 4 * 2100.0, "gang": 8 * 5000.0}


@pytest.fixture
def two_holes() -> tuple[Ruled, list[str]]:
    return holes(SHORT)


def preempted(world: Ruled, job_id: str) -> None:
    (node,) = world.nodes_of(job_id)
    world.observe(node, inbox.Released(job_id=job_id, attempt=1, exit_code=0, own_exit=False, reason="preempted"))


def test_who_is_in_the_way_of_a_gang_goes_where_there_is_room(two_holes: tuple[Ruled, list[str]]) -> None:
    world, in_the_way = two_holes
    gang = world.submit(job("gang", 8, required=NODE))
    assert world.exchange() == [], "they have run for less than ten minutes"
    world.send(after_us=11 * MINUTES_US)
    (plan,) = world.exchange()
    assert (plan.beneficiary, len(plan.victims), len(plan.devices)) == (gang, 1, 8)
    (mover,) = plan.victims
    assert mover in in_the_way
    (left,) = world.nodes_of(mover)
    assert "elsewhere" in plan.reason
    world.send(plan)
    preempted(world, mover)
    assert (world.state_of(gang), world.state_of(mover)) == ("granted", "granted")
    assert world.nodes_of(gang) == [left] != world.nodes_of(mover)


def test_nobody_moves_for_a_gang_that_has_less_left_than_the_move_loses() -> None:
    world, _ = holes(SHORT | {"first": 4 * 700.0, "second": 4 * 700.0, "gang": 119.0}, OrderKnobs(ahead=1e9))
    world.submit(job("gang", 8, required=NODE))
    world.send(after_us=11 * MINUTES_US)
    assert world.exchange() == [], "4 devices lose 30 s each"


def test_the_writer_moves_nobody_who_finds_no_room(two_holes: tuple[Ruled, list[str]]) -> None:
    world, _ = two_holes
    world.submit(job("gang", 8, required=NODE))
    world.send(after_us=11 * MINUTES_US)
    (plan,) = world.exchange()
    world.precedence.declared = lambda job: SHORT.get(job.spec.name, 1.0)
    for late in ("late-1", "late-2"):
        world.run(job(late, 4, required=NODE))
    (declined,) = world.send(plan)
    assert (declined.kind, declined.reason.value) == ("plan.declined", "victim-not-lower")
    assert "finds no free devices elsewhere" in declined.text


def test_several_small_jobs_move_and_each_finds_a_place() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING, nodes=3)
    small = {f"small-{i}": 3600.0 + i for i in range(24)}
    world.precedence.declared = lambda job: (small | {"gang": 8 * 9000.0})[job.spec.name]
    jobs = [world.run(job(name)) for name in small]
    of: dict[str, list[str]] = {}
    for one in jobs:
        of.setdefault(world.nodes_of(one)[0], []).append(one)
    for node, leave in zip(sorted(of), (5, 5, 2), strict=True):
        for one in of[node][:leave]:
            world.released(one)
    gang = world.submit(job("gang", 8, required=NODE))
    world.send(after_us=11 * MINUTES_US)
    (plan,) = world.exchange()
    assert len(plan.victims) == 3, "the node with five free ones has the fewest who move"
    world.send(plan)
    for mover in plan.victims:
        preempted(world, mover)
    assert world.state_of(gang) == "granted"
    assert {world.state_of(mover) for mover in plan.victims} == {"granted"}


def test_the_mean_rest_of_a_width_ends_with_the_longest_that_was_seen() -> None:
    learned = Learned()
    for _ in range(100):
        learned.ended(1, 600.0)
    learned.relearn(np.array([3]), np.array([5e7]))
    last = cell_of(600.0)
    assert learned.rest[0, 0] < 2000, "short jobs do not become gangs"
    assert learned.rest[3, 0] < learned.rest[3, last + 1], "gangs may take long"
    assert np.isfinite(learned.rest).all()


def test_a_gang_has_no_turn_before_it_has_waited_for_its_own_length() -> None:
    knobs = OrderKnobs(in_turn=1.0, in_turn_least_s=0.0, own_turn=1.0, turn_most_s=1e9)
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=knobs)
    known = {"there": 8 * 100.0, "gang": 8 * 5000.0, "small": 8 * 700.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    world.run(job("there", 8))
    gang = world.submit(job("gang", 8))
    world.send(after_us=4900_000_000)
    assert not world.precedence.is_due(gang)
    world.send(after_us=101_000_000)
    world.send()
    assert world.precedence.is_due(gang)


def test_a_gang_that_would_delay_all_for_too_long_has_no_turn() -> None:
    knobs = OrderKnobs(in_turn=1.0, in_turn_least_s=0.0, own_turn=0.0, turn_most_s=2000.0)
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=knobs)
    known = {"there": 8 * 100.0, "long": 8 * 5000.0, "short": 8 * 3000.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    world.run(job("there", 8))
    long, short = world.submit(job("long", 8)), world.submit(job("short", 8))
    world.send(after_us=9000_000_000)
    world.send()
    assert (world.precedence.is_due(long), world.precedence.is_due(short)) == (False, True)


def test_a_gang_that_turns_out_longer_while_it_waits_has_its_turn_put_off() -> None:
    knobs = OrderKnobs(in_turn=1.0, in_turn_least_s=0.0, own_turn=1.0, turn_most_s=1e9)
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=knobs)
    known = {"there": 8 * 100.0, "gang": 8 * 500.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    world.run(job("there", 8))
    gang = world.submit(job("gang", 8))
    world.precedence.tell(world.decider.state, gang, 8 * 5000.0)
    world.send(after_us=4900_000_000)
    world.send()
    assert not world.precedence.is_due(gang), "501 s would have been its turn by what was known first"
    world.send(after_us=101_000_000)
    world.send()
    assert world.precedence.is_due(gang)


@pytest.mark.parametrize(("ends", "due"), [(1, False), (0, True)])
def test_a_gang_has_no_turn_by_a_guess_of_what_stands_there(ends: int, due: bool) -> None:
    knobs = OrderKnobs(
        in_turn=1.0, in_turn_least_s=0.0, own_turn=0.0, turn_worth=1e9, turn_most_s=1e9, in_turn_ends=ends
    )
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=knobs)
    world.run(job("there", 8))
    gang = world.submit(job("gang", 8))
    world.send(after_us=2 * 86_400_000_000)
    world.send()
    assert world.precedence.is_due(gang) is due


def test_when_its_promise_is_near_also_who_has_just_begun_gives_way() -> None:
    knobs = OrderKnobs(promise_margin=1.0, in_turn=0.0, min_run_s=600.0)
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=knobs)
    known = {"before": 8 * 1000.0, "gang": 8 * 5000.0, "smaller": 8 * 4000.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    before = world.run(job("before", 8))
    gang = world.submit(job("gang", 8))
    ((_, start_us),) = world.promised()
    smaller = world.submit(job("smaller", 8))
    world.send(after_us=850_000_000)
    world.released(before)
    assert world.state_of(smaller) == "granted", "it stands before the gang, which is not due yet"
    world.started(smaller)
    world.send(after_us=start_us - world.now_us - int(knobs.lead_s * 1e6) - 1000)
    assert world.exchange() == [], "it has run for less than its minimum"
    world.send(after_us=2000)
    world.send()
    (plan,) = world.exchange()
    assert (plan.beneficiary, plan.victims) == (gang, (smaller,))


def test_a_promise_counts_on_who_will_be_dear_by_then() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    there = world.run(job("there", 8))
    world.send(after_us=2 * 60 * MINUTES_US)
    slots = np.array([world.precedence.served.slots[there]])
    number = 1.3 * world.precedence.numbers.limit(int(slots[0]), world.now_us)
    world.precedence.declared = lambda job: number
    gang = world.submit(job("gang", 8))
    ((promised, start_us),) = world.promised()
    assert promised == gang
    dear_s = float(world.precedence.numbers.until_dear_s(slots, number, world.now_us)[0])
    assert 0 < dear_s < float(world.precedence.numbers.left_s(slots, world.now_us)[0])
    assert (start_us - world.now_us) / 1e6 == pytest.approx(dear_s * world.precedence.knobs.promise_margin, rel=0.01)


def test_what_a_gang_waits_for_goes_on_from_a_snapshot() -> None:
    world, _ = holes(SHORT)
    world.submit(job("gang", 8, required=NODE))
    world.send(after_us=11 * MINUTES_US)
    state = world.decider.state
    loaded = Precedence(OrderRule.SHORTEST_REMAINING)
    keep.load(loaded, state, [part[1:] for part in world.precedence.dump()])
    assert list(loaded.dump()) == list(world.precedence.dump())
