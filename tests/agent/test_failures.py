"""What an agent says of why a part failed: the category that decides whose budget of retries pays."""

import errno
import os

import pytest

from libs.adapters.devices import NoDevices
from schemas.attempts import Category
from services.agent.failures import TAIL_BYTES, why_failed, why_not_prepared, why_not_started
from services.agent.keeper import proc
from services.agent.reconcile import Refuse, Running, plan
from services.agent.variables import BadEnvironment
from tests.agent.build import part, rank, simulated, spec, state


@pytest.mark.parametrize(
    ("said", "category"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Category.OUT_OF_MEMORY),
        ("Traceback (most recent call last):\nMemoryError", Category.OUT_OF_MEMORY),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate", Category.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Category.HARDWARE),
        ("CUDA out of memory\nCUDA error: uncorrectable ECC error encountered", Category.HARDWARE),
        ("ValueError: wrong learning rate", None),
        ("", None),
    ],
)
def test_the_end_of_the_output_tells_what_drivers_and_frameworks_said(tmp_path, said, category) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text(f"step 1\n{said}\n")
    assert why_failed([], 0, log) is category


def test_only_the_end_of_the_output_counts(tmp_path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("CUDA out of memory, trying again\n" + "x" * TAIL_BYTES)
    assert why_failed([], 0, log) is None
    assert why_failed([], 0, tmp_path / "no such file") is None


def test_a_silent_device_counts_before_a_kill_for_memory_and_that_before_the_output(tmp_path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("uncorrectable ECC error")
    assert why_failed(["n0-gpu0"], 1, log) is Category.HARDWARE
    assert why_failed([], 1, log) is Category.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (FileNotFoundError(errno.ENOENT, "no such file"), Category.INPUT_MISSING),
        (NotADirectoryError(errno.ENOTDIR, "not a directory"), Category.INPUT_MISSING),
        (PermissionError(errno.EACCES, "not executable"), Category.USER_ERROR),
        (OSError(errno.ENOEXEC, "no program"), Category.USER_ERROR),
        (OSError(errno.ENOMEM, "no memory"), Category.HARDWARE),
        (OSError(errno.EAGAIN, "no more processes"), Category.HARDWARE),
        (OSError(errno.ENOSPC, "disk full"), Category.HARDWARE),
        (ValueError("embedded null byte"), Category.USER_ERROR),
    ],
)
def test_why_a_command_could_not_be_started(error: Exception, category: Category) -> None:
    assert why_not_started(error) is category


def test_a_part_that_cannot_be_prepared_is_the_jobs_fault_only_for_its_environment() -> None:
    assert why_not_prepared(BadEnvironment("BATON_RANK is Baton's own")) is Category.USER_ERROR
    assert why_not_prepared(NoDevices("device n0-gpu9 is not on this node")) is Category.HARDWARE
    assert why_not_prepared(OSError(errno.ENOSPC, "disk full")) is Category.HARDWARE


def test_the_kernels_count_of_kills_for_memory_is_read_from_the_cgroup(tmp_path) -> None:
    assert proc.oom_kills("") == 0
    assert proc.oom_kills(str(tmp_path)) == 0, "the memory controller is off"
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert proc.oom_kills(str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("wanted", "view", "category"),
    [
        (part(None, rank("n0-gpu9")), {"simulated": True}, Category.HARDWARE),
        (part(simulated()), {"simulated": False}, Category.USER_ERROR),
        (part(None, rank(epoch=1)), {"simulated": True, "epochs": {"n0-gpu0": 7}}, None),
    ],
)
def test_a_refusal_says_what_will_not_pass_by_itself(wanted, view, category) -> None:
    running = Running(node="n0", incarnation=1, devices={"n0-gpu0"}, **view)
    (refused,) = plan(state(wanted), running)
    assert isinstance(refused, Refuse)
    assert refused.category is category


async def test_a_failure_of_the_job_alone_says_nothing(place) -> None:
    place.start(part(spec("raise SystemExit(3)")))
    released = await place.released()
    assert (released.exit_code, released.category) == (3, None)


async def test_a_job_that_runs_out_of_memory_says_so(place) -> None:
    place.start(part(spec("x = bytearray(1 << 62)")))
    assert (await place.released()).category is Category.OUT_OF_MEMORY


async def test_a_device_that_no_longer_answers_is_why_the_job_failed(place) -> None:
    made = place.start(part(spec("raise SystemExit(1)")))
    made.launch.silent_devices = lambda: ["n0-gpu0"]
    assert (await place.released()).category is Category.HARDWARE


async def test_the_rank_that_failed_first_is_the_one_whose_output_counts(place) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1': raise MemoryError\ntime.sleep(600)"
    place.start(part(spec(code, stop_grace_s=0.2), rank("n0-gpu0"), rank("n0-gpu1", number=1)))
    assert (await place.released()).category is Category.OUT_OF_MEMORY


async def test_a_command_that_is_missing_and_one_that_cannot_be_executed_differ(place) -> None:
    place.start(part(spec("x", command=("no-such-program",))))
    assert (await place.released()).category is Category.INPUT_MISSING
    readable = place.root / "readable"
    readable.write_text("#!/bin/sh\n")
    os.chmod(readable, 0o644)
    place.seen.clear()
    place.start(part(spec("x", command=(str(readable),))))
    assert (await place.released()).category is Category.USER_ERROR


async def test_what_a_part_says_while_it_is_being_stopped_is_no_category(place) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(1))\nprint('up', flush=True)\ntime.sleep(600)"
    wanted = part(spec(code))
    made = place.start(wanted)
    await place.says(wanted, "up")
    made.stop()
    released = await place.released()
    assert (released.own_exit, released.category) == (False, None)
