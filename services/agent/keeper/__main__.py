"""`python -m services.agent.keeper FOLDER CONTAINMENT CGROUPS [WALLS]`: the keeper of the agent whose state is in FOLDER.

WALLS is a JSON object: the tier that is `asked` for, `bwrap`, and what to try it with (`spec`, see `walls.Spec`).
"""

import fcntl
import json
import os
import signal
import socket
import sys
from contextlib import suppress

from libs.ports import descriptors
from libs.ports.timerslack import EXACT_NS, set_slack
from services.agent.keeper import contain, proc, walls
from services.agent.keeper.server import Keeper

SOCKET, LOCK = "keeper.sock", "keeper.lock"
PID_BYTES = 20
"""The lock file holds a process id and spaces: written over what stands there, it takes no more room than that."""


def main(folder: str, asked: str, group: str, behind: str = "") -> int:
    """Returns the exit status: 3 when another keeper has this folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its work, not with a terminal or a supervisor
    set_slack(EXACT_NS)  # its agent's is not for jobs
    descriptors.allow_most()  # it has one for each attempt, and more than its jobs, see `services.agent.view`
    os.umask(0o027)  # what jobs write is not for every user of the machine
    lock = os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 3
    with suppress(
        OSError
    ):  # on a full disk what stood there may stay: whoever looks for this keeper finds it by its socket
        os.pwrite(lock, f"{os.getpid():<{PID_BYTES}}".encode(), 0)
        _note_for_0_1_0(folder)
    try:
        kind = contain.best(group or None, asked)
        told = json.loads(behind) if behind else {}
        views = told.pop("views", ())
        can = walls.probe(kind, **told) if told else walls.NO_WALLS
    except ValueError as e:
        sys.exit(str(e))
    if kind != contain.NONE:
        contain.become_subreaper()
    listener = _listen(folder)
    keeper = Keeper(listener, proc.shim_name(folder), kind, can)
    keeper.prepare(views)
    keeper.run()
    return 0


def _note_for_0_1_0(folder: str) -> None:
    """An agent of 0.1.0, which knows no keepers, kills before its node registers what it finds noted here: a process id, and
    in the file when that process began. So what runs ends with this keeper, and not beside the next life."""
    notes, own = f"{folder}/pids", proc.read_stat(os.getpid())
    os.makedirs(notes, exist_ok=True)
    for before in os.listdir(notes):
        os.unlink(f"{notes}/{before}")
    if own is not None:
        with open(f"{notes}/{os.getpid()}", "w") as file:
            file.write(str(own.started))


def _listen(folder: str) -> socket.socket:
    """The socket is bound under another name and renamed: whoever can connect may do so. A Unix socket's path has at most
    107 bytes, so it is bound from within the folder."""
    os.chdir(folder)
    fresh = f"{SOCKET}.new"
    if os.path.exists(fresh):
        os.unlink(fresh)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    listener.bind(fresh)
    os.umask(before)
    listener.listen(16)
    os.rename(fresh, SOCKET)
    return listener


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
