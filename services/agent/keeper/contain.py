"""How all processes of an attempt are held together, whatever they do to get away.

- `namespace`: the shim is the first process of a pid namespace. When it dies, the kernel kills all others, and the shim is
  reaped only when the last of them is gone. Nothing inside sees a process outside. Needs root, or the right to make user
  namespaces.
- `cgroup`: the shim is in a cgroup of its own, and so is everything that it starts. All members are killed at once.
- `subreaper`: the shim becomes the parent of every orphan below it, so nothing leaves its tree by a double fork, a session
  of its own or an empty environment. A process of the same user may kill the shim; then the orphans are the keeper's,
  which kills them.
- `none`: the system has none of these. A process that detaches can outlive its attempt.
"""

import ctypes
import os
from pathlib import Path

PROGRAM = str(Path(__file__).with_name("native") / "baton-shim")
"""The zygote and the shims, see `zygote`."""
NAMESPACE, CGROUP, SUBREAPER, NONE = "namespace", "cgroup", "subreaper", "none"
KINDS = (NAMESPACE, CGROUP, SUBREAPER, NONE)
"""From the strongest to the weakest."""

_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.PyDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children. Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_CHILD_SUBREAPER)")


def works(kind: str) -> bool:
    """Tries a namespace in a child process, which blocks for some milliseconds; the others need no trial."""
    return kind != NAMESPACE or namespace_tried() == 0


def namespace_tried() -> int:
    """Makes one in a child process: 0, or where it ended (`native/main.c`)."""
    try:
        pid = os.posix_spawn(PROGRAM, [PROGRAM, "try-namespace"], {})
    except OSError:
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def best(group: str | None, asked: str = "auto") -> str:
    """The kind that attempts are held by here: the one asked for, or the strongest that works.

    Args:
        group: where cgroups may be made, if anywhere.

    Raises ValueError when the kind that is asked for does not work here.
    """
    there = {
        NAMESPACE: lambda: works(NAMESPACE),
        CGROUP: lambda: group is not None,
        SUBREAPER: lambda: works(SUBREAPER),
    }
    if asked != "auto":
        if asked in there and not there[asked]():
            raise ValueError(f"containment {asked!r} does not work on this machine; choose auto, or one of {KINDS}")
        return asked
    return next((kind for kind, works_here in there.items() if works_here()), NONE)
