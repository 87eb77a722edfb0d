"""Files that only their owner may read, and what is to outlast a loss of power."""

import os
import stat
from pathlib import Path
from typing import IO


def write_private(path: Path, text: str, *, whose: Path | None = None, durable: bool = False) -> None:
    """Replace a file atomically with one that only its owner can read. Written by root, it belongs to the owner of `whose`: a
    server that runs as a user of its own reads it. `durable`: the new content is on the disk before the old is gone, and has
    the name when this returns; a file system may else keep neither when the power goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        if whose is not None and os.geteuid() == 0:
            os.fchown(file.fileno(), (there := whose.stat()).st_uid, there.st_gid)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(draft, path)
    if durable:
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Its content is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """What was made or renamed in it is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_lock(path: Path) -> IO[str]:
    """A file for `flock` that only its owner can open: who can open one, for reading too, can hold its lock for ever."""
    lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "a+")
    if stat.S_IMODE(os.fstat(lock.fileno()).st_mode) != 0o600:  # of an older release
        os.fchmod(lock.fileno(), 0o600)
    return lock
