"""Fault matrix and findings name tests that exist; each row of the matrix has one or says why not; the page shows both."""

import re
from pathlib import Path

from libs.simulation.dst.faults import DRAWS
from tests.faults import undone
from tests.faults.chaos.faults import FAULTS
from tests.faults.matrix import PAGE, ROWS, page
from tests.simulation.issue_findings import FINDINGS

TESTS = Path(__file__).parents[1]


def test_every_fault_has_a_test_or_a_reason() -> None:
    assert len(ROWS) == 38
    assert [row.fault for row in ROWS if not row.tests and not row.open] == []


def test_the_tests_that_are_named_exist() -> None:
    missing = [name for row in ROWS for name in row.tests if not _exists(name)]
    assert missing == []


def test_the_tests_of_undone_mends_exist_and_the_page_shows_them() -> None:
    assert [one.test for one in undone.MENDS if not _exists(one.test)] == []
    text = PAGE.read_text()
    assert undone.page(text) == text, "run python -m tests.faults.undone"


def test_each_mend_stands_once_in_its_file() -> None:
    moved = [(one.file, one.mend) for one in undone.MENDS if (undone.ROOT / one.file).read_text().count(one.mend) != 1]
    assert moved == [], "a mend that moved can't be undone: write down where it stands now"


def test_the_page_shows_the_matrix() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run python -m tests.faults.matrix"


def test_each_finding_has_tests_that_exist() -> None:
    assert list(FINDINGS) == list(range(1, 18))
    assert [n for n, one in FINDINGS.items() if not one.tests or not all(map(_exists, one.tests))] == []


def _exists(name: str) -> bool:
    if name.startswith("sim: "):
        return name.removeprefix("sim: ") in DRAWS
    if name.startswith("chaos: "):
        return name.removeprefix("chaos: ") in FAULTS
    file, _, test = name.partition("::")
    path = TESTS / f"{file}.py"
    return path.exists() and re.search(rf"def {test}\(", path.read_text()) is not None
