"""The table of attempts in docs/security.md says what the tests try, and nothing else."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.walls.attempts import ATTEMPTS, PAGE, ROOT, Attempt, written

FINDINGS = set(range(1, 9))
BESIDES = {
    "tests/jail/test_full.py": ["tests/jail/hostile.py"],
    "tests/walls/test_hostile.py": ["benchmarks/hostility.py"],
}
"""Where the attacks of a test stand."""
PLAYED = ("tests/walls/test_attacks.py", "tests/walls/test_protocol.py", "tests/walls/test_hostile.py")
"""Of these files every test is an attempt."""


@cache
def functions(path: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_page_has_the_table() -> None:
    assert written(PAGE.read_text()) == PAGE.read_text(), "run `python -m tests.walls.attempts`"


def test_there_are_enough_and_each_finding_has_some() -> None:
    assert len({one.tries + one.who for one in ATTEMPTS}) == len(ATTEMPTS)
    assert {one.finding for one in ATTEMPTS} >= FINDINGS
    assert sum(not one.finding for one in ATTEMPTS) >= 30


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.tries[:40])
def test_each_is_made_by_a_test(attempt: Attempt) -> None:
    name, _, function = attempt.test.partition("::")
    path = ROOT / name
    assert function in functions(path)
    text = "".join((ROOT / each).read_text() for each in [name, *BESIDES.get(name, [])])
    assert attempt.where in text, f"{attempt.where!r} is not tried any more"


@pytest.mark.parametrize("name", PLAYED)
def test_every_test_of_attacks_has_a_row(name: str) -> None:
    tests = {f"{name}::{one}" for one in functions(ROOT / name) if one.startswith("test_")}
    assert tests <= {one.test for one in ATTEMPTS}
