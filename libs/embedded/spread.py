"""Folders that lie in a part of the disk of their own."""

import fcntl
import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h, on machines of 64 bits."""
_TOP = 0x20000
"""FS_TOPDIR_FL, as `chattr +T` sets it."""


def make_apart(folder: Path) -> None:
    """Makes a folder that only this user may enter, with those above it, if it is not there. Raises OSError.

    ext4 puts a folder, and all that comes into it, near the one that it is made in. Without a journal it passes each file that
    was removed there within the last minutes before it takes a free place: beside the folders of tests that had ended, a file
    took 0.5 ms of the processor to make, and 0.02 ms elsewhere. In a folder that is marked as the top of a tree, ext4 puts each
    where little is, beginning at a place that follows from its name; so it is made with a random one. Other filesystems know
    no such mark, and need none.
    """
    if os.path.lexists(folder):
        folder.mkdir(exist_ok=True)  # it is said where it is no folder
        return
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):
        _mark_top(folder.parent)
    made = folder.with_name(f".{secrets.token_hex(8)}")
    made.mkdir(mode=0o700)
    made.rename(folder)


def _mark_top(folder: Path) -> None:
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (flags,) = struct.unpack("@l", fcntl.ioctl(at, _GET_FLAGS, bytes(struct.calcsize("@l"))))
        fcntl.ioctl(at, _SET_FLAGS, struct.pack("@l", flags | _TOP))
    finally:
        os.close(at)
