"""Which process this is, for others to see whether it is gone."""

import os
from functools import cache
from pathlib import Path

from libs.ports.clock import boot_id
from libs.ports.host import present_host


def start_ticks(pid: int) -> int | None:
    """When the kernel started this process, in clock ticks since boot; None if it is gone, a zombie, or no /proc."""
    try:
        # The name in parentheses may hold spaces and parentheses: count the fields after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def this_process() -> str:
    """Boot, namespace of process ids, id and start of this process; "" where that cannot be said."""
    pid = os.getpid()
    ticks = start_ticks(pid)
    return f"{_here()}/{pid}/{ticks}" if present_host() is None and _here() and ticks is not None else ""


def is_gone(process: str) -> bool:
    """Whether a process that `this_process` told of has surely ended. Of one on another machine, in another container, or
    before the last boot nothing is known from here."""
    try:
        here, pid, ticks = process.rsplit("/", 2)
        if present_host() is not None or not here or here != _here():
            return False
        os.kill(int(pid), 0)
        return start_ticks(int(pid)) not in (None, int(ticks))
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False


@cache
def _here() -> str:
    try:
        return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
