"""What processes have open, as the kernel's tables say: how many files, and which sockets."""

import ctypes
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

_LIBC = ctypes.CDLL(None, use_errno=True)
_KCMP = {"x86_64": 312, "aarch64": 272}
"""The number of the call, which the C library has no function for."""
_KCMP_FILES = 2


def files_of(pids: Iterable[int]) -> int:
    """How many files these processes have open; one that several have counts for each."""
    return sum(_entries(at) for pid in pids for at in tables_of(pid))


def _entries(table: str) -> int:
    """Since Linux 6.2 the folder's size says it, and millions need not be listed."""
    with suppress(OSError):  # it has ended
        return os.stat(table).st_size or len(os.listdir(table))
    return 0


def sockets_of(pids: Iterable[int], wanted: Collection[int] | None = None) -> set[int]:
    """Their sockets, by the numbers that the kernel gives them; of `wanted` those that are theirs, and no further than they are
    found."""
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
    """Of each network that these processes are in, and this one is not, one of them."""
    found = dict[str, int]()
    for pid in (os.getpid(), *pids):
        with suppress(OSError):  # it has ended
            found.setdefault(os.readlink(f"/proc/{pid}/ns/net"), pid)
    return [pid for pid in found.values() if pid != os.getpid()]


def tables_of(pid: int) -> Iterator[str]:
    """Where the kernel shows what the process holds open: a folder for each table of open files. Its threads have one together;
    but one may have made its own (`unshare`), and a first thread that has ended has none."""
    last = 0
    with suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/task"):
            if not last or not _share_files(last, int(name)):
                last = int(name)
                yield f"/proc/{pid}/task/{name}/fd"


def _share_files(one: int, other: int) -> bool:
    """Whether two threads have the same table of open files; False where the kernel does not say."""
    number = _KCMP.get(os.uname().machine)
    return number is not None and _LIBC.syscall(number, one, other, _KCMP_FILES, 0, 0) == 0
