"""Measures file locks (`fcntl`): memory of the kernel's that no cgroup counts and no limit of a process bounds.

Linux has not enforced RLIMIT_LOCKS since 2.4, and charges locks to nobody: a job took 600 MB of them in five seconds. What
all processes have together is one number, and the kernel lists a process's own beside each of its open files. Locks of open
files themselves (`F_OFD_SETLK`), which a file that is in flight between processes would keep, jobs are refused.
"""

import os
from collections.abc import Iterable
from contextlib import suppress

from services.agent.keeper import proc
from services.agent.tables import tables_of

_TOTAL = "/sys/kernel/slab/file_lock_cache/objects"
"""For root alone. The kernel may count other objects of this size with them: what it says is the most that there are."""
_LOCK = "\nlock:"


def locks_on_machine() -> int:
    """File locks of all processes of the machine, or somewhat more; 0 if unknown."""
    try:
        return int(proc.read_text(_TOTAL).split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def locks_of(pids: Iterable[int]) -> int:
    """File locks of these processes."""
    return sum(_held(f"{at}info") for pid in pids for at in tables_of(pid))


def _held(table: str) -> int:
    count = 0
    with suppress(OSError):  # it has ended
        for name in os.listdir(table):
            with suppress(OSError):
                count += proc.read_text(f"{table}/{name}").count(_LOCK)
    return count
