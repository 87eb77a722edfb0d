"""A writer that was away grants nothing before it has caught up, and one that never catches up grants nevertheless."""

from itertools import pairwise

import pytest

from libs.core.state.catching_up import CatchingUp
from libs.core.state.clock import STEP_US

S = 1_000_000
BATCH_US = 100_000
"""Of what is stored in so long a time one decision is made."""


def decisions(behind_s: float, times: float, for_s: float = 1500) -> list[tuple[int, bool]]:
    """Of a writer that lies so far behind, and decides so many times as fast as inputs come: how far behind each decision was,
    and whether something may begin with it. Until it decides the present, or for `for_s`."""
    at, found = CatchingUp(), list[tuple[int, bool]]()
    newest_us, input_us = int((1000 + behind_s) * S), 1000 * S
    while input_us < newest_us < (1000 + behind_s + for_s) * S:
        newest_us += int(BATCH_US / times)
        input_us = min(input_us + BATCH_US, newest_us)
        at = at.decides(input_us, newest_us)
        found.append((newest_us - input_us, not at.waits))
    return found


def waited_us(found: list[tuple[int, bool]]) -> int:
    """How long nothing could begin, by the time that the inputs tell."""
    return sum(BATCH_US for _, may_begin in found if not may_begin)


@pytest.mark.parametrize("behind_s", [6, 300])
@pytest.mark.parametrize("times", [2.1, 20])
def test_after_an_outage_nothing_begins_before_the_present_is_decided(behind_s: float, times: float) -> None:
    found = decisions(behind_s, times)
    assert all(may_begin == (behind_us <= 0) for behind_us, may_begin in found)
    assert any(may_begin for _, may_begin in found)


@pytest.mark.parametrize("times", [0.5, 0.99, 1.0, 1.01, 1.5, 1.9, 2.0, 3.0])
@pytest.mark.parametrize("behind_s", [6, 60, 600])
def test_whether_it_catches_up_or_not_nothing_waits_for_longer_than_twice_what_it_lay_behind(
    times: float, behind_s: float
) -> None:
    found = decisions(behind_s, times)
    assert 0 < waited_us(found) <= 2 * behind_s * S + BATCH_US


def test_who_stays_behind_decides_all_after_the_first_round_and_waits_again_when_it_gets_on() -> None:
    steady = [may_begin for _, may_begin in decisions(10, 1.0)]
    assert [n for n, (one, then) in enumerate(pairwise(steady)) if one != then] == [
        pytest.approx(10 * S / BATCH_US, abs=2)
    ]
    at = CatchingUp().decides(0, 100 * S).decides(100 * S, 190 * S)
    assert not at.waits
    assert at.decides(190 * S, 235 * S).waits, "half as far behind: the next time it may be there"


def test_a_few_seconds_are_the_present_and_so_is_a_clock_that_was_set_back() -> None:
    assert not CatchingUp().decides(0, STEP_US).waits
    assert CatchingUp().decides(0, STEP_US + 1).waits
    late = CatchingUp().decides(0, 100 * S)
    assert late.decides(50 * S, 50 * S + 1).waits, "who was away waits until he is back"
    assert late.decides(50 * S, 50 * S) == CatchingUp()
    assert not CatchingUp().decides(3600 * S, 0).waits
