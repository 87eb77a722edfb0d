"""The test run ends, whatever a test does to the process that runs it, and its long files begin first."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.files_to_workers import LONG

CONFTEST = """
from tests.kit import files_to_workers
from tests.kit.files_to_workers import FilesToWorkers

files_to_workers.LONG = ("test_a.py", "test_b.py")

def pytest_collection_modifyitems(items):
    files_to_workers.long_first(items)

def pytest_xdist_make_scheduler(config, log):
    return FilesToWorkers(config, log)
"""
PASSES = "def test_one(): pass\ndef test_two(): pass\n"
CRASHES = (
    "import os, time\ndef test_first(): pass\ndef test_crashes(): time.sleep(1); os._exit(3)\ndef test_last(): pass\n"
)


@pytest.mark.timeout(600)  # two workers' imports on a busy machine
def test_a_test_that_kills_its_worker_fails_alone_and_the_run_ends(tmp_path: Path) -> None:
    for name, text in {"conftest": CONFTEST, "test_a": PASSES, "test_b": PASSES, "test_c": CRASHES}.items():
        (tmp_path / f"{name}.py").write_text(text)
    options = ["-v", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 6 passed" in ended.stdout
    assert "crashed while running" in ended.stdout
    passed = re.findall(r"PASSED \S*test_([abc])\.py", ended.stdout)
    assert passed.index("c") >= 2, f"a long file, and the other begins behind it: {passed}"


def test_the_long_files_are_there() -> None:
    assert [name for name in LONG if not (Path(__file__).parents[2] / name).is_file()] == []
