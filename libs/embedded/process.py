"""One child process: what to run (`ProcessSpec`) and one run of it (`Child`), from spawn to the last of its group."""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from libs.embedded.forkserver import Forked, ForkServer, NotForked
from libs.ports.timerslack import SHARED_NS

_log = logging.getLogger(__name__)

Probe = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Unhealthy:
    """A process that runs and does not do its work. `curable`: it would if it were started anew now."""

    why: str
    curable: bool


IllProbe = Callable[[], Awaitable[Unhealthy | None]]

LOG_LIMIT_BYTES = 16 * 1024 * 1024
_TAIL_BYTES = 4096
_TAIL_LINES = 25
_PROBE_TIMEOUT_S = 2.0
_WRAPPER = str(Path(__file__).with_name("child.py"))


class StartFailed(RuntimeError):
    """A process did not become ready; the message ends with the last lines that it logged."""

    def __init__(self, name: str, problem: str, log_path: Path, tail: str) -> None:
        said = f"last lines of {log_path}:\n{tail}" if tail else f"it wrote nothing to {log_path}"
        super().__init__(f"{name} {problem}; {said}")
        self.name = name


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """What to run and how to tell that it is ready. `env` is added to the environment of the caller. `module` says that
    `argv` is `python -m module`: where a fork server runs, it is forked."""

    name: str
    argv: Sequence[str]
    log_path: Path
    module: str | None = None
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    ready: Probe | None = None  # None: ready as soon as it runs
    ready_timeout_s: float = 30.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0
    restart: bool = True
    ill: IllProbe | None = None  # asked while it runs
    depends_on: tuple[str, ...] = ()
    port: int | None = None  # only reported, in processes.json

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise ValueError(f"process name {self.name!r} must consist of letters, digits, '.', '_' and '-'")
        if isinstance(self.argv, str) or not self.argv:
            raise ValueError(f"argv of process {self.name!r} must be a non-empty list of strings, not {self.argv!r}")


class Child:
    """One run of a spec. The process leads a session and group of its own, so Ctrl-C reaches only the supervisor."""

    def __init__(self, spec: ProcessSpec, process: "asyncio.subprocess.Process | Forked", log_start: int) -> None:
        self.spec = spec
        self.pid = process.pid
        self._process = process
        self._log_start = log_start
        self._buried = False

    @classmethod
    async def spawn(cls, spec: ProcessSpec, forks: ForkServer | None = None) -> "Child":
        """Run the command with its output appended to the log.

        Raises:
            StartFailed: the program or working directory does not exist, or the system refused to make a process.
        """
        environment = {**os.environ, **(spec.env or {})}
        if shutil.which(spec.argv[0], path=environment.get("PATH")) is None:
            raise StartFailed(spec.name, f"cannot start: {spec.argv[0]} is not an executable", spec.log_path, "")
        cap_log(spec.log_path)
        try:
            with open_log(spec.log_path) as log:
                log_start = log.seek(0, os.SEEK_END)
                process = await _forked(spec, environment, log, forks) or await asyncio.create_subprocess_exec(
                    *guarded(),
                    *spec.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=spec.cwd,
                    start_new_session=True,
                )
        except OSError as error:
            raise StartFailed(spec.name, f"cannot start: {error}", spec.log_path, "") from error
        return cls(spec, process, log_start)

    async def wait(self) -> int:
        """Wait for the process to end and return its exit code, negative for a signal."""
        return await self._process.wait()

    async def until_ready(self) -> None:
        """Ask the probe until it says yes.

        Raises:
            StartFailed: the process ended first, or was not ready in time.
        """
        if self.spec.ready is None:
            return
        ended = asyncio.ensure_future(self._process.wait())
        said = "no answer"
        pause = 0.01
        try:
            async with asyncio.timeout(self.spec.ready_timeout_s):
                while not ended.done():
                    try:
                        async with asyncio.timeout(_PROBE_TIMEOUT_S):
                            answer = await self.spec.ready()
                        if answer and not ended.done():  # done: someone else answered on our port
                            return
                        said = "the probe said no"
                    except Exception as error:  # whatever a probe raises means "not yet"
                        said = f"the probe raised {error!r}"
                    await asyncio.wait({ended}, timeout=pause)
                    pause = min(pause * 1.5, 0.25)
            raise self._failed(f"{describe_exit(ended.result())} before it was ready")
        except TimeoutError:
            raise self._failed(f"was not ready within {self.spec.ready_timeout_s:g} s ({said})") from None
        finally:
            ended.cancel()

    async def stop(self) -> None:
        """Ask the process to end, wait, then kill whatever is left of its group. Safe to repeat and to cancel."""
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._signal(self.spec.stop_signal)
            async with asyncio.timeout(self.spec.stop_timeout_s):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            self.kill_group()
        await self._process.wait()

    def _signal(self, number: int) -> None:
        """Not through Popen: that one looks first whether the process has ended, and asyncio's watcher never learns how."""
        if isinstance(self._process, Forked):
            self._process.send_signal(number)
        else:
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL the process and everything it started in its group; nothing once that is done after its end."""
        if self._buried:
            return  # by now the pid may belong to somebody else
        self._buried = self._process.returncode is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _failed(self, problem: str) -> StartFailed:
        return StartFailed(self.spec.name, problem, self.spec.log_path, log_tail(self.spec.log_path, self._log_start))


def guarded() -> tuple[str, ...]:
    """What to put before a command line so that it dies with this process."""
    return (sys.executable, "-I", "-S", _WRAPPER, f"{os.getpid()}:{SHARED_NS}")


async def _forked(
    spec: ProcessSpec, environment: Mapping[str, str], log: BinaryIO, forks: ForkServer | None
) -> Forked | None:
    if spec.module is None or forks is None:
        return None
    try:
        return await forks.fork(spec.module, environment, spec.cwd, log)
    except NotForked as error:
        _log.warning("%s starts by itself: %s", spec.name, error)
        return None


def open_log(path: Path) -> BinaryIO:
    """Appends; only our user may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def describe_exit(code: int) -> str:
    """An exit code in words: "exited with code 1", "was killed by SIGKILL"."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def log_tail(path: Path, start: int = 0) -> str:
    """The last lines of a log, none of them from before byte `start`."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(min(start, size), size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])


def cap_log(path: Path) -> None:
    """Move a log that outgrew LOG_LIMIT_BYTES to `<name>.1`, also while its process writes (it appends, so it goes on).

    Lines written between the copy and the truncation are lost: the price of not needing the writer's help. When the
    disk is too full for the copy, the log is cut all the same.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size <= LOG_LIMIT_BYTES:
            return
        with contextlib.suppress(OSError):
            shutil.copyfile(path, path.with_name(path.name + ".1"))
        os.truncate(path, 0)
