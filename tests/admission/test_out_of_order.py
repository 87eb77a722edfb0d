"""Who is taken out of the queue, in which order, and that the queue finds each request done exactly once."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from services.admission.out_of_order import OutOfOrder
from services.admission.window import AdmissionWindow


def test_teams_take_turns_from_where_the_last_round_ended() -> None:
    out_of_order = OutOfOrder()
    teams = {"a", "b", "c", "d", "e"}
    rounds = [[team for team, _ in out_of_order.turns(teams, 2)] for _ in range(3)]
    assert rounds == [["a", "b"], ["c", "d"], ["e", "a"]]


def test_what_was_taken_the_queue_finds_done_once() -> None:
    out_of_order = OutOfOrder()
    out_of_order.came_to(10)
    assert out_of_order.turns({"a"}, 1) == [("a", 10)]
    out_of_order.took("a", 15)
    assert out_of_order.turns({"a"}, 1) == [("a", 15)]
    assert [out_of_order.done(seq) for seq in (14, 15, 15)] == [False, True, False]


def test_what_the_queue_has_handed_out_meanwhile_is_not_kept() -> None:
    """It was fetched before the queue came there: the queue decides it, and both have the same ids."""
    out_of_order = OutOfOrder()
    out_of_order.came_to(20)
    out_of_order.took("a", 15)
    assert not out_of_order.done(15)
    assert len(out_of_order) == 0


def test_behind_a_request_that_must_wait_its_team_waits_too() -> None:
    out_of_order = OutOfOrder()
    out_of_order.hold("a", 30)
    assert out_of_order.turns({"a", "b"}, 9) == [("b", 0)]
    out_of_order.came_to(30)
    assert out_of_order.turns({"a", "b"}, 9) == [("a", 30), ("b", 30)]


def test_how_much_is_done_ahead_is_bounded() -> None:
    out_of_order = OutOfOrder(most=2)
    for seq in (5, 6):
        out_of_order.took("a", seq)
    assert out_of_order.turns({"a"}, 9) == []
    assert out_of_order.done(5)
    assert out_of_order.turns({"a"}, 9) == [("a", 6)]


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_each_request_is_decided_once_and_each_teams_in_order(seed: int, count: int) -> None:
    """The queue and the rounds in any interleaving; batches of the queue are decided when they are handed out."""
    chance = random.Random(seed)
    queue = [(seq, chance.choice("xxxxab")) for seq in range(1, count + 1)]
    out_of_order, decided, handed = OutOfOrder(most=8), [], 0
    while handed < count:
        if chance.random() < 0.5:
            batch = queue[handed : handed + chance.randint(1, 4)]
            handed += len(batch)
            out_of_order.came_to(batch[-1][0])
            decided += [(seq, team) for seq, team in batch if not out_of_order.done(seq)]
            continue
        for team, after in out_of_order.turns({"a", "b", "x"}, 2):
            for seq, of in [item for item in queue if item[1] == team and item[0] > after][:2]:
                if chance.random() < 0.1:
                    out_of_order.hold(of, seq)
                    break
                decided.append((seq, of))
                out_of_order.took(of, seq)
    assert sorted(decided) == queue
    assert len(out_of_order) == 0
    for team in "abx":
        mine = [seq for seq, of in decided if of == team]
        assert mine == sorted(mine)


async def test_the_pace_is_kept_until_the_ledger_has_decided() -> None:
    decided = {"main": 0}
    window = AdmissionWindow(lambda pool: decided[pool], shared=4, alone=4)
    for seq in (1, 2, 3):
        window.stored("main", seq)
    assert window.undecided() == 3
    waiting = asyncio.create_task(window.room())
    await asyncio.sleep(0)
    assert not waiting.done(), "less than half of it is free"
    decided["main"] = 2
    window.moved()
    assert await waiting == 3


async def test_portions_are_small_while_a_team_with_few_requests_is_about() -> None:
    window = AdmissionWindow(lambda pool: 0, shared=4, alone=100)
    assert await window.room() == 100
    window.share()
    assert await window.room() == 4


def test_the_more_of_a_team_lies_done_behind_a_crowd_the_less_room_the_crowd_has() -> None:
    """Seen: three teams that sent as much each as was answered of a burst were refused with it, for what was done of theirs
    filled their room until the burst's oldest request was answered: 1.6 s in the 99th percentile."""
    out_of_order = OutOfOrder()
    assert out_of_order.held_back("burst", 512, 0) == 0
    for seq in range(1, 65):
        out_of_order.took("quiet", seq)
    assert out_of_order.held_back("burst", 512, 0) == 3 * 64 / 512
    assert out_of_order.held_back("quiet", 512, 0) == 0
    for seq in range(65, 85):
        out_of_order.took("less", seq)
    assert [out_of_order.held_back(team, 512, 0) for team in ("quiet", "less")] == [0, 0], (
        "who overtakes as well is no burst"
    )
    for seq in range(129, 1000):
        out_of_order.took("quiet", seq)
    assert out_of_order.held_back("burst", 512, 0) == 1 - 1 / 8, "the burst always has some, or the queue would stand"


def test_a_crowd_has_its_room_back_bit_by_bit() -> None:
    """Seen: with all of it back at the moment when its last request was answered it stored 512 at once, every six seconds, and
    the others' p99 was 0.4 s in those seconds and 0.12 s in between."""
    out_of_order = OutOfOrder()
    for seq in range(1, 200):
        out_of_order.took("quiet", seq)
    for at in (10.0, 11.0, 12.0):
        assert out_of_order.held_back("burst", 512, at) == 7 / 8
    assert out_of_order.longest == 199
    out_of_order.settled(199)
    assert out_of_order.longest == 0
    shares = [out_of_order.held_back("burst", 512, at) for at in (12.0, 14.5, 17.0, 19.5, 29.5, 30.0)]
    assert shares == [7 / 8, 6 / 8, 5 / 8, 4 / 8, 0, 0]
    for seq in range(200, 250):
        out_of_order.took("quiet", seq)
    assert out_of_order.held_back("burst", 512, 90.0) == 3 * 50 / 512
    out_of_order.took("burst", 260)
    out_of_order.settled(249)
    assert out_of_order.held_back("burst", 512, 90.0) == 0, "it overtakes now, and so is no burst"


def test_whose_request_is_the_first_for_a_moment_is_no_crowd() -> None:
    out_of_order = OutOfOrder()
    for seq in range(1, 200):
        out_of_order.took("quiet", seq)
    assert out_of_order.held_back("first", 512, 10.0) == 7 / 8
    out_of_order.settled(199)
    assert out_of_order.held_back("first", 512, 10.1) == 0


def test_what_another_process_met_in_the_queue_is_forgotten() -> None:
    """Two admissions share the queue. Seen: what one had done and the other met there stayed in its memory for ever, and from
    500,000 on nothing was taken out of its turn any more."""
    out_of_order = OutOfOrder(most=2)
    for seq in (5, 6):
        out_of_order.took("a", seq)
    assert not out_of_order.may_go_on("a")
    out_of_order.settled(5)
    assert (len(out_of_order), out_of_order.is_done(5), out_of_order.done(6)) == (1, False, True)
    assert out_of_order.may_go_on("a")
