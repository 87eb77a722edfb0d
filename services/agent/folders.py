"""Measures and removes folders that a job has filled, however deep and wide.

A job can create trees deeper than Python's recursion limit and longer than any path (by descending step by step), and
change them while they are read. So nothing here recurses, and an unreadable folder counts as full.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from libs.ports.descriptors import SHORTAGE
from services.agent.private import FOLDER
from services.agent.tables import tables_of

MOST_ENTRIES = 500_000
"""A folder with more entries counts as full. Counting stops here."""
DEEPEST = 128
"""Deeper folders are not entered."""
_AT_ONCE = 10_000
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512
_GONE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Filled:
    """Content of folders, as far as it was counted: bytes on disk, and why they count as full regardless."""

    bytes: int
    why: str = ""


def disk_used(folders: Iterable[Path], limit: int) -> int:
    """Bytes on disk below these folders, from `filled`. Full ones count as more than `limit`, and so do those that cannot be
    measured now."""
    try:
        found = filled(folders, limit)
    except OSError:
        return limit + 1
    return max(found.bytes, limit + 1) if found.why else found.bytes


def filled(folders: Iterable[Path], limit: int) -> Filled:
    """Measures these folders until they exceed `limit` bytes. A folder that cannot be entered (too deep, or closed by
    its owner) counts as full, and so do too many files. Raises OSError: it is not known, for want of what this process needs
    to look (`SHORTAGE`)."""
    total = entries = 0
    for folder in folders:
        try:
            for entry in _all_below(folder):
                entries += 1
                with suppress(FileNotFoundError):  # it was removed meanwhile; its neighbours remain
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                if entries > MOST_ENTRIES:
                    return Filled(total, f"its folders hold more than {MOST_ENTRIES:,} files")
                if total > limit:
                    return Filled(total)
        except OSError as e:
            if e.errno in SHORTAGE:
                raise
            return Filled(total, f"one of its folders cannot be looked into ({e.strerror}), which counts as full")
    return Filled(total)


def files_below(folder: Path) -> int:
    """Number of files and folders below it, counted up to the maximum. A folder that cannot be entered counts as more."""
    try:
        return sum(1 for _ in islice(_all_below(folder), MOST_ENTRIES + 1))
    except OSError:
        return MOST_ENTRIES + 1


def _all_below(top: Path) -> Iterator[os.DirEntry[str]]:
    """Raises OSError for a folder that cannot be entered; skips what disappears meanwhile.

    Opens each folder relative to its parent and continues from there, so neither time nor memory grows with path
    length; a job can make 500,000 paths of 4,000 bytes. Takes two descriptors per level.
    """
    way: list[tuple[int, Iterator[os.DirEntry[str]]]] = []

    def enter(name: str | Path, inside: int | None) -> None:
        if len(way) > DEEPEST:
            raise OSError(errno.ENAMETOOLONG, f"it lies more than {DEEPEST} folders deep")
        at = -1
        try:
            at = os.open(name, FOLDER, dir_fd=inside)
            way.append((at, os.scandir(at)))
        except OSError as e:
            if at >= 0:
                os.close(at)
            if e.errno not in _GONE:
                raise

    try:
        enter(top, None)
        while way:
            at, there = way[-1]
            entry = None
            with suppress(FileNotFoundError):  # the whole folder is gone
                entry = next(there, None)
            if entry is None:
                way.pop()
                os.close(at)
                continue
            yield entry
            if entry.is_dir(follow_symlinks=False):
                enter(entry.name, at)
    finally:
        for at, _ in way:
            os.close(at)


def held_open(pids: Iterable[int], folders: Iterable[Path]) -> Filled:
    """Deleted files on these folders' disks that the processes hold open or have mapped. They use space until closed,
    and no folder shows them. More open files than are examined count as full."""
    disks = set[int]()
    for folder in folders:
        with suppress(OSError):
            disks.add(os.stat(folder).st_dev)
    places = [at for pid in pids for at in (*tables_of(pid), f"/proc/{pid}/map_files")]
    entries = 0
    for at in places:  # list all before examining any, which takes ten times as long
        with suppress(OSError):  # it has ended, or only root may look
            entries += len(os.listdir(at))
        if entries > MOST_ENTRIES:
            return Filled(0, f"it has more than {MOST_ENTRIES:,} files open")
    held: dict[tuple[int, int], int] = {}
    for at in places:
        with suppress(OSError):
            for name in os.listdir(at):
                with suppress(OSError):
                    found = os.stat(f"{at}/{name}")
                    if found.st_nlink == 0 and stat.S_ISREG(found.st_mode) and found.st_dev in disks:
                        held[found.st_dev, found.st_ino] = found.st_blocks * _BLOCK
    return Filled(sum(held.values()))


def remove_tree(folder: Path) -> None:
    """Removes a tree. Follows no links. What cannot be removed stays; raises nothing. Blocks.

    Each subfolder is emptied in turn: its files are removed and its folders move up to the top. So any depth takes two
    descriptors, no recursion and no path.
    """
    _let_in(folder)
    with suppress(OSError):
        at = os.open(folder, FOLDER)
        try:
            left = True
            while left:
                left = _removed_some(at, at)
        finally:
            os.close(at)
    with suppress(OSError):
        os.rmdir(folder)


def _removed_some(folder: int, top: int) -> bool:
    """Removes some entries of `folder`; returns whether any could be removed."""
    with os.scandir(folder) as found:
        some = list(islice(found, _AT_ONCE))
    done = False
    for entry in some:
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                done = True
                continue
            _let_in(entry.name, folder)
            if folder != top:
                os.rename(entry.name, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
            else:
                at = os.open(entry.name, FOLDER, dir_fd=folder)
                try:
                    while _removed_some(at, top):
                        done = True
                finally:
                    os.close(at)
                os.rmdir(entry.name, dir_fd=folder)
            done = True
    return done


def _let_in(folder: str | Path, inside: int | None = None) -> None:
    """Grants the owner access. An owner other than root cannot empty a folder that was closed or made read-only."""
    with suppress(OSError):
        at = os.open(folder, _PATH, dir_fd=inside)
        try:
            if os.fstat(at).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{at}", stat.S_IRWXU)
        finally:
            os.close(at)
