"""FairQueue: whoever puts in much is served as often as whoever puts in little."""

from hypothesis import given
from hypothesis import strategies as st

from libs.bus.fair_queue import FairQueue


def drain(turns: FairQueue[int]) -> list[tuple[str, int]]:
    served = []
    while (turn := turns.take()) is not None:
        served.append(turn)
    return served


def test_parties_are_served_in_turn_and_each_in_its_own_order() -> None:
    turns: FairQueue[int] = FairQueue(each=10, most=100)
    for number in range(4):
        assert turns.put("loud", number)
    assert turns.put("quiet", 0)
    assert drain(turns) == [("loud", 0), ("quiet", 0), ("loud", 1), ("loud", 2), ("loud", 3)]


def test_what_one_party_and_all_may_have_waiting_is_bounded() -> None:
    turns: FairQueue[int] = FairQueue(each=2, most=3)
    assert [turns.put("a", n) for n in range(3)] == [True, True, False]
    assert [turns.put("b", n) for n in range(2)] == [True, False]
    assert (len(turns), turns.waiting("a"), turns.waiting("b"), turns.waiting("c")) == (3, 2, 1, 0)


@given(st.lists(st.one_of(st.sampled_from("abc"), st.none()), max_size=200))
def test_nothing_is_lost_and_nobody_is_passed_over_twice(steps: list[str | None]) -> None:
    """While a party waits, no other is served twice before it."""
    turns: FairQueue[int] = FairQueue(each=1000, most=1000)
    put: list[tuple[str, int]] = []
    taken: list[tuple[str, int]] = []
    passed: dict[str, list[str]] = {}
    for number, party in enumerate(steps):
        if party is not None:
            assert turns.put(party, number)
            put.append((party, number))
            passed.setdefault(party, [])
        elif (turn := turns.take()) is not None:
            taken.append(turn)
            passed.pop(turn[0])
            for others in passed.values():
                others.append(turn[0])
                assert len(set(others)) == len(others)
            if turns.waiting(turn[0]):
                passed[turn[0]] = []
    taken += drain(turns)
    assert sorted(taken) == sorted(put)
    for party in "abc":
        assert [item for of, item in taken if of == party] == [item for of, item in put if of == party]


def test_a_party_that_is_passed_over_keeps_its_turn() -> None:
    turns: FairQueue[int] = FairQueue(each=10, most=10)
    for party in ("blue", "green", "blue"):
        turns.put(party, len(turns))
    assert turns.take(but=["blue"]) == ("green", 1)
    assert turns.take(but=["blue"]) is None
    assert len(turns) == 2
    assert turns.take() == ("blue", 0)
    assert turns.take() == ("blue", 2)
