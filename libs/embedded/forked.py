"""The fork server's own process: imports what services need once, then forks a process for each that is to run.

Started by `libs.embedded.forkserver` with FD WHAT..., where WHAT is a module to import, or
`module:function` to call, too. FD is a socket of whole messages (SOCK_SEQPACKET): in comes `{"number", "module", "env", "cwd"}`
with the descriptor of a log; out goes `{"number", "pid"}` once it is forked, `{"pid", "status"}` (as of waitpid) when it has
ended, and `{"prepared"}` when all is. At the socket's end this process ends, and the kernel ends with it what it forked.

All is prepared, in order, before the first process is forked: what is imported later, each would have for itself.

Nothing here may start a thread: a fork copies the one that calls it, and the locks of all others.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import logging
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader
from types import CodeType, ModuleType
from typing import Any, NoReturn

import setproctitle

MESSAGE_BYTES = 128 * 1024
"""The longest request: below what a socket's buffer takes by default, well above any service's environment."""

_PR_SET_PDEATHSIG = 1
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
"""Found before the fork, and not in each process after it. None: not Linux."""


def main() -> None:
    """As `serve`, with what the command line says."""
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])


def split_off(channel: socket.socket, prepared: Sequence[str], environment: Mapping[str, str], parent: int) -> NoReturn:
    """As `serve`, in a fork of a process that did something else until now. Raises SystemExit at the end of each process."""
    os.setsid()
    _die_with(parent)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    setproctitle.getproctitle()  # it looks where the environment lies before that is moved
    os.environ.update(environment)
    logging.getLogger("baton").setLevel(logging.NOTSET)  # a command tells its complaints in its own words
    try:
        serve(channel, prepared)
    except SystemExit as end:
        if isinstance(end.code, str):  # an interpreter writes it, and the command that this process was writes nothing
            print(end.code, file=sys.stderr)
            sys.exit(1)
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    sys.exit()


def serve(channel: socket.socket, prepared: Sequence[str]) -> None:
    """Serves until the socket ends. In each forked process it returns after having run the module."""
    wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    setproctitle.setproctitle(
        "baton fork server"
    )  # before anything moves the environment, behind which it looks for the title
    gc.disable()  # a fifth of what imports cost; what it frees are holes, which each fork would fill with pages of its own
    request = _serve(channel, wakes, prepared)
    if request is None:
        return
    gc.enable()
    os.close(wakes)
    os.close(wake)
    channel.close()
    sys.argv = [request["module"]]
    if (found := request["main"]) is None:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"], code = found
        exec(code, found[0].__dict__)


def prepare(what: str) -> None:
    """Imports a module, or calls the function of `module:function`, too."""
    module, _, function = what.partition(":")
    try:
        found = importlib.import_module(module)
        if function:
            getattr(found, function)()
    except Exception as error:  # whoever is forked to run it says so in its own log
        print(f"fork server: {what} failed: {error!r}", file=sys.stderr)


def _main_of(module: str) -> tuple[ModuleType, CodeType] | None:
    """What `python -m` runs of a package that is imported: looked for here, and not by each process that is forked. None: that
    one looks for itself, and says in its own log what it has not found."""
    if module not in sys.modules:
        return None
    try:
        spec = importlib.util.find_spec(f"{module}.__main__")
        if (
            spec is None
            or not isinstance(spec.loader, InspectLoader)
            or (code := spec.loader.get_code(spec.name)) is None
        ):
            return None
        main = importlib.util.module_from_spec(spec)
    except Exception:
        return None
    main.__name__ = "__main__"
    return main, code


def _serve(channel: socket.socket, wakes: int, prepared: Sequence[str]) -> dict[str, Any] | None:
    """What a forked process is to run, in that process; None in this one, at the socket's end."""
    for what in prepared:
        prepare(what)
    gc.freeze()  # whoever is forked looks for cycles among its own objects, and leaves these pages shared
    _tell(channel, {"prepared": len(prepared)})
    while (asked := _hear(channel, wakes)) is not None:
        while asked:
            request, log = asked.pop(0)
            request["main"] = _main_of(request["module"])
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                for _, other in asked:
                    os.close(other)
                _become(request, log, parent)
                return request
            os.close(log)
            _tell(channel, {"number": request["number"], "pid": pid})
    return None


def _hear(channel: socket.socket, wakes: int) -> list[tuple[dict[str, Any], int]] | None:
    """Waits for requests, each with its log. None: the socket's end."""
    asked: list[tuple[dict[str, Any], int]] = []
    while ready := select.select([channel.fileno(), wakes], [], [], 0.0 if asked else None)[0]:
        if wakes in ready:
            os.read(wakes, 4096)
            _bury(channel)
        if channel.fileno() in ready:
            try:
                data, ancillary, _, _ = channel.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(array.array("i").itemsize))
            except ConnectionResetError:  # closed, with something of ours unread
                return None
            if not data:
                return None
            [(_, _, packed)] = ancillary
            asked.append((json.loads(data), array.array("i", packed)[0]))
    return asked


def _tell(channel: socket.socket, told: dict[str, int]) -> None:
    with contextlib.suppress(ConnectionError):  # nobody hears it any more: that is read next
        channel.send(json.dumps(told).encode())


def _bury(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(channel, {"pid": pid, "status": status})


def _become(request: dict[str, Any], log: int, parent: int) -> None:
    """As `child.py` and a new interpreter would have it: own session, dies with its parent, own environment, output, title."""
    os.setsid()
    _die_with(parent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    environment = request["env"]
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if request["cwd"] is not None:
        os.chdir(request["cwd"])
    setproctitle.setproctitle(request["module"])


def _die_with(parent: int) -> None:
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the signal was armed
