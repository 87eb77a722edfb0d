"""The test run ends, whatever a test does to the process that runs it."""

import subprocess
import sys
from pathlib import Path

CONFTEST = """
from tests.kit.files_to_workers import FilesToWorkers

def pytest_xdist_make_scheduler(config, log):
    return FilesToWorkers(config, log)
"""
PASSES = "def test_one(): pass\ndef test_two(): pass\n"
CRASHES = (
    "import os, time\ndef test_first(): pass\ndef test_crashes(): time.sleep(1); os._exit(3)\ndef test_last(): pass\n"
)


def test_a_test_that_kills_its_worker_fails_alone_and_the_run_ends(tmp_path: Path) -> None:
    for name, text in {"conftest": CONFTEST, "test_a": PASSES, "test_b": PASSES, "test_c": CRASHES}.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", str(tmp_path)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 6 passed" in ended.stdout
    assert "crashed while running" in ended.stdout
