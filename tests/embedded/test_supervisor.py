"""Arbitrary child processes: order, health, restart, stop, and what happens when the supervisor itself is killed."""

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.embedded import (
    EventKind,
    ProcessEvent,
    ProcessSpec,
    Servers,
    StartFailed,
    StateDirLocked,
    Supervisor,
    read_processes,
)
from libs.embedded.events import Backoff
from libs.embedded.ports import LOOPBACK, lease_port
from libs.embedded.process import _WRAPPER, LOG_LIMIT_BYTES, cap_log
from libs.embedded.records import kill_leftovers
from libs.ports.timerslack import SHARED_NS

FOREVER = "import time; time.sleep(3600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"
)
WITH_CHILD = (
    "import subprocess, sys, time; print(subprocess.Popen(['sleep', '3600']).pid, flush=True); time.sleep(3600)"
)

Build = Callable[..., ProcessSpec]
Until = Callable[..., Awaitable[Any]]


def says(path: Path, word: str) -> Callable[[], Awaitable[bool]]:
    """A probe: ready when the log holds the word."""

    async def probe() -> bool:
        return word in path.read_text()

    return probe


def accepts(port: int) -> Callable[[], Awaitable[bool]]:
    """A probe: ready when something accepts connections on the port."""

    async def probe() -> bool:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.close()
        return True

    return probe


def kinds(supervisor: Supervisor, name: str) -> list[EventKind]:
    return [event.kind for event in supervisor.events if event.name == name]


# --------------------------------------------------------------------------------------------------------------- start


async def test_a_process_starts_after_what_it_depends_on_and_stops_before_it(state_dir: Path, python: Build) -> None:
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(
            python("service", FOREVER, depends_on=("bus", "store")),
            python("bus", FOREVER, depends_on=("store",)),
            python("store", FOREVER),
        )
    started = [event.name for event in supervisor.events if event.kind is EventKind.STARTED]
    stopped = [event.name for event in supervisor.events if event.kind is EventKind.STOPPED]
    assert started == ["store", "bus", "service"]
    assert stopped == ["service", "bus", "store"]


async def test_a_process_shares_its_wakeups_with_others(state_dir: Path, python: Build) -> None:
    spec = python("bus", "import time; print(open('/proc/self/timerslack_ns').read(), flush=True); time.sleep(3600)")
    spec = replace(spec, ready=says(spec.log_path, f"{SHARED_NS}\n"))
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(spec)


def test_a_supervisor_of_an_earlier_release_that_still_runs_can_start_processes() -> None:
    """It knew no slack, and finds what starts them as it is now."""
    child = [sys.executable, "-I", "-S", _WRAPPER]
    said = subprocess.run([*child, str(os.getpid()), "echo", "up"], capture_output=True, text=True, check=True)
    assert said.stdout == "up\n"


async def test_a_command_that_fails_shows_the_end_of_its_log(state_dir: Path, python: Build) -> None:
    spec = python("placement", "import sys; print('BATON_POOL is missing'); sys.exit(3)", ready=never)
    async with Supervisor(state_dir) as supervisor:
        with pytest.raises(
            StartFailed, match=r"(?s)placement exited with code 3 .*placement.log:\nBATON_POOL is missing"
        ):
            await supervisor.start(spec, python("agent", FOREVER, depends_on=("placement",)))
        assert supervisor.processes() == {}


async def test_the_log_shown_is_of_this_run_only(state_dir: Path, python: Build) -> None:
    spec = python("placement", "import sys; sys.exit('second')", ready=never)
    spec.log_path.write_text("first\n")
    async with Supervisor(state_dir) as supervisor:
        with pytest.raises(StartFailed) as failure:
            await supervisor.start(spec)
    assert "second" in str(failure.value)
    assert "first" not in str(failure.value)


async def test_a_command_that_does_not_exist_is_named(state_dir: Path, tmp_path: Path) -> None:
    spec = ProcessSpec(name="agent", argv=["no-such-program"], log_path=tmp_path / "agent.log")
    async with Supervisor(state_dir) as supervisor:
        with pytest.raises(StartFailed, match="agent cannot start: no-such-program is not an executable"):
            await supervisor.start(spec)


async def test_a_process_that_never_gets_ready_is_stopped_and_told_why(state_dir: Path, python: Build) -> None:
    spec = python("agent", FOREVER, ready=never, ready_timeout_s=0.2)
    async with Supervisor(state_dir) as supervisor:
        with pytest.raises(StartFailed, match=r"agent was not ready within 0.2 s \(the probe said no\)"):
            await supervisor.start(spec)


async def test_a_process_that_never_gets_ready_has_its_time_to_end(
    state_dir: Path, python: Build, tmp_path: Path
) -> None:
    """Seen on a busy machine: it was killed at once, and still there when its start had failed."""
    up, ended = tmp_path / "up", tmp_path / "ended"
    code = (
        "import pathlib, signal, time\n"
        "def end(*_):\n"
        f"    time.sleep(0.3); pathlib.Path({str(ended)!r}).touch(); raise SystemExit\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(up)!r}).touch()\n"
        "while True: time.sleep(1)"
    )

    async with Supervisor(state_dir) as supervisor:
        with pytest.raises(StartFailed, match="agent was not ready within"):
            await supervisor.start(python("agent", code, ready=never, ready_timeout_s=2, stop_timeout_s=60))
    assert ended.exists() or not up.exists(), "it was killed while it ended"


async def test_one_failure_stops_everything_that_was_started_with_it(state_dir: Path, python: Build) -> None:
    async with Supervisor(state_dir) as supervisor:
        with pytest.raises(StartFailed, match="bad"):
            await supervisor.start(python("good", FOREVER), python("bad", "raise SystemExit(1)", ready=never))
        await supervisor.start(python("good", FOREVER))  # the name is free again


async def test_names_and_dependencies_are_checked_before_anything_starts(state_dir: Path, python: Build) -> None:
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(python("bus", FOREVER))
        with pytest.raises(ValueError, match="names in use already: bus"):
            await supervisor.start(python("bus", FOREVER))
        with pytest.raises(ValueError, match="a needs b; b needs a"):
            await supervisor.start(python("a", FOREVER, depends_on=("b",)), python("b", FOREVER, depends_on=("a",)))
        with pytest.raises(ValueError, match="unknown process or a circle: a needs buss"):
            await supervisor.start(python("a", FOREVER, depends_on=("buss",)))
        with pytest.raises(KeyError, match="no process 'buss' here; there are: bus"):
            supervisor.pid("buss")
    with pytest.raises(ValueError, match=r"'\.\./x' must consist of"):
        python("../x", FOREVER)


async def test_the_environment_is_added_to_ours(state_dir: Path, python: Build) -> None:
    code = "import os, time; print(os.environ['POOL'], 'PATH' in os.environ, flush=True); time.sleep(3600)"
    spec = python("agent", code, env={"POOL": "north"})
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(python("agent", code, env={"POOL": "north"}, ready=says(spec.log_path, "north True")))


# ------------------------------------------------------------------------------------------------------------- restart


async def test_a_process_that_dies_is_restarted_and_told(state_dir: Path, python: Build) -> None:
    told: list[ProcessEvent] = []
    async with Supervisor(state_dir, told.append) as supervisor:
        await supervisor.start(python("bus", FOREVER))
        pid = supervisor.pid("bus")
        os.kill(pid, 9)
        new_pid = await supervisor.wait_ready("bus", replaced_pid=pid)

        assert kinds(supervisor, "bus") == [EventKind.STARTED, EventKind.EXITED, EventKind.RESTARTED]
        assert told[1] == ProcessEvent(EventKind.EXITED, "bus", pid, 0, "was killed by SIGKILL")
        record = read_processes(state_dir)["bus"]
        assert (record.pid, record.restarts, record.state) == (new_pid, 1, "ready")


async def test_a_process_that_keeps_dying_is_tried_until_it_lives(
    state_dir: Path, python: Build, until: Until, tmp_path: Path
) -> None:
    broken, lease = tmp_path / "broken", lease_port()
    code = (
        "import pathlib, socket, time\n"
        f"assert not pathlib.Path({str(broken)!r}).exists(), 'disk is broken'\n"
        f"server = socket.create_server(('127.0.0.1', {lease.port})); time.sleep(3600)"
    )
    async with Supervisor(state_dir, backoff=Backoff(first_s=0.01)) as supervisor:
        await supervisor.start(python("bus", code, ready=accepts(lease.port)))
        broken.touch()
        os.kill(supervisor.pid("bus"), 9)
        await until(lambda: kinds(supervisor, "bus").count(EventKind.RESTART_FAILED) >= 2)
        assert "disk is broken" in supervisor.events[-1].detail
        broken.unlink()
        await supervisor.wait_ready("bus")
        broken.touch()
        os.kill(supervisor.pid("bus"), 9)
        await until(lambda: read_processes(state_dir)["bus"].state == "waiting")
        await supervisor.stop()  # also between two attempts
    lease.release()


async def test_a_process_not_to_be_restarted_stays_down(state_dir: Path, python: Build, until: Until) -> None:
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(python("job", "pass", restart=False))
        await until(lambda: read_processes(state_dir)["job"].state == "exited")
        assert supervisor.events[-1].detail == "exited with code 0"
        with pytest.raises(ProcessLookupError, match="job is exited and will not become ready"):
            await supervisor.wait_ready("job")


async def test_a_listener_that_raises_takes_nothing_down(state_dir: Path, python: Build) -> None:
    def listen(event: ProcessEvent) -> None:
        raise RuntimeError("listener")

    async with Supervisor(state_dir, listen) as supervisor:
        await supervisor.start(python("bus", FOREVER))
        await supervisor.restart("bus")
        assert psutil.pid_exists(supervisor.pid("bus"))


async def test_a_disk_without_room_is_told_in_one_line(
    state_dir: Path, python: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: `baton up` on a full disk wrote thirteen tracebacks of some twenty lines to the terminal."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("libs.embedded.supervisor.write_processes", full)
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(python("a", FOREVER), python("b", FOREVER))
    said = [record for record in caplog.records if "list of processes" in record.message]
    assert [(record.exc_info, record.message.endswith("No space left on device")) for record in said] == [(None, True)]


def test_backoff_doubles_to_its_limit_and_starts_over_after_health() -> None:
    backoff = Backoff()
    pauses = [backoff.next(None, ran_s=0)]
    for _ in range(7):
        pauses.append(backoff.next(pauses[-1], ran_s=9.9))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.next(5.0, ran_s=10.0) == 0.1


# ---------------------------------------------------------------------------------------------------------------- stop


async def test_a_process_that_ignores_sigterm_is_killed(state_dir: Path, python: Build, until: Until) -> None:
    spec = python("agent", STUBBORN, stop_timeout_s=0.2)
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(python("agent", STUBBORN, stop_timeout_s=0.2, ready=says(spec.log_path, "up")))
        pid = supervisor.pid("agent")
        await supervisor.stop("agent")
        await until(lambda: gone(pid))


async def test_what_a_process_started_goes_with_it(state_dir: Path, python: Build, until: Until) -> None:
    spec = python("agent", WITH_CHILD, ready=never)
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(python("agent", WITH_CHILD, ready=says(spec.log_path, "\n")))
        first = int(spec.log_path.read_text().split()[0])
        pid = supervisor.pid("agent")
        os.kill(pid, 9)
        await supervisor.wait_ready("agent", replaced_pid=pid)
        await until(lambda: gone(first))
        second = int((await until(lambda: spec.log_path.read_text().split()[1:]))[0])
        await supervisor.stop()
        await until(lambda: gone(second))


async def test_a_start_that_is_cancelled_leaves_nothing(state_dir: Path, python: Build, until: Until) -> None:
    async with Supervisor(state_dir) as supervisor:
        start = asyncio.create_task(supervisor.start(python("bus", FOREVER), python("agent", FOREVER, ready=never)))
        await until(lambda: "bus" in supervisor.processes() and supervisor.processes()["bus"].state == "ready")
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert supervisor.processes() == {}


async def test_a_stop_that_is_cancelled_kills(state_dir: Path, python: Build, until: Until) -> None:
    spec = python("agent", STUBBORN, ready=says(state_dir.parent / "agent.log", "up"))
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(spec, python("client", STUBBORN, depends_on=("agent",)))
        pids = [supervisor.pid("agent"), supervisor.pid("client")]
        stop = asyncio.create_task(supervisor.stop())
        await asyncio.sleep(0.05)
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stop
        await until(lambda: all(gone(pid) for pid in pids))


async def test_a_supervisor_killed_with_sigkill_leaves_no_children(state_dir: Path, until: Until) -> None:
    supervisor = stack_in_a_process(state_dir)
    pids = [record.pid for record in read_processes(state_dir).values()]
    assert len(pids) == 3

    supervisor.kill()
    supervisor.wait()

    await until(lambda: all(pid and gone(pid) for pid in pids))


async def test_the_directory_of_a_killed_stack_can_be_taken_over_at_once(state_dir: Path) -> None:
    victim = stack_in_a_process(state_dir)
    before = read_processes(state_dir)

    victim.kill()  # and no wait: its servers may still be running
    while True:
        try:
            async with Servers(state_dir) as servers:
                assert all(record.pid and gone(record.pid) for record in before.values())
                assert servers.supervisor.processes().keys() == before.keys()
            break
        except StateDirLocked:
            await asyncio.sleep(0.001)
    victim.wait()


# -------------------------------------------------------------------------------------------------------- book-keeping


async def test_leftovers_are_killed_by_pid_and_start_time_together(
    state_dir: Path, python: Build, until: Until
) -> None:
    async with Supervisor(state_dir) as supervisor:
        await supervisor.start(python("bus", FOREVER, restart=False))
        path = state_dir / "processes.json"
        record = read_processes(state_dir)["bus"]
        true_list = path.read_text()

        path.write_text(true_list.replace(f'"started_ticks": {record.started_ticks}', '"started_ticks": 1'))
        assert kill_leftovers(state_dir) == []  # the pid of a stranger

        path.write_text(true_list)
        assert kill_leftovers(state_dir) == ["bus"]
        await until(lambda: read_processes(state_dir)["bus"].state == "exited")


def test_a_log_is_cut_when_it_outgrows_its_limit(tmp_path: Path) -> None:
    log = tmp_path / "bus.log"
    with log.open("a") as writer:
        writer.truncate(LOG_LIMIT_BYTES + 1)
        cap_log(log)
        writer.write("goes on")
    assert log.read_text() == "goes on"
    assert (tmp_path / "bus.log.1").stat().st_size == LOG_LIMIT_BYTES + 1
    cap_log(log)
    cap_log(tmp_path / "none.log")
    assert log.read_text() == "goes on"


# ------------------------------------------------------------------------------------------------------------- helpers


def stack_in_a_process(state_dir: Path) -> "subprocess.Popen[bytes]":
    """A stack under a supervisor that is somebody to kill, ready when this returns."""
    code = (
        "import asyncio, sys; from libs.embedded import Servers\n"
        "async def main():\n"
        "    async with Servers(sys.argv[1]):\n"
        "        print('up', flush=True); await asyncio.sleep(3600)\n"
        "asyncio.run(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(state_dir)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
    return process


async def never() -> bool:
    return False


def gone(pid: int) -> bool:
    """Whether the process ended; a zombie that its new parent has not collected yet counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
