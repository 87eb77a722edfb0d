"""The fault matrix names tests that exist, every row has one or says why not, and docs/reliability.md shows it."""

import re
from pathlib import Path

from libs.simulation.dst.faults import DRAWS
from tests.faults.chaos.faults import FAULTS
from tests.faults.matrix import PAGE, ROWS, page

TESTS = Path(__file__).parents[1]


def test_every_fault_has_a_test_or_a_reason() -> None:
    assert len(ROWS) == 35
    assert [row.fault for row in ROWS if not row.tests and not row.open] == []


def test_the_tests_that_are_named_exist() -> None:
    missing = [name for row in ROWS for name in row.tests if not _exists(name)]
    assert missing == []


def test_the_page_shows_the_matrix() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run python -m tests.faults.matrix"


def _exists(name: str) -> bool:
    if name.startswith("sim: "):
        return name.removeprefix("sim: ") in DRAWS
    if name.startswith("chaos: "):
        return name.removeprefix("chaos: ") in FAULTS
    file, _, test = name.partition("::")
    path = TESTS / f"{file}.py"
    return path.exists() and re.search(rf"def {test}\(", path.read_text()) is not None
