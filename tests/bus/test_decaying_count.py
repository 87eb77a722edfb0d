"""What came count counts, and the less the longer ago."""

import math

import pytest

from libs.bus.decaying_count import DecayingCount


def test_what_came_counts_less_by_a_factor_of_e_for_every_window() -> None:
    count = DecayingCount(0.5)
    assert count.add(3, 10.0) == 3
    assert count.add(2, 10.0) == 5
    assert count.add(1, 10.5) == pytest.approx(1 + 5 / math.e)
    assert count.add(0, 1e6) == 0


def test_a_steady_flow_counts_as_many_as_come_in_a_window() -> None:
    count = DecayingCount(0.05)
    counts = [count.add(1, number / 1_000) for number in range(1_000)]
    assert counts[-1] == pytest.approx(50, rel=0.02)
