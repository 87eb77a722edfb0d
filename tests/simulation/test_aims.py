"""What aims at a rare state is right without a bug, as every seed is; planted.py says which bugs each finds."""

import pytest

from libs.simulation.dst.aims import AIMS
from libs.simulation.dst.run import run
from libs.simulation.dst.themes import THEMES
from tests.simulation.planted import BUGS


@pytest.mark.parametrize("theme", AIMS)
def test_everything_is_right_in_the_end(theme: str) -> None:
    for seed in range(2):
        assert run(seed, theme=theme).violations == [], f"./dev chaos --theme {theme!r} --seed {seed}"


def test_each_aim_is_some_planted_bugs_and_no_seed_draws_it() -> None:
    assert {one.aim for one in BUGS.values() if one.aim} == {*AIMS}
    assert not {*AIMS} & {*THEMES}
