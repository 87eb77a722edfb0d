"""Folders that lie in a part of the disk of their own."""

import fcntl
import os
import secrets
import struct
import time
from contextlib import suppress
from pathlib import Path

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h, on machines of 64 bits."""
_TOP = 0x20000
"""FS_TOPDIR_FL, as `chattr +T` sets it."""
_TRIES = 3


def make_apart(folder: Path) -> None:
    """Makes a folder that only this user may enter, with those above it, if it is not there. Raises OSError.

    ext4 puts a folder, and all that comes into it, near the one that it is made in. Without a journal it passes each file that
    was removed there within the last minutes before it takes a free place: beside the folders of tests that had ended, a file
    took 0.5 ms of the processor to make, and 0.02 ms elsewhere. In a folder that is marked as the top of a tree, ext4 puts each
    where little is, beginning at a place that follows from its name. So some are made with random names, and the one stays in
    which the next is made most quickly. Other filesystems know no such mark, and need none.
    """
    if os.path.lexists(folder):
        folder.mkdir(exist_ok=True)  # it is said where it is no folder
        return
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = sorted(_tried(folder.parent) for _ in range(_TRIES if _mark_top(folder.parent) else 1))
    for _, other in made[1:]:
        other.rmdir()
    made[0][1].rename(folder)


def _tried(parent: Path) -> tuple[int, Path]:
    """A new folder in it, after what making another one there costs, ns of the processor."""
    made = parent / f".{secrets.token_hex(8)}"
    made.mkdir(mode=0o700)
    costs = []
    for name in ("first", "second"):  # the first may have to read what the second finds
        began = time.thread_time_ns()
        (made / name).mkdir()
        costs.append(time.thread_time_ns() - began)
        (made / name).rmdir()
    return min(costs), made


def _mark_top(folder: Path) -> bool:
    """False where its filesystem has no such mark."""
    with suppress(OSError):
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack("@l", fcntl.ioctl(at, _GET_FLAGS, bytes(struct.calcsize("@l"))))
            fcntl.ioctl(at, _SET_FLAGS, struct.pack("@l", flags | _TOP))
            return True
        finally:
            os.close(at)
    return False
