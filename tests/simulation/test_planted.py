"""Bugs that are planted are found: the first seed of each is replayed. `python -m tests.simulation.planted` finds them."""

import json

import pytest

from tests.simulation.planted import BUGS, FOUND, PAGE, finds, table

_found = json.loads(FOUND.read_text())


@pytest.mark.faults
@pytest.mark.parametrize("name", [name for name in BUGS if _found.get(name, {}).get("seed") is not None])
def test_a_planted_bug_is_found(name: str) -> None:
    """By the seed that was measured; where a change of the services has made it another run, by one of the first."""
    assert any(finds(name, seed).violations for seed in (_found[name]["seed"], *range(12)))


def test_the_page_shows_what_was_measured() -> None:
    assert table(_found) in PAGE.read_text(), "run python -m tests.simulation.planted"
