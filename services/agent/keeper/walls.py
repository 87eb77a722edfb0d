"""The isolation ("walls") of an attempt, as its shim sets it up.

bubblewrap makes the view: namespaces of mounts and IPC (and network), with a /proc, a /dev and a /tmp of the attempt's own. It
runs `true` there and ends; the shim enters these namespaces and starts the processes itself. So they are the shim's children,
with their exit codes and signals as without walls, and all ranks of an attempt share memory and /tmp. Then the shim drops what
it does not need: capabilities, new privileges, system calls. The processes run as another user.

The tiers:

- `full`: the keeper is root. Each team's processes have a user id of their own.
- `namespaces`: it is not, but may make user namespaces. Same view; the processes have the agent's user id.
- `none`: neither. A job may read what the agent may read.
"""

import ctypes
import errno
import os
import socket
from typing import Any, NamedTuple

from services.agent.keeper import contain, hindrance
from services.agent.keeper import spec as words
from services.agent.keeper.zygote import Zygote

FULL, NAMESPACES, NONE = "full", "namespaces", "none"
"""From the strongest to the weakest."""
TRUE = "/usr/bin/true"
OPEN_FILES = 65_536
"""Descriptors that one process of a job may have."""
OF_OURS = 2
"""Threads of the shim and of what makes its view, which count as the user's where there is no other."""

_TRIAL = {
    "command": [TRUE],
    "workdir": "/",
    "log_limit": 0,
    "ranks": [{"rank": 0, "environment": {}, "log": os.devnull}],
}
_LANDLOCK_CREATE = 444
_SCOPES_SINCE = 6
"""Version of landlock that knows scopes: abstract Unix sockets and signals of others."""
_LIBC = ctypes.CDLL(None)
_LIBC.syscall.restype = ctypes.c_long

Spec = dict[str, Any]
"""`args`: bubblewrap's, which describe the view; `namespaces`: names of those to enter; `root`: whether the keeper is root;
`uid`, `gid`: of the processes; `processes`: how many, threads too, that user may have; `files`: how many each may have open;
`oom_score`: their `oom_score_adj`, which they cannot lower when the keeper is root; 0 where its agent knows none;
`prepared`: how the view is had from one that is prepared, see there, or nothing: then it is not."""


def scopes_known() -> bool:
    return int(_LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1)) >= _SCOPES_SINCE


# ------------------------------------------------------------------------------------------------------- the probe


class Behind(NamedTuple):
    """What a keeper can do. `bwrap`: the program that makes the walls; `why` the tier is no higher."""

    bwrap: str
    tier: str
    why: str


NO_WALLS = Behind("", NONE, "none were asked for")


def probe(kind: str, asked: str, bwrap: str, spec: Spec) -> Behind:
    """The best tier that this process can give. It really starts `true` behind walls. Blocks.

    Raises ValueError when it is asked for another one than it can give.
    """
    best = NO_WALLS if asked == NONE else _probe(kind, bwrap, spec)
    if asked not in ("auto", best.tier):
        raise ValueError(f"walls {asked!r} cannot be had here, but {best.tier!r}: {best.why}; choose auto, or that")
    return best


def _probe(kind: str, bwrap: str, spec: Spec) -> Behind:
    if kind != contain.NAMESPACE:
        why = hindrance.of_namespaces()
        return Behind(
            "", NONE, f"jobs are held together by {kind!r}, and walls need a pid namespace" + (why and f"; {why}")
        )
    if not bwrap:
        return Behind("", NONE, "there is no program bwrap: install Baton's requirements, or bubblewrap")
    why = _tried(bwrap, spec)
    if why:
        return Behind("", NONE, why)
    if os.geteuid() == 0:
        return Behind(bwrap, FULL, "")
    return Behind(bwrap, NAMESPACES, "the agent is not root: the processes of all teams have its user id")


def _tried(bwrap: str, spec: Spec) -> str:
    """ "" when it works, else what was in the way."""
    zygote = Zygote("baton-trial", contain.NAMESPACE, bwrap)
    try:
        return _ended(*zygote.spawn(words.attempt(_TRIAL | {"walls": spec})))
    except (OSError, ValueError) as e:
        return str(e)
    finally:
        zygote.close()


def _ended(shim: int, sock: socket.socket) -> str:
    """What becomes of the trial."""
    problem, code = "the trial ended without a word", -1
    with sock:
        while said := sock.recv(words.LARGEST):
            if said[0] == words.FAILED:
                told = words.failure(said)
                problem = told["error"] or f"{os.strerror(told['errno'] or errno.EIO)}: {told['filename']}"
            elif said[0] == words.GONE:
                code = words.codes(said).get(0, -1)
                problem = problem if code < 0 else f"the trial ended with {code}" if code else ""
    os.waitpid(shim, 0)
    return problem
