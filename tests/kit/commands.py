"""`baton` as people and scripts meet it, services, and fork servers of stacks, forked from a process that has imported them: a
command's imports cost half a second of CPU, those of a service or of a stack more than one, and the tests start hundreds.

What is run is `python -m libs.cli`, `python -m services.NAME`, a service of the tests or `tests.kit.stems`, in a process of
its own with its own arguments, environment, folder, input and output. `Fork` is for tests; `python -m tests.kit.commands FD
MODULE` is the process that forks.
"""

import array
import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).parents[2]
_MESSAGE_BYTES = 128 * 1024
COMMANDS, AGENT, SMALL_SERVICE = "libs.cli", "services.agent", "tests.service.small_service"
STEMS = "tests.kit.stems"
"""What can be run."""


class Fork:
    """The process that forks what runs `module`. It ends with the one that started it."""

    def __init__(self, module: str, env: Mapping[str, str] | None = None, *, stacks: bool = False) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.kit.commands", str(theirs.fileno()), module, *["stacks"] * stacks]
        env = {k: v for k, v in (env or os.environ).items() if not k.startswith("BATON_")}
        env["OPENBLAS_NUM_THREADS"] = "1"
        subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()])
        theirs.close()

    async def run(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: bytes = b""
    ) -> tuple[int, bytes, bytes]:
        """Exit code (negative for a signal), stdout and stderr of `baton *arguments`. Whoever stops waiting ends it."""
        files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
        try:
            os.write(files[0], stdin)
            os.lseek(files[0], 0, os.SEEK_SET)
            with self._forked(arguments, env, cwd, files) as asked:
                asked.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_recv(asked, 16)  # its process id
                code = await loop.sock_recv(asked, 16)
            return int(code), _read(files[1]), _read(files[2])
        finally:
            for file in files:
                os.close(file)

    def start(
        self,
        env: Mapping[str, str],
        cwd: Path,
        log: BinaryIO,
        *,
        arguments: Sequence[str] = (),
        stdin: int | None = None,
        out: BinaryIO | None = None,
        own_session: bool = False,
    ) -> "Forked":
        """One that runs on; what it says in `log`, what it prints in `out`, or there, too. It ends with the one that started
        it, too."""
        with open(os.devnull) as nothing:
            files = [nothing.fileno() if stdin is None else stdin, (out or log).fileno(), log.fileno()]
            return Forked(self._forked(arguments, env, cwd, files, own_session=own_session))

    def _forked(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        files: Sequence[int],
        *,
        own_session: bool = False,
    ) -> socket.socket:
        """Tells the process id of the fork, then its exit code; at this socket's end the fork is killed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            asked = {"arguments": arguments, "env": dict(env), "cwd": str(cwd), "own_session": own_session}
            request = json.dumps(asked).encode()
            descriptors = array.array("i", [*files, theirs.fileno()])
            self._channel.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        return ours


class Forked:
    """As `subprocess.Popen`."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self.pid = int(asked.recv(16))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(socket.MSG_DONTWAIT)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._asked], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("what was forked", timeout or 0.0)
        code = self._ended(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, flags: int) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self.returncode = int(self._asked.recv(16, flags))
                self._asked.close()
        return self.returncode


@cache
def fork(module: str = COMMANDS, *, stacks: bool = False) -> Fork:
    """The one of this process. With `stacks` it has imported what services share, too: for commands that start them."""
    return Fork(module, stacks=stacks)


def _read(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as opened:
        return opened.read()


def _serve(channel: socket.socket) -> list[str] | None:
    """The arguments of a command, in the process that is to run it; None in this one, when nobody asks any more."""
    wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([channel, wakes, *running.values()], [], [])
        for pid in [pid for pid, asker in running.items() if asker in readable]:
            running.pop(pid).close()  # it says nothing: it has stopped waiting
            os.kill(pid, signal.SIGKILL)
        if wakes in readable:
            os.read(wakes, 4096)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if asker := running.pop(ended[0], None):
                        asker.send(str(os.waitstatus_to_exitcode(ended[1])).encode())
                        asker.close()
        if channel not in readable:
            continue
        data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 4)
        if not data:
            return None
        *files, asker_fd = descriptors
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, file in enumerate(files):
                os.dup2(file, number)
            for own in (channel, *running.values()):
                own.close()
            for file in (*descriptors, wakes, wake):
                os.close(file)
            request = json.loads(data)
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            if request["own_session"]:
                os.setsid()
            return list(request["arguments"])
        running[pid] = socket.socket(fileno=asker_fd)
        running[pid].send(str(pid).encode())
        for file in files:
            os.close(file)


def _main() -> None:
    channel, module, *stacks = int(sys.argv[1]), *sys.argv[2:]
    if module == COMMANDS:
        from libs.cli import main

        for entry in main.COMMANDS.values():
            main.load(entry.module)
    elif module.startswith("services."):
        importlib.import_module(f"{module}.app")
    else:
        importlib.import_module(module)
        del sys.modules[module]  # it is run anew, and what it imports is there
    if stacks:
        from tests.kit.stems import prepare_all

        prepare_all()
        del sys.modules[STEMS]
    gc.collect()
    gc.freeze()
    arguments = _serve(socket.socket(fileno=channel))
    if arguments is not None:
        sys.argv[1:] = arguments
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                _end(end.code or 0)
            raise
        _end(0)


def _end(code: int) -> None:
    """As the interpreter ends, but that nothing is freed: each page would be copied first, nine tenths of what a command costs.
    Returns where nobody reads what was said: the interpreter has words of its own for that."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main()
