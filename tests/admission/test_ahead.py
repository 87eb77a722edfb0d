"""Who is taken out of the queue, in which order, and that the queue finds each request done exactly once."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from services.admission.ahead import Ahead
from services.admission.pace import Pace


def test_teams_take_turns_from_where_the_last_round_ended() -> None:
    ahead = Ahead()
    teams = {"a", "b", "c", "d", "e"}
    rounds = [[team for team, _ in ahead.turns(teams, 2)] for _ in range(3)]
    assert rounds == [["a", "b"], ["c", "d"], ["e", "a"]]


def test_what_was_taken_the_queue_finds_done_once() -> None:
    ahead = Ahead()
    ahead.came_to(10)
    assert ahead.turns({"a"}, 1) == [("a", 10)]
    ahead.took("a", 15)
    assert ahead.turns({"a"}, 1) == [("a", 15)]
    assert [ahead.done(seq) for seq in (14, 15, 15)] == [False, True, False]


def test_what_the_queue_has_handed_out_meanwhile_is_not_kept() -> None:
    """It was fetched before the queue came there: the queue decides it, and both have the same ids."""
    ahead = Ahead()
    ahead.came_to(20)
    ahead.took("a", 15)
    assert not ahead.done(15)
    assert len(ahead) == 0


def test_behind_a_request_that_must_wait_its_team_waits_too() -> None:
    ahead = Ahead()
    ahead.hold("a", 30)
    assert ahead.turns({"a", "b"}, 9) == [("b", 0)]
    ahead.came_to(30)
    assert ahead.turns({"a", "b"}, 9) == [("a", 30), ("b", 30)]


def test_how_much_is_done_ahead_is_bounded() -> None:
    ahead = Ahead(most=2)
    for seq in (5, 6):
        ahead.took("a", seq)
    assert ahead.turns({"a"}, 9) == []
    assert ahead.done(5)
    assert ahead.turns({"a"}, 9) == [("a", 6)]


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_each_request_is_decided_once_and_each_teams_in_order(seed: int, count: int) -> None:
    """The queue and the rounds in any interleaving; batches of the queue are decided when they are handed out."""
    chance = random.Random(seed)
    queue = [(seq, chance.choice("xxxxab")) for seq in range(1, count + 1)]
    ahead, decided, handed = Ahead(most=8), [], 0
    while handed < count:
        if chance.random() < 0.5:
            batch = queue[handed : handed + chance.randint(1, 4)]
            handed += len(batch)
            ahead.came_to(batch[-1][0])
            decided += [(seq, team) for seq, team in batch if not ahead.done(seq)]
            continue
        for team, after in ahead.turns({"a", "b", "x"}, 2):
            for seq, of in [item for item in queue if item[1] == team and item[0] > after][:2]:
                if chance.random() < 0.1:
                    ahead.hold(of, seq)
                    break
                decided.append((seq, of))
                ahead.took(of, seq)
    assert sorted(decided) == queue
    assert len(ahead) == 0
    for team in "abx":
        mine = [seq for seq, of in decided if of == team]
        assert mine == sorted(mine)


async def test_the_pace_is_kept_until_the_ledger_has_decided() -> None:
    decided = {"main": 0}
    pace = Pace(lambda pool: decided[pool], shared=4, alone=4)
    for seq in (1, 2, 3):
        pace.stored("main", seq)
    assert pace.undecided() == 3
    waiting = asyncio.create_task(pace.room())
    await asyncio.sleep(0)
    assert not waiting.done(), "less than half of it is free"
    decided["main"] = 2
    pace.moved()
    assert await waiting == 3


async def test_portions_are_small_while_a_team_with_few_requests_is_about() -> None:
    pace = Pace(lambda pool: 0, shared=4, alone=100)
    assert await pace.room() == 100
    pace.share()
    assert await pace.room() == 4


def test_the_more_of_a_team_lies_done_behind_a_crowd_the_less_room_the_crowd_has() -> None:
    """Seen: three teams that sent as much each as was answered of a crowd were refused with it, for what was done of theirs
    filled their room until the crowd's oldest request was answered: 1.6 s in the 99th percentile."""
    ahead = Ahead()
    assert ahead.held_back("crowd", 512, 0) == 0
    for seq in range(1, 65):
        ahead.took("quiet", seq)
    assert ahead.held_back("crowd", 512, 0) == 3 * 64 / 512
    assert ahead.held_back("quiet", 512, 0) == 0
    for seq in range(65, 85):
        ahead.took("less", seq)
    assert [ahead.held_back(team, 512, 0) for team in ("quiet", "less")] == [0, 0], "who overtakes as well is no crowd"
    for seq in range(129, 1000):
        ahead.took("quiet", seq)
    assert ahead.held_back("crowd", 512, 0) == 1 - 1 / 8, "the crowd always has some, or the queue would stand"


def test_a_crowd_has_its_room_back_bit_by_bit() -> None:
    """Seen: with all of it back at the moment when its last request was answered it stored 512 at once, every six seconds, and
    the others' p99 was 0.4 s in those seconds and 0.12 s in between."""
    ahead = Ahead()
    for seq in range(1, 200):
        ahead.took("quiet", seq)
    for at in (10.0, 11.0, 12.0):
        assert ahead.held_back("crowd", 512, at) == 7 / 8
    assert ahead.longest == 199
    ahead.settled(199)
    assert ahead.longest == 0
    shares = [ahead.held_back("crowd", 512, at) for at in (12.0, 14.5, 17.0, 19.5, 29.5, 30.0)]
    assert shares == [7 / 8, 6 / 8, 5 / 8, 4 / 8, 0, 0]
    for seq in range(200, 250):
        ahead.took("quiet", seq)
    assert ahead.held_back("crowd", 512, 90.0) == 3 * 50 / 512
    ahead.took("crowd", 260)
    ahead.settled(249)
    assert ahead.held_back("crowd", 512, 90.0) == 0, "it overtakes now, and so is no crowd"


def test_whose_request_is_the_first_for_a_moment_is_no_crowd() -> None:
    ahead = Ahead()
    for seq in range(1, 200):
        ahead.took("quiet", seq)
    assert ahead.held_back("first", 512, 10.0) == 7 / 8
    ahead.settled(199)
    assert ahead.held_back("first", 512, 10.1) == 0


def test_what_another_process_met_in_the_queue_is_forgotten() -> None:
    """Two admissions share the queue. Seen: what one had done and the other met there stayed in its memory for ever, and from
    500,000 on nothing was taken out of its turn any more."""
    ahead = Ahead(most=2)
    for seq in (5, 6):
        ahead.took("a", seq)
    assert not ahead.may_go_on("a")
    ahead.settled(5)
    assert (len(ahead), ahead.is_done(5), ahead.done(6)) == (1, False, True)
    assert ahead.may_go_on("a")
