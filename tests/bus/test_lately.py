"""What came lately counts, and the less the longer ago."""

import math

import pytest

from libs.bus.lately import Lately


def test_what_came_counts_less_by_a_factor_of_e_for_every_window() -> None:
    lately = Lately(0.5)
    assert lately.add(3, 10.0) == 3
    assert lately.add(2, 10.0) == 5
    assert lately.add(1, 10.5) == pytest.approx(1 + 5 / math.e)
    assert lately.add(0, 1e6) == 0


def test_a_steady_flow_counts_as_many_as_come_in_a_window() -> None:
    lately = Lately(0.05)
    counts = [lately.add(1, number / 1_000) for number in range(1_000)]
    assert counts[-1] == pytest.approx(50, rel=0.02)
