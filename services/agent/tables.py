"""Open files and sockets of processes, from the kernel's tables."""

import ctypes
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

_LIBC = ctypes.CDLL(None, use_errno=True)
_KCMP = {"x86_64": 312, "aarch64": 272}
"""Number of the system call, for which the C library has no function."""
_KCMP_FILES = 2


def files_of(pids: Iterable[int]) -> int:
    """Number of open files of these processes; shared ones count for each."""
    return sum(_entries(at) for pid in pids for at in tables_of(pid))


def _entries(table: str) -> int:
    """Since Linux 6.2 the folder's size is the count, so millions of entries need not be listed."""
    with suppress(OSError):  # it has ended
        return os.stat(table).st_size or len(os.listdir(table))
    return 0


def sockets_of(pids: Iterable[int], wanted: Collection[int] | None = None) -> set[int]:
    """Inodes of their sockets; with `wanted`, only those of it, stopping when all are found."""
    found = set[int]()
    for at in (at for pid in pids for at in tables_of(pid)):
        with suppress(OSError):
            for name in os.listdir(at):
                with suppress(OSError):
                    one = os.stat(f"{at}/{name}")
                    if stat.S_ISSOCK(one.st_mode) and (wanted is None or one.st_ino in wanted):
                        found.add(one.st_ino)
                        if wanted is not None and len(found) == len(wanted):
                            return found
    return found


def networks_of(pids: Iterable[int]) -> list[int]:
    """One process in each network namespace other than this process's own."""
    found = dict[str, int]()
    for pid in (os.getpid(), *pids):
        with suppress(OSError):  # it has ended
            found.setdefault(os.readlink(f"/proc/{pid}/ns/net"), pid)
    return [pid for pid in found.values() if pid != os.getpid()]


def tables_of(pid: int) -> Iterator[str]:
    """A folder of /proc for each table of open files of the process. Threads normally share one, but a thread may have
    its own (`unshare`), and a main thread that has ended has none."""
    last = 0
    with suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/task"):
            if not last or not _share_files(last, int(name)):
                last = int(name)
                yield f"/proc/{pid}/task/{name}/fd"


def _share_files(one: int, other: int) -> bool:
    """Whether two threads share their table of open files; False if unknown."""
    number = _KCMP.get(os.uname().machine)
    return number is not None and _LIBC.syscall(number, one, other, _KCMP_FILES, 0, 0) == 0
