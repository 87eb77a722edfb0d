"""The whole of Baton under faults, in virtual time; in several files, so that they run side by side."""

import pytest

from tests.simulation.many import all_right


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_everything_is_right_in_the_end() -> None:
    all_right(range(30, 45))
