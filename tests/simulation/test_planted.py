"""Bugs that are planted are found. `python -m tests.simulation.planted` counts by how many seeds, and writes the table."""

import json

import pytest

from tests.simulation.issue_findings import FINDINGS
from tests.simulation.planted import BUGS, FOUND, PAGE, SAMPLE, finds, page

_found = json.loads(FOUND.read_text())
_OFTEN = 3
"""Of the first seeds. One that few find may be found by others when a service has changed: it is left to who measures."""


@pytest.mark.faults
@pytest.mark.parametrize(
    "name", [name for name in BUGS if name in _found and (_found[name]["of_sample"] or 0) >= _OFTEN]
)
def test_a_planted_bug_is_found(name: str) -> None:
    assert any(finds(name, seed).violations for seed in (_found[name]["seed"], *range(5 * SAMPLE)))


def test_the_page_shows_what_was_measured() -> None:
    assert page(PAGE.read_text(), _found) == PAGE.read_text(), "run python -m tests.simulation.planted"


def test_every_planted_bug_is_found_but_the_harmless_ones() -> None:
    blind = [n for n, one in BUGS.items() if not one.harmless and _found.get(n, {"seed": None})["seed"] is None]
    assert blind == [], "no seed finds these: give them a theme, a fault or an oracle, or show that they are harmless"
    assert [n for n, one in BUGS.items() if one.harmless and _found[n]["seed"] is not None] == []
    assert len(BUGS) >= 71


def test_each_finding_has_its_planted_bug_or_says_why_not() -> None:
    brought_back = {number for one in BUGS.values() if not one.harmless for number in one.findings}
    assert [number for number, one in FINDINGS.items() if number not in brought_back and not one.besides] == []
