"""Opens files safely in folders that a job could write to: only regular files of the agent's own user, and through no link."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder is opened that a job could have put a link in the place of."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Non-blocking: opening a pipe without a writer would wait."""


class NotOurs(OSError):
    """The file is a link, not regular, or another user's."""


def open_file(root: Path, *parts: str) -> int:
    """A descriptor of `root/parts[0]/...` for reading. Below `root` no part of the path may be a link, and the file
    must belong to this process's user and have one name only: a second name may be another's file. Raises OSError."""
    at = os.open(root, FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in parts[:-1]:
            below = os.open(part, FOLDER, dir_fd=at)
            os.close(at)
            at = below
        file = os.open(parts[-1], _FILE, dir_fd=at)
    finally:
        os.close(at)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(file)
        raise NotOurs(f"{'/'.join(parts)} is not a file of this agent")
    return file


def is_folder(root: Path, parts: Sequence[str]) -> bool:
    """Whether `root/parts[0]/...` is a folder reached without a link."""
    at = root
    for part in parts:
        at /= part
        try:
            if not stat.S_ISDIR(at.lstat().st_mode):
                return False
        except OSError:
            return False
    return True
