"""Services forked from one process that has imported what they need: as if started by themselves, and no worse when it dies."""

import asyncio
import json
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.embedded import EventKind, ProcessSpec, Supervisor
from libs.embedded.events import Backoff
from libs.embedded.forkserver import Spawned
from libs.embedded.process import LOG_LIMIT_BYTES, guarded

Until = Callable[..., Awaitable[Any]]

TELLS = """
import os, signal, sys, time
print(__name__, sys.argv, "json" in sys.modules, "colorsys" in sys.modules, os.environ.get("SAID"), os.environ.get("HOME"),
      os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, os.getcwd(), flush=True)
code = os.environ.get("CODE")
if code:
    sys.exit(int(code))
time.sleep(3600)
"""


ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., ProcessSpec]:
    """Of a module that prints what it finds, then sleeps, or exits with `CODE`."""
    (tmp_path / "tells.py").write_text(TELLS)

    def build(name: str, *, env: dict[str, str] | None = None, **more: Any) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=[sys.executable, "-m", "tells"],
            module="tells",
            log_path=tmp_path / f"{name}.log",
            env={"PYTHONPATH": path(tmp_path), **(env or {})},
            **more,
        )

    return build


@pytest.fixture
async def supervisor(state_dir: Path, tmp_path: Path) -> AsyncIterator[Supervisor]:
    async with Supervisor(state_dir, backoff=Backoff(first_s=0.01, longest_s=0.1)) as supervisor:
        await supervisor.prepare(["colorsys", "no_such_module"], {"PYTHONPATH": path(tmp_path)})
        yield supervisor


def path(folder: Path) -> str:
    return os.pathsep.join([str(folder), ROOT])


def fork_server() -> psutil.Process:
    [found] = [child for child in psutil.Process().children() if child.cmdline()[0] == "baton fork server"]
    return found


def exits(supervisor: Supervisor, name: str) -> list[str]:
    return [event.detail for event in supervisor.events if event.name == name and event.kind is EventKind.EXITED]


async def test_a_forked_process_is_as_one_that_was_started_by_itself(
    supervisor: Supervisor, spec: Callable[..., ProcessSpec], tmp_path: Path, until: Until
) -> None:
    (tmp_path / "there").mkdir()
    await supervisor.start(spec("one", env={"SAID": "yes"}, cwd=tmp_path / "there"))
    log = tmp_path / "one.log"
    await until(lambda: log.read_text().endswith("\n"))
    assert log.read_text() == (
        f"__main__ ['{tmp_path}/tells.py'] True True yes {os.environ['HOME']} True True {tmp_path}/there\n"
    )
    process = psutil.Process(supervisor.pid("one"))
    assert process.cmdline()[0] == "tells"
    assert process.parent() == fork_server()
    await supervisor.stop("one")
    assert not process.is_running()


async def test_exit_codes_and_signals_are_told(
    supervisor: Supervisor, spec: Callable[..., ProcessSpec], until: Until
) -> None:
    await supervisor.start(spec("three", env={"CODE": "3"}, restart=False), spec("killed", restart=False))
    os.kill(supervisor.pid("killed"), signal.SIGUSR1)
    await until(lambda: exits(supervisor, "killed") and exits(supervisor, "three"))
    assert exits(supervisor, "killed") == ["was killed by SIGUSR1"]
    assert exits(supervisor, "three") == ["exited with code 3"]


async def test_when_the_fork_server_dies_what_it_forked_is_started_again_from_a_new_one(
    supervisor: Supervisor, spec: Callable[..., ProcessSpec]
) -> None:
    await supervisor.start(spec("one"), spec("two"))
    before = {name: supervisor.pid(name) for name in ("one", "two")}
    dead = fork_server()
    dead.kill()
    for name, pid in before.items():
        new = await supervisor.wait_ready(name, replaced_pid=pid)
        assert psutil.Process(new).parent() == fork_server() != dead


async def test_a_frozen_fork_server_hides_no_death_and_holds_up_no_start(
    supervisor: Supervisor, spec: Callable[..., ProcessSpec], monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    await supervisor.start(spec("one"))
    frozen = fork_server()
    frozen.suspend()
    monkeypatch.setattr("libs.embedded.forkserver._ANSWER_S", 0.2)
    try:
        before = supervisor.pid("one")
        os.kill(before, signal.SIGTERM)
        new = await supervisor.wait_ready("one", replaced_pid=before)
        assert psutil.Process(new).ppid() == os.getpid(), "started by itself"
        assert exits(supervisor, "one") == ["was killed by SIGKILL"], "what it ended by is not known"
    finally:
        frozen.resume()
    await until(lambda: not frozen.children())  # what it forked late, for nobody


async def test_the_first_answer_may_take_as_long_as_what_is_prepared(
    state_dir: Path, tmp_path: Path, spec: Callable[..., ProcessSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine imports take half a minute: ten processes did so at once, each by itself."""
    monkeypatch.setattr("libs.embedded.forkserver._ANSWER_S", 0.2)
    (tmp_path / "takes_long.py").write_text("import time\n\ntime.sleep(1.0)\n")
    async with Supervisor(state_dir) as supervisor:
        await supervisor.prepare(["takes_long"], {"PYTHONPATH": path(tmp_path)})
        await supervisor.start(spec("one"))
        assert psutil.Process(supervisor.pid("one")).parent() == fork_server()


async def test_an_environment_for_another_interpreter_is_not_forked(
    supervisor: Supervisor, spec: Callable[..., ProcessSpec], tmp_path: Path
) -> None:
    await supervisor.start(spec("one", env={"PYTHONPATH": str(tmp_path)}), spec("two", env={"PYTHONDEVMODE": "1"}))
    for name in ("one", "two"):
        assert psutil.Process(supervisor.pid(name)).ppid() == os.getpid()


async def test_what_cannot_be_prepared_is_said_in_its_log(
    supervisor: Supervisor, state_dir: Path, until: Until
) -> None:
    log = state_dir / "logs" / "forkserver.log"
    await until(lambda: "no_such_module failed: ModuleNotFoundError" in log.read_text())


async def test_the_fork_servers_log_is_cut_when_it_outgrows_its_limit(
    supervisor: Supervisor,
    state_dir: Path,
    spec: Callable[..., ProcessSpec],
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("libs.embedded.supervisor._LOG_CHECK_S", 0.05)
    log = state_dir / "logs" / "forkserver.log"
    await until(lambda: "no_such_module failed" in log.read_text())
    os.truncate(log, LOG_LIMIT_BYTES + 1)
    await supervisor.start(spec("one"))
    await until(lambda: log.stat().st_size < LOG_LIMIT_BYTES)
    assert (log.parent / "forkserver.log.1").stat().st_size > LOG_LIMIT_BYTES


async def test_nobody_is_forked_before_all_is_prepared(
    state_dir: Path, tmp_path: Path, spec: Callable[..., ProcessSpec]
) -> None:
    (tmp_path / "waits.py").write_text(
        f"import pathlib, time\n\nwhile not pathlib.Path('{tmp_path}/go').exists():\n    time.sleep(0.01)\n"
    )
    async with Supervisor(state_dir) as supervisor:
        await supervisor.prepare(["waits"], {"PYTHONPATH": path(tmp_path)})
        started = asyncio.ensure_future(supervisor.start(spec("one")))
        await asyncio.sleep(0.2)
        assert not started.done()
        (tmp_path / "go").touch()
        await started
        assert psutil.Process(supervisor.pid("one")).parent() == fork_server()


async def test_one_that_was_spawned_before_is_taken_over(
    state_dir: Path, tmp_path: Path, spec: Callable[..., ProcessSpec]
) -> None:
    environment = {**os.environ, "PYTHONPATH": path(tmp_path)}
    spawned = Spawned.start(["colorsys"], guarded(), environment, None)
    async with Supervisor(state_dir) as supervisor:
        await supervisor.prepare(["colorsys"], {"PYTHONPATH": path(tmp_path)}, spawned)
        await supervisor.start(spec("one"))
        assert psutil.Process(supervisor.pid("one")).ppid() == spawned.process.pid
    assert spawned.process.returncode is not None, "it ends with the supervisor"


@pytest.mark.parametrize("unread", [True, False])
async def test_it_ends_without_a_word_when_nobody_hears_it_any_more(tmp_path: Path, until: Until, unread: bool) -> None:
    """Seen: `baton up` ended because of a wrong file, and showed the traceback of its fork server. What is closed with
    something unread resets the other end; otherwise what is said of a process that has ended finds a broken pipe."""
    go = tmp_path / "go"
    (tmp_path / "waits.py").write_text(
        f"import pathlib, time\n\nwhile not pathlib.Path('{go}').exists():\n    time.sleep(0.01)\n"
    )
    with (tmp_path / "log").open("wb") as log:
        spawned = Spawned.start(["colorsys"], guarded(), {**os.environ, "PYTHONPATH": path(tmp_path)}, log)
        spawned.channel.setblocking(True)
        assert b"prepared" in spawned.channel.recv(4096)
        request = {"number": 0, "module": "waits", "env": {}, "cwd": None}
        socket.send_fds(spawned.channel, [json.dumps(request).encode()], [log.fileno()])
    if unread:
        await until(lambda: select.select([spawned.channel], [], [], 0)[0])
    else:
        forked = psutil.Process(json.loads(spawned.channel.recv(4096))["pid"])
        os.kill(spawned.process.pid, signal.SIGSTOP)
        go.touch()
        await until(lambda: forked.status() == psutil.STATUS_ZOMBIE)
    spawned.channel.close()
    os.kill(spawned.process.pid, signal.SIGCONT)
    await asyncio.to_thread(spawned.process.wait)
    assert (spawned.process.returncode, (tmp_path / "log").read_text()) == (0, "")
