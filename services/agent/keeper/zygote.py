"""The zygote: a small fork of the keeper that forks all shims, so that the keeper itself never does.

After a fork, each page that the parent writes to is copied, and a Python process writes to most that it reads. The keeper
does much between two forks, the zygote almost nothing. A shim is the *keeper's* child all the same: the keeper reaps it,
and its parent-death signal is the keeper's. So the zygote holds nothing, and when it dies the next start makes another.
"""

import json
import marshal
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, NoReturn

from services.agent.keeper import contain, prepared, walls
from services.agent.keeper.shim import Shim

ANSWER_S = 2
"""One that takes longer is frozen and is replaced. Well within the agent's patience with the keeper."""
_SHIM, _MAKER = b".", b"v"
"""What the zygote is asked to fork."""
_ANSWER = struct.Struct("=i")
"""The shim's process id, or minus an errno."""


class Zygote:
    """The keeper's side. `name` is what `ps` shows of it and of shims: whoever comes after a keeper that was killed finds them
    by it."""

    def __init__(self, name: str, kind: str, bwrap: str = "") -> None:
        self._name, self._kind, self._bwrap = name, kind, bwrap
        self.pid = self._pidfd = 0
        self._sock: socket.socket | None = None

    def spawn(self, spec: dict[str, Any], control: socket.socket, view: int | None = None) -> int:
        """Forks a shim that starts this, with its end of the socket to the keeper and, if there is one, a prepared view.
        Returns its process id.

        Raises OSError.
        """
        return self._fork(_SHIM, spec, control, *(() if view is None else (view,)))

    def prepare(self, wanted: dict[str, Any], control: socket.socket) -> int:
        """The same of a maker of a view (`prepared.Prepared`), which says on its socket what it has made."""
        return self._fork(_MAKER, wanted, control)

    def _fork(self, what: bytes, spec: dict[str, Any], control: socket.socket, *more: int) -> int:
        message = os.memfd_create("spec")  # of any size, and nobody waits until it is read
        try:
            os.write(message, marshal.dumps(spec))  # to a fork of this process: nobody else reads it
            for _ in range(2):
                sock = self._sock or self._begin()
                try:
                    return _ask(sock, what, message, control.fileno(), *more)
                except (ConnectionError, TimeoutError):
                    self._end(sock)
        finally:
            os.close(message)
        raise OSError(None, "the process that starts processes has died twice")

    def _begin(self) -> socket.socket:
        sock, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_S, 0))
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _serve(its, self._name, self._kind, self._bwrap)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        its.close()
        self._sock, self._pidfd = sock, os.pidfd_open(self.pid)
        return sock

    def _end(self, sock: socket.socket) -> None:
        """It is gone or frozen. What it has forked without saying so hears that its control socket is closed, and ends."""
        sock.close()
        self._sock = None
        with suppress(ProcessLookupError, ChildProcessError):  # the keeper may have reaped it
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)


def _ask(sock: socket.socket, what: bytes, *descriptors: int) -> int:
    """Raises ConnectionError, TimeoutError, or the OSError that the zygote tells."""
    socket.send_fds(sock, [what], descriptors)
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


def _serve(requests: socket.socket, name: str, kind: str, bwrap: str) -> NoReturn:
    contain.die_with_parent()
    contain.name_process(name)
    signal.set_wakeup_fd(-1)
    _close_but(requests.fileno())
    flags = contain.CLONE_NEWPID if kind == contain.NAMESPACE and os.geteuid() == 0 else 0
    while True:
        asked, descriptors, _, _ = socket.recv_fds(requests, 1, 3)
        if not asked:
            os._exit(0)
        try:
            answer = contain.fork_sibling(flags if asked == _SHIM else 0)
        except OSError as e:
            answer = -(e.errno or 1)
        if answer == 0:
            if asked == _MAKER:
                _become_maker(descriptors[0], descriptors[1], bwrap)
            _become_shim(*descriptors, kind=kind, bwrap=bwrap)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(_ANSWER.pack(answer))


def _become_maker(message: int, control: int, bwrap: str) -> NoReturn:
    """Says what the view shows, with its namespace; or ends without a word."""
    contain.die_with_parent()
    os.setsid()
    wanted = _read(message)
    os.set_inheritable(control, False)
    held = socket.socket(fileno=control)
    _close_but(control)
    shown = prepared.identities(wanted["sources"]), prepared.mounted()
    (view,) = walls.made(bwrap, wanted["args"], ["mnt"])
    socket.send_fds(held, [json.dumps(shown).encode()], [view])
    os._exit(0)


def _become_shim(message: int, control: int, view: int | None = None, *, kind: str, bwrap: str) -> NoReturn:
    if kind == contain.NAMESPACE:
        contain.die_with_parent()  # and all with it; without a namespace it must live to end them
    os.setsid()
    spec = _read(message)
    kept = [fd for fd in (control, view) if fd is not None]
    for fd in kept:
        os.set_inheritable(fd, False)  # `recv_fds` of Python 3.11 cannot
    held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, control)  # told its kind, it need not ask the kernel
    _close_but(*kept)
    if kind == contain.NAMESPACE and os.geteuid() != 0:
        contain.own_user_and_pid_namespace(0 if spec.get("walls") else None)
        inner = os.fork()
        if inner:
            held.close()
            os.waitpid(inner, 0)
            os._exit(0)
        contain.die_with_parent()
    Shim(spec, held, kind, bwrap, view).run()


def _read(message: int) -> Any:
    return marshal.loads(os.pread(message, os.fstat(message).st_size, 0))


def _close_but(*kept: int) -> None:
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, 1 << 20)
