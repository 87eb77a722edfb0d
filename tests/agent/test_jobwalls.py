"""Whom a node without walls serves, and what of it the next agent knows."""

from types import SimpleNamespace

import pytest

from services.agent.jobwalls import JobWalls
from services.agent.keeper import walls


def test_a_team_that_cannot_be_written_down_is_not_served_the_second_time_either(tmp_path):
    """The next agent would not know of it, and let another team in, to its files."""
    keeper = SimpleNamespace(tier=walls.NONE, why="there is no bubblewrap")
    folder = tmp_path / "agent"
    made = JobWalls(keeper, None, folder / "teams.json", several=False)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            made.not_served("blue", "")
    folder.mkdir()
    assert made.not_served("blue", "") == ""
    after = JobWalls(keeper, None, folder / "teams.json", several=False)
    assert "it serves one team, 'blue'" in after.not_served("red", "")
