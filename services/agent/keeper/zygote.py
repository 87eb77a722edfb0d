"""The zygote, on the keeper's side: a small program below the keeper (`native/`) from which all shims are forked.

It is a program of a few pages without an interpreter: a fork copies each page that is written to, and in a Python process that
is most of what it reads. A shim is a child of the *keeper* all the same: the keeper reaps it, and its parent-death signal is
the keeper's. So the zygote holds no state, and when it dies the next start makes another.
"""

import fcntl
import os
import signal
import socket
import struct
from contextlib import suppress

from services.agent.keeper import callfilter, spec
from services.agent.keeper.contain import PROGRAM

ANSWER_S = 2
"""One that takes longer is frozen and is replaced. Well within the agent's patience with the keeper."""
_REQUESTS = 3
"""The descriptor that it is told on."""
_SHIM, _MAKER, _WITH_VIEW, _WITH_FILE = 1, 2, 4, 8
_ANSWER = struct.Struct("=i")
"""The shim's process id, or minus an errno."""


def missing() -> str:
    """Why no process can be started here, or "". The text says what to do."""
    if os.access(PROGRAM, os.X_OK):
        return ""
    return (
        f"{PROGRAM} is missing, which starts the processes of jobs: it is compiled when Baton is installed; in a checkout run "
        "./dev, elsewhere install Baton's wheel for this processor (x86_64, aarch64)"
    )


class Zygote:
    """The keeper's side. `name` is what `ps` shows of it and of shims: whoever comes after a keeper that was killed finds them
    by it."""

    def __init__(self, name: str, kind: str, bwrap: str = "") -> None:
        """Raises OSError when there is no program."""
        self._setup = spec.setup(kind, name, bwrap, callfilter.COMMON, callfilter.LAST)
        program = os.open(PROGRAM, os.O_RDONLY | os.O_CLOEXEC)  # another version may take its place meanwhile
        try:  # above the one that the child's requests come on: it would lie there before it is executed
            self._program = fcntl.fcntl(program, fcntl.F_DUPFD_CLOEXEC, _REQUESTS + 1)
        finally:
            os.close(program)
        self.pid = self._pidfd = 0
        self._sock: socket.socket | None = None

    def spawn(self, asked: bytes, view: int | None = None) -> tuple[int, socket.socket]:
        """Forks a shim that starts this (`spec.attempt`), with a prepared view, if there is one. Returns its process id, and
        the socket to it. Raises OSError."""
        return self._fork(_SHIM, asked, () if view is None else (view,))

    def prepare(self, asked: bytes) -> tuple[int, socket.socket]:
        """The same of a maker of a view (`spec.making`), which says on its socket what it has made."""
        return self._fork(_MAKER, asked, ())

    def _fork(self, what: int, asked: bytes, view: tuple[int, ...]) -> tuple[int, socket.socket]:
        for _ in range(2):
            mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with its:
                    return self._tell(what, asked, mine, (its.fileno(), *view)), mine
            except (ConnectionError, TimeoutError):
                mine.close()
                self._end()
            except OSError:
                mine.close()
                raise
        raise OSError(None, "the process that starts processes has died twice")

    def _tell(self, what: int, asked: bytes, mine: socket.socket, given: tuple[int, ...]) -> int:
        zygote = self._sock or self._begin()
        if len(given) > 1:
            what |= _WITH_VIEW
        if len(asked) <= spec.LARGEST:
            mine.send(asked)  # to the shim itself, which alone reads it
            return _ask(zygote, what, given)
        large = os.memfd_create("spec")
        try:
            with open(large, "wb", closefd=False) as file:
                file.write(asked)
            return _ask(zygote, what | _WITH_FILE, (*given, large))
        finally:
            os.close(large)

    def _begin(self) -> socket.socket:
        sock, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_S, 0))
            sock.send(self._setup)
            program = f"/proc/self/fd/{self._program}"
            given = [(os.POSIX_SPAWN_DUP2, its.fileno(), _REQUESTS)]
            self.pid = os.posix_spawn(program, [PROGRAM], {}, file_actions=given)
        self._sock, self._pidfd = sock, os.pidfd_open(self.pid)
        return sock

    def close(self) -> None:
        """Ends it, and waits until it has ended."""
        self._end()
        os.close(self._program)

    def _end(self) -> None:
        """It is gone or frozen. What it has forked without saying so hears that its control socket is closed, and ends."""
        if self._sock is None:
            return
        self._sock.close()
        self._sock = None
        with suppress(ProcessLookupError, ChildProcessError):  # the keeper may have reaped it
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)


def _ask(sock: socket.socket, what: int, descriptors: tuple[int, ...]) -> int:
    """Raises ConnectionError, TimeoutError, or the OSError that the zygote tells."""
    socket.send_fds(sock, [bytes((what,))], descriptors)
    try:
        answer = sock.recv(_ANSWER.size)
    except BlockingIOError:
        raise TimeoutError from None
    if not answer:
        raise ConnectionResetError
    (pid,) = _ANSWER.unpack(answer)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid), "clone")
    return int(pid)
