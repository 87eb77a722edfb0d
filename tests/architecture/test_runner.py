"""The test run ends, whatever a test does to the process that runs it; its long files begin first, tests are compiled once for
all workers, and it tells where its time went."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.files_to_workers import LONG, slowest

CONFTEST = """
from pathlib import Path

from tests.kit import files_to_workers
from tests.kit.compiled import compile_for_workers
from tests.kit.files_to_workers import FilesToWorkers

files_to_workers.LONG = ("test_a.py", "test_b.py")

def pytest_configure(config):
    compile_for_workers(config, Path(__file__).parent)

def pytest_collection_modifyitems(items):
    files_to_workers.long_first(items)

def pytest_terminal_summary(terminalreporter):
    files_to_workers.tell_slowest(terminalreporter)

def pytest_xdist_make_scheduler(config, log):
    return FilesToWorkers(config, log)
"""
PASSES = "import other\ndef test_one(): pass\ndef test_two(): pass\n"
CRASHES = (
    "import os, time\ndef test_first(): pass\ndef test_crashes(): time.sleep(1); os._exit(3)\ndef test_last(): pass\n"
)


@pytest.mark.timeout(600)  # two workers' imports on a busy machine
def test_a_test_that_kills_its_worker_fails_alone_and_the_run_ends(tmp_path: Path) -> None:
    files = {"conftest": CONFTEST, "test_a": PASSES, "test_b": PASSES, "test_c": CRASHES, "other": ""}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    options = ["-v", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 6 passed" in ended.stdout
    assert "crashed while running" in ended.stdout
    passed = re.findall(r"PASSED \S*test_([abc])\.py", ended.stdout)
    assert passed.index("c") >= 2, f"a long file, and the other begins behind it: {passed}"
    assert re.search(r"slowest files.*test_[abc]\.py", ended.stdout, re.DOTALL)
    kept = sorted(file.name.partition(".")[0] for file in (tmp_path / "__pycache__").glob("*.pyc"))
    assert kept == ["conftest", "other", "test_a", "test_b", "test_c"]


def test_where_the_time_went_is_told_file_by_file() -> None:
    def took(name: str, duration_s: float) -> pytest.TestReport:
        return pytest.TestReport(name, ("", 0, ""), {}, "passed", None, "call", duration=duration_s)

    short = [took(f"short_{number}.py::test", 0.1) for number in range(20)]
    reports = [took("b.py::test[one]", 3.0), *short, took("a.py::test", 10.0), took("b.py::test[other]", 5.0)]
    told = slowest(reports)
    assert told[:2] == ["   10.0  50%  a.py\n", "    8.0  40%  b.py\n"]
    assert len(told) == 10


def test_the_long_files_are_there() -> None:
    assert [name for name in LONG if not (Path(__file__).parents[2] / name).is_file()] == []
