"""Whether another process is gone is known of those that can be seen from here, and of no other."""

import os
import subprocess
import sys

from libs.ports.processes import is_gone, this_process

TELLS = "from libs.ports.processes import this_process; print(this_process(), flush=True)"


def told_by(code: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_that_runs_is_not_gone_and_one_that_ended_is() -> None:
    process, told = told_by(f"{TELLS}; input()")
    assert not is_gone(told)
    process.kill()
    process.communicate()
    assert is_gone(told)
    assert not is_gone(this_process())


def test_a_number_that_another_process_has_by_now_is_of_one_that_is_gone() -> None:
    here, _, ticks = this_process().rpartition("/")
    assert is_gone(f"{here}/{int(ticks) - 1}")


def test_nothing_is_known_of_processes_that_cannot_be_seen() -> None:
    boot, namespace, pid, ticks = this_process().split("/")
    gone = 2**22 + 1  # above any process id
    assert pid == str(os.getpid())
    assert is_gone(f"{boot}/{namespace}/{gone}/{ticks}")
    for elsewhere in (f"other/{namespace}/{gone}/{ticks}", f"{boot}/1/{gone}/{ticks}"):
        assert not is_gone(elsewhere)
    for nonsense in (
        "",
        "x",
        "a/b",
        f"{boot}/{namespace}/x/1",
        f"{boot}/{namespace}/1/x",
        f"{boot}/{namespace}/{10**30}/1",
    ):
        assert not is_gone(nonsense)
