"""A fork server: services that share most of what they import are forked from one process that has imported it.

A service's imports cost a second of CPU and 60 to 140 MiB, of which a fork costs 10 ms and the pages that it changes. Its exit
code comes from the fork server, its end from a pidfd: so a fork server that is frozen hides no end. When the fork server
dies, so does by the kernel what it forked, and the supervisor starts all that again, with a new one.
"""

import array
import asyncio
import contextlib
import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from libs.embedded.forked import MESSAGE_BYTES, split_off

_ANSWER_S = 30.0
"""An answer takes a millisecond. After this a process starts by itself."""
_FIRST_ANSWER_S = 180.0
"""Until all is prepared: the imports, on a machine that does much else.
Processes that start by themselves meanwhile would all do the same, at the same time."""
_CODE_S = 1.0
"""How long after its end a process's exit code is waited for."""


_MAIN = "from libs.embedded.forked import main; main()"
"""Not `-m`: the package imports that module, and it would be there twice."""


class NotForked(RuntimeError):
    """The fork server cannot start this process: start it by itself."""


_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's library starts a thread for each core."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Libraries that are loaded within the block start no threads: a process with threads cannot be split."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Split:
    """A fork of this process, with those methods of `subprocess.Popen` that are used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None: it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """The same, once it has ended."""
        while (code := self._wait(0)) is None:
            pass
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has waited for it
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _channels() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


@dataclass(frozen=True)
class Spawned:
    """A fork server's process, which prepares while nobody has taken it over yet (`ForkServer`)."""

    what: Sequence[str]
    environment: Mapping[str, str]
    process: "subprocess.Popen[bytes] | Split"
    channel: socket.socket

    @classmethod
    def start(
        cls, what: Sequence[str], argv: Iterable[str], environment: Mapping[str, str], log: BinaryIO | None
    ) -> "Spawned":
        """Returns at once; meanwhile it imports the modules `what`, and calls what is given as `module:function`. `argv` comes
        before the interpreter's own. Without a `log` it complains where the caller does.

        Raises OSError when the system refuses to make a process.
        """
        ours, theirs = _channels()
        with theirs:
            try:
                process = subprocess.Popen(
                    [*argv, sys.executable, "-c", _MAIN, str(theirs.fileno()), *what],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**environment, **_ONE_THREAD},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        return cls(what, environment, process, ours)

    @classmethod
    def split(cls, what: Sequence[str], environment: Mapping[str, str]) -> "Spawned":
        """The same as a fork of this process, which shares all that it has imported with it and with what it forks. That
        process does not return from here: SystemExit is raised in it, and in each that it forks, once their work is done. For a
        command that has imported what it needs, and begun nothing: no thread, no event loop.

        Raises OSError when the system refuses to make a process, or when this one has threads.
        """
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError("a process with threads cannot be forked")
        ours, theirs = _channels()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.freeze()  # a search for garbage would change, and so copy, what both have
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            ours.close()
            split_off(theirs, what, {**environment, **_ONE_THREAD}, parent)
        theirs.close()
        return cls(what, environment, Split(pid), ours)

    def end(self) -> None:
        """Nobody takes it over."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


class Forked:
    """One forked process, with the methods of `asyncio.subprocess.Process` that `Child` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._over = asyncio.ensure_future(self._watch())

    async def wait(self) -> int:
        """Its exit code, negative for a signal; -9 also where the fork server took it to its grave."""
        return await asyncio.shield(self._over)

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError when it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        signal.pidfd_send_signal(self._pidfd, number)

    def ended(self, code: int) -> None:
        """Told by the fork server."""
        if not self._told.done():
            self._told.set_result(code)

    async def _watch(self) -> int:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self._pidfd)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._told), _CODE_S)
        self.returncode = self._told.result() if self._told.done() else -signal.SIGKILL
        os.close(self._pidfd)
        return self.returncode


class ForkServer:
    """Then `fork` as often as wanted; `stop` ends it and all that it forked."""

    def __init__(self, spawned: Spawned) -> None:
        """Takes over what was spawned; in a running event loop."""
        self._process, self._channel = spawned.process, spawned.channel
        self._interpreter = of_interpreter(spawned.environment)
        self._asked: dict[int, asyncio.Future[Forked]] = {}
        self._numbers = itertools.count()
        self._forked: dict[int, Forked] = {}
        self._prepared = False
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._read)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and self._channel.fileno() >= 0

    async def fork(self, module: str, environment: Mapping[str, str], cwd: Path | None, log: BinaryIO) -> Forked:
        """A process that runs `module` as `python -m` does, its output appended to `log`.

        Raises NotForked: the environment changes how Python itself works, or the fork server is gone, or does not answer.
        """
        if not self.alive:
            raise NotForked("the fork server is gone")
        if of_interpreter(environment) != self._interpreter:
            raise NotForked("its environment is for an interpreter of its own")
        number = next(self._numbers)
        request = {"number": number, "module": module, "env": dict(environment), "cwd": cwd and str(cwd)}
        message = json.dumps(request).encode()
        if len(message) > MESSAGE_BYTES:
            raise NotForked("its environment is too long")
        answer: asyncio.Future[Forked] = asyncio.get_running_loop().create_future()
        try:
            descriptor = array.array("i", [log.fileno()])
            self._channel.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])
            self._asked[number] = answer
            within_s = _ANSWER_S if self._prepared else _FIRST_ANSWER_S
            return await asyncio.wait_for(asyncio.shield(answer), within_s)
        except (OSError, TimeoutError) as error:
            answer.add_done_callback(_end)  # if it comes after all
            raise NotForked(f"the fork server does not answer: {error!r}") from error
        except asyncio.CancelledError:
            answer.add_done_callback(_end)
            raise

    async def stop(self) -> None:
        """Safe to repeat."""
        self._close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.to_thread(self._process.wait)

    def _read(self) -> None:
        try:
            data = self._channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        match json.loads(data):
            case {"prepared": _}:
                self._prepared = True
            case {"pid": pid, "status": status}:
                if forked := self._forked.pop(pid, None):
                    forked.ended(os.waitstatus_to_exitcode(status))
            case {"pid": pid, "number": number}:
                answer = self._asked.pop(number)
                try:
                    self._forked[pid] = forked = Forked(pid)
                except OSError as error:  # gone already, and buried
                    answer.set_exception(NotForked(f"it ended at once: {error}"))
                else:
                    answer.set_result(forked)

    def _close(self) -> None:
        if self._channel.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(NotForked("the fork server is gone"))
                answer.exception()  # seen
        self._asked.clear()


def _end(answer: "asyncio.Future[Forked]") -> None:
    """Nobody waits for this process any more: another has been started in its place."""
    if not answer.cancelled() and answer.exception() is None:
        with contextlib.suppress(ProcessLookupError):
            answer.result().send_signal(signal.SIGKILL)


def of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """What is read when Python or a library starts, and not by a service: a forked process has it from the fork server."""
    read = ("PYTHON", "LD_", "MALLOC_")
    return {name: value for name, value in environment.items() if name.startswith(read)}
