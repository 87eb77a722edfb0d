"""The whole of Baton under faults, in virtual time: a quarter of the seeds (tests/simulation/many.py)."""

from pathlib import Path

import pytest

from tests.simulation.many import all_right, pieces


@pytest.mark.faults
@pytest.mark.timeout(900)  # a piece is ten seconds of processor time, of what others leave
@pytest.mark.parametrize(("theme", "first"), pieces(2))
def test_everything_is_right_in_the_end(theme: str, first: int, reached: Path) -> None:
    all_right(theme, first, reached)
