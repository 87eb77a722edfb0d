"""The fork server's own process: imports what services need once, then forks a process for each that is to run.

Started by `libs.embedded.forkserver`, as `python -m libs.embedded.forked FD WHAT...`, where WHAT is a module to import, or
`module:function` to call, too. FD is a socket of whole
messages (SOCK_SEQPACKET): in comes `{"module", "title", "env", "cwd"}` with the descriptor of a log; out goes
`{"pid"}` at once and `{"pid", "status"}` (as of waitpid) when that process has ended. At the socket's end this process ends,
and the kernel ends with it what it forked.

Nothing here may start a thread: a fork copies the one that calls it, and the locks of all others.
"""

import array
import ctypes
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import setproctitle

MESSAGE_BYTES = 128 * 1024
"""The longest request: below what a socket's buffer takes by default, well above any service's environment."""

_PR_SET_PDEATHSIG = 1
_MADV_DONTNEED = 4
_MAPPINGS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r-\S+ \S+ \S+ \S+ +/(.*?)^VmFlags", re.M | re.S)
"""Those of files that nobody writes through: from where to where, and what the system says of them."""
_OWN = re.compile(r"^(?:Anonymous|Swap): +(\d+) kB", re.M)
"""Of a mapping: what differs from the file, as relocations do."""


def main() -> None:
    """Serves until the socket ends. In each forked process it returns after having run the module."""
    channel, prepared = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    setproctitle.setproctitle(
        "baton fork server"
    )  # before anything moves the environment, behind which it looks for the title
    gc.disable()  # a fifth of what imports cost; what it frees are holes, which each fork would fill with pages of its own
    for what in prepared:
        module, _, function = what.partition(":")
        try:
            found = importlib.import_module(module)
            if function:
                getattr(found, function)()
        except Exception as error:  # whoever is forked to run it says so in its own log
            print(f"fork server: {what} failed: {error!r}", file=sys.stderr)
    gc.freeze()  # whoever is forked looks for cycles among its own objects, and leaves these pages shared
    _let_go_of_programs()
    request = _serve(channel, wakes)
    if request is None:
        return
    gc.enable()
    os.close(wakes)
    os.close(wake)
    channel.close()
    sys.argv = [request["module"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _let_go_of_programs() -> None:
    """Unmaps pages of libraries' code and constants that loading has read, and that nobody else has mapped: LLVM's are 67 MiB.
    They stay in the system's cache, where whoever needs one finds it. A mapping with a page of its own is left alone."""
    try:
        told = Path("/proc/self/smaps").read_text()
    except OSError:  # not Linux, or a sandbox that does not tell
        return
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end, rest in _MAPPINGS.findall(told):
        if set(_OWN.findall(rest)) == {"0"}:
            libc.madvise(int(start, 16), int(end, 16) - int(start, 16), _MADV_DONTNEED)


def _serve(channel: socket.socket, wakes: int) -> dict[str, Any] | None:
    """What a forked process is to run, in that process; None in this one, at the socket's end."""
    while True:
        readable, _, _ = select.select([channel.fileno(), wakes], [], [])
        if wakes in readable:
            os.read(wakes, 4096)
            _bury(channel)
        if channel.fileno() not in readable:
            continue
        data, ancillary, _, _ = channel.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(array.array("i").itemsize))
        if not data:
            return None
        [(_, _, packed)] = ancillary
        [log] = array.array("i", packed)
        request, parent = json.loads(data), os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(request, log, parent)
            return dict(request)
        os.close(log)
        channel.send(json.dumps({"pid": pid}).encode())


def _bury(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(json.dumps({"pid": pid, "status": status}).encode())


def _become(request: dict[str, Any], log: int, parent: int) -> None:
    """As `child.py` and a new interpreter would have it: own session, dies with its parent, own environment, output, title."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the signal was armed
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    if request["cwd"] is not None:
        os.chdir(request["cwd"])
    setproctitle.setproctitle(request["title"])


if __name__ == "__main__":
    main()
