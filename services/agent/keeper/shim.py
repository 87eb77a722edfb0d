"""The shim: a fork of the keeper that holds one attempt. It starts the processes, keeps their output, and ends last.

It says on its socket to the keeper: `started` or `failed`, `exited` with exit codes, `gone` when no process of the
attempt is left. It is told `signal` and `kill`. When its last process has ended, or the keeper is gone, it kills what is
left, daemons too, and ends.
"""

import errno
import json
import os
import select
import shutil
import signal
import socket
import time
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

from services.agent.keeper import contain, proc, walls
from services.agent.keeper.sink import Sink

LARGEST = 65_536
"""Bytes of one message between keeper and shim."""
_DEFAULT = tuple(
    int(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ)
)
"""Signals that a job finds as a new program expects them. Plain numbers: an enum's member touches more of what forks share."""
_LONGEST_PAUSE_S = 0.05
_STARTED = b'{"is": "started"}'

SPEC = ("group", "memory", "pids", "workdir", "command", "ranks", "log_limit", "remove", "walls")
"""What a shim needs of the agent's start message. `walls`: see `walls.Spec`, or None. `memory`: a cgroup to be made, `group`,
and its limit in `bytes`; or None. `pids`: the same, and how many processes it may have at `most`."""


class Shim:
    """`spec` has what `SPEC` names, `control` the socket to the keeper, `kind` how the attempt is contained, `bwrap` the
    program that makes walls, `view` a descriptor of a view that is prepared, or None."""

    def __init__(
        self, spec: dict[str, Any], control: socket.socket, kind: str, bwrap: str = "", view: int | None = None
    ) -> None:
        self.spec, self.control, self.kind, self.bwrap, self.view = spec, control, kind, bwrap, view
        self.useless = ""
        """Why that view was of no use."""
        self.running: dict[int, int] = {}
        """Process id -> rank, of the attempt's own processes."""
        self.codes: dict[int, int] = {}
        """Rank -> exit code, minus n for signal n; not told yet."""
        self.sinks: dict[int, Sink] = {}
        self.resting: list[Sink] = []
        self.above: int | None = None
        """A descriptor of the folder that holds the one to be removed: behind walls that is not there any more."""
        self.empty = False
        self.poll = select.poll()

    def run(self) -> NoReturn:
        self._hear_of_ends()
        try:
            self._start()
        except OSError as e:
            self._tell(
                {"is": "failed", "errno": e.errno, "error": e.strerror or str(e), "filename": str(e.filename or "")}
            )
            self._finish()
        except ValueError as e:
            self._tell({"is": "failed", "errno": None, "error": str(e), "filename": ""})
            self._finish()
        if self.useless:
            self._tell({"is": "started", "useless": self.useless})
        else:
            self._send(_STARTED)
        while self.running:
            self._turn()
        self._finish()

    def _hear_of_ends(self) -> None:
        """The keeper's signal handlers are its own: it ends last, whoever is asked to end."""
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.ends = read
        self.poll.register(read, select.POLLIN)
        self.poll.register(self.control, select.POLLIN)

    # -------------------------------------------------------------------------------------------------- starting

    def _start(self) -> None:
        """Raises OSError or ValueError, as starting a program does; what was started before that is still there."""
        if self.spec.get("group"):
            proc.enter_group(self.spec["group"])
        if memory := self.spec.get("memory"):
            proc.limit_memory(memory["group"], memory["bytes"])
        if pids := self.spec.get("pids"):
            proc.limit_processes(pids["group"], pids["most"])
        behind = self.spec.get("walls")
        if self.kind == contain.NAMESPACE:
            if not behind:
                contain.mount_own_proc()
        elif self.kind != contain.NONE:
            contain.become_subreaper()
        if folder := self.spec.get("remove"):
            self.above = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        outputs = [self._open_sink(rank["log"]) for rank in self.spec["ranks"]]  # they lie where no job sees them
        if behind:
            view = None if self.view is None else (self.view, self.spec["shown"])
            self.useless = walls.put_up(self.bwrap, behind, view)
            if self.view is not None:
                os.close(self.view)
        contain.gain_no_rights()
        with walls.as_user(behind["uid"], behind["gid"]) if behind else nullcontext():
            os.chdir(self.spec["workdir"])
            for rank, (read, write) in zip(self.spec["ranks"], outputs, strict=True):
                self._start_rank(rank["rank"], self.spec["command"], rank["environment"], read, write)

    def _open_sink(self, log: str) -> tuple[int, int]:
        read, write = os.pipe2(os.O_CLOEXEC)
        self.sinks[read] = Sink(log, read, self.spec["log_limit"])
        return read, write

    def _start_rank(self, rank: int, command: list[str], environment: dict[str, str], read: int, write: int) -> None:
        try:
            outputs = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2)]
            pid = os.posix_spawn(
                _program(command[0], environment.get("PATH", os.defpath)),
                command,
                environment,
                file_actions=outputs,
                setsid=True,
                setsigmask=(),
                setsigdef=_DEFAULT,
            )
        finally:
            os.close(write)
        self.running[pid] = rank
        self.poll.register(read, select.POLLIN)

    # --------------------------------------------------------------------------------------------------- holding

    def _turn(self) -> None:
        wait_ms = None
        if self.resting:
            now = time.monotonic()
            for sink in [sink for sink in self.resting if sink.resting_until <= now]:
                self.resting.remove(sink)
                self.poll.register(sink.fd, select.POLLIN)
            wait_ms = int(1 + 1000 * max(0.0, min((s.resting_until for s in self.resting), default=now) - now))
        for fd, _ in self.poll.poll(wait_ms if self.resting else None):
            if fd == self.ends:
                os.read(self.ends, 4096)
                self._reap()
                if self.codes and self.running:  # the last of them is told with the end of all
                    self._send(told_end("exited", self.codes))
                    self.codes = {}
            elif fd == self.control.fileno():
                self._obey()
            else:
                self._read(self.sinks[fd])

    def _read(self, sink: Sink) -> None:
        if not sink.read():
            self.poll.unregister(sink.fd)
            self.sinks.pop(sink.fd).close()
        elif sink.resting_until > time.monotonic():
            self.poll.unregister(sink.fd)
            self.resting.append(sink)

    def _obey(self) -> None:
        try:
            data = self.control.recv(LARGEST)
        except OSError:
            data = b""
        if not data:
            self._finish()  # the keeper is gone
        told = json.loads(data)
        if told["do"] == "kill":
            self._finish()
        if told["do"] == "signal":
            for pid, rank in list(self.running.items()):
                if told["ranks"] is None or rank in told["ranks"]:
                    _signal(pid, told["signal"], whole_session=told["group"])

    def _reap(self) -> None:
        """Takes the exit codes of all children that have ended, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            if pid == 0:
                return
            rank = self.running.pop(pid, None)
            if rank is not None:
                self.codes[rank] = os.waitstatus_to_exitcode(status)

    def _tell(self, message: dict[str, Any]) -> None:
        self._send(json.dumps(message).encode())

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # the keeper is gone: the next read says so
            self.control.send(message)

    # ---------------------------------------------------------------------------------------------------- ending

    def _finish(self) -> NoReturn:
        """Kills everything below until nothing is left: however long, never ended by a timeout."""
        pause_s = 0.001
        while True:
            self._reap()
            if self.empty:
                break
            self._kill()
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
        for sink in self.sinks.values():
            sink.close()
        if folder := self.spec.get("remove"):  # secrets: also when there is no agent any more
            above = self.above
            with suppress(RecursionError):  # without walls a job may have made it so deep: the agent removes it
                shutil.rmtree(folder if above is None else os.path.basename(folder), ignore_errors=True, dir_fd=above)
        self._send(told_end("gone", self.codes))
        os._exit(0)

    def _kill(self) -> None:
        if self.kind == contain.NAMESPACE:
            try:
                os.kill(-1, signal.SIGKILL)  # all of this namespace but its first process
            except ProcessLookupError:
                return
        else:
            proc.kill_all(proc.descendants([os.getpid()]))


def told_end(what: str, codes: dict[int, int]) -> bytes:
    """As `json.dumps` would write it, which touches, and so copies, four times as many pages of what forks share."""
    pairs = ", ".join([f'"{rank}": {code}' for rank, code in codes.items()])
    return f'{{"is": "{what}", "codes": {{{pairs}}}}}'.encode()


def _signal(pid: int, number: int, whole_session: bool) -> None:
    try:
        if whole_session:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _program(name: str, search_path: str) -> str:
    """The file that a command's first word means, as a shell finds it. A name that is nowhere is returned as it is: starting
    it then says what is wrong."""
    if "/" in name:
        return name
    denied = ""
    for folder in search_path.split(os.pathsep):
        path = os.path.join(folder or ".", name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            denied = denied or path
    if denied:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), denied)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
