"""Measures file locks (`fcntl`): memory of the kernel's that no cgroup counts and no limit of a process bounds.

Linux has not enforced RLIMIT_LOCKS since 2.4, and charges locks to nobody: a job took 600 MB of them in five seconds. What
all processes have together is one number. Whose they are is in the list of all, which takes the longer the more there are, and
holds up who locks a file meanwhile: it is read to a bound, and where the number is large. What the kernel tells of each open
file (`fdinfo`) has no such bound: a job makes that as long as it likes, and as often. Locks of open files themselves
(`F_OFD_SETLK`), which name no process, jobs are refused.
"""

import os
from collections import Counter
from contextlib import suppress

from services.agent.keeper import proc

_TOTAL = "/sys/kernel/slab/file_lock_cache/objects"
"""For root alone. The kernel may count other objects of this size with them: what it says is the most that there are."""
_LISTED = "/proc/locks"
_PID, _WAITS = 4, b"->"
"""A line is `1: POSIX  ADVISORY  WRITE 4711 fe:00:2152868 2 2`; of one that waits `1: -> POSIX ...`."""


def locks_on_machine() -> int:
    """File locks of all processes of the machine, or somewhat more; 0 if unknown."""
    try:
        return int(proc.read_text(_TOTAL).split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def locks_by_process(most: int) -> Counter[int]:
    """Process -> its file locks, of the first `most` that are listed."""
    found = Counter[int]()
    with suppress(OSError):
        fd = os.open(_LISTED, os.O_RDONLY | os.O_CLOEXEC)
        try:
            rest = b""
            while found.total() < most and (piece := os.read(fd, 65_536)):
                *lines, rest = (rest + piece).split(b"\n")
                found.update(_holder(line) for line in lines)
        finally:
            os.close(fd)
    return found


def _holder(line: bytes) -> int:
    """0: unknown."""
    words = line.split()
    at = _PID + (_WAITS in words)
    return int(words[at]) if len(words) > at and words[at].isdigit() else 0
