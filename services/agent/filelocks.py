"""Measures file locks (`fcntl`): memory of the kernel's that no cgroup counts and no limit of a process bounds.

Linux has not enforced RLIMIT_LOCKS since 2.4, and charges locks to nobody: a job took 600 MB of them in five seconds. What
all processes have together is one number. Whose they are is in the list of all, which takes the longer the more there are, and
holds up who locks a file meanwhile: it is read to a bound, and where the number is large. Locks of open files themselves
(`F_OFD_SETLK`), which name no process, jobs are refused.

The list names the process that locked. Its locks stay when it has ended, while another shares its table of open files
(`clone` with CLONE_FILES). So those of processes that are gone are looked for by their files in the tables of attempts, and
what the kernel tells of such an open file (`fdinfo`) says whether its table has them. A job makes that long, so no more than
`MOST_TRIED` are asked. Locks of whole files (`flock`) are not looked for: each needs an open file, which its job's memory
counts.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from services.agent.keeper import proc
from services.agent.tables import tables_of

MOST_TRIED = 100_000
"""An attempt with more open files, each in a table of its own, that processes which are gone have locked, counts as having
locked all of them."""
_TOTAL = "/sys/kernel/slab/file_lock_cache/objects"
"""For root alone. The kernel may count other objects of this size with them: what it says is the most that there are."""
_LISTED = "/proc/locks"
_KIND, _PID, _FILE, _WAITS = 1, 4, 5, b"->"
"""A line is `1: POSIX  ADVISORY  WRITE 4711 fe:00:2152868 2 2`; of one that waits `1: -> POSIX ...`."""
_LOCKED = re.compile(rb"^lock:\s.* ([0-9a-f]+:[0-9a-f]+:[0-9]+) ", re.MULTILINE)


class Locker(NamedTuple):
    """A process, 0: unknown, and the file of which it has locked parts, as the kernel writes it; b"": another kind of lock."""

    process: int
    file: bytes


def locks_on_machine() -> int:
    """File locks of all processes of the machine, or somewhat more; 0 if unknown."""
    try:
        return int(proc.read_text(_TOTAL).split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def listed_locks(most: int) -> Counter[Locker]:
    """The first `most` file locks that are listed."""
    found = Counter[Locker]()
    with suppress(OSError):
        fd = os.open(_LISTED, os.O_RDONLY | os.O_CLOEXEC)
        try:
            rest = b""
            while found.total() < most and (piece := os.read(fd, 65_536)):
                *lines, rest = (rest + piece).split(b"\n")
                found.update(map(_locker, lines))
        finally:
            os.close(fd)
    return found


def _locker(line: bytes) -> Locker:
    words = line.split()
    more = _WAITS in words
    if len(words) <= _FILE + more or not words[_PID + more].isdigit():
        return Locker(0, b"")
    of_parts = words[_KIND + more] == b"POSIX" and not more
    return Locker(int(words[_PID + more]), words[_FILE + more] if of_parts else b"")


def held_by(attempts: Iterable[Collection[int]], listed: Mapping[Locker, int]) -> list[int]:
    """Locks of each attempt, by its processes."""
    by_process, left = Counter[int](), Counter[bytes]()
    for (process, _), count in listed.items():
        by_process[process] += count
    gone = {process for process in by_process if not os.path.exists(f"/proc/{process}")}
    for (process, file), count in listed.items():
        if file and process in gone:
            left[file] += count
    return [sum(by_process[pid] for pid in pids) + (_shared(pids, left) if left else 0) for pids in attempts]


def _shared(pids: Iterable[int], left: Mapping[bytes, int]) -> int:
    """Of the locks `left` by processes that are gone, by file: those of tables of open files that these processes have."""
    inodes = {int(file.rpartition(b":")[2]) for file in left}
    had, tried = set[bytes](), 0
    for at in (table for pid in pids for table in tables_of(pid)):
        asked = set[int]()
        with suppress(OSError):  # it has ended
            for name in os.listdir(at):
                with suppress(OSError):
                    one = os.stat(f"{at}/{name}")
                    if one.st_ino in inodes and one.st_ino not in asked and stat.S_ISREG(one.st_mode):
                        asked.add(one.st_ino)
                        had.update(_LOCKED.findall(proc.read_text(f"{at}info/{name}").encode()))
        tried += len(asked)
        if tried > MOST_TRIED:
            return sum(left.values())
    return sum(left[file] for file in had & left.keys())
