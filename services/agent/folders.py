"""Measures and removes folders that a job has filled, however deep and wide they are.

A job can make trees that are deeper than Python's recursion limit and longer than any path may be (it descends step by step),
and can change them while they are read. So nothing here recurses, and a folder that cannot be read counts as full.
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

from services.agent.tables import tables_of

MOST_ENTRIES = 500_000
"""A folder is looked at so far. More files than that are more than a node should serve: it counts as full."""
DEEPEST = 128
"""So many folders one in the other are looked into."""
_AT_ONCE = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512
_GONE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Filled:
    """What folders hold, as far as was looked: bytes on disk, and why they count as full, whatever they hold."""

    bytes: int
    why: str = ""


def disk_used(folders: Iterable[Path], limit: int) -> int:
    """Bytes on disk below these folders, as `filled`. What counts as full counts as more than `limit`."""
    found = filled(folders, limit)
    return max(found.bytes, limit + 1) if found.why else found.bytes


def filled(folders: Iterable[Path], limit: int) -> Filled:
    """What is below these folders, no further than is needed to know that it is more than `limit` bytes. A folder that cannot
    be looked into (it lies too deep, or its owner has closed it) counts as full, and so do too many files."""
    total = entries = 0
    for folder in folders:
        try:
            for entry in _all_below(folder):
                entries += 1
                with suppress(FileNotFoundError):  # it was removed meanwhile, and its neighbours are still there
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                if entries > MOST_ENTRIES:
                    return Filled(total, f"its folders hold more than {MOST_ENTRIES:,} files")
                if total > limit:
                    return Filled(total)
        except OSError as e:
            return Filled(total, f"one of its folders cannot be looked into ({e.strerror}), which counts as full")
    return Filled(total)


def files_below(folder: Path) -> int:
    """How many files and folders are below it, no further than is needed to know that it is too many to look at. A folder that
    cannot be looked into counts as more."""
    try:
        return sum(1 for _ in islice(_all_below(folder), MOST_ENTRIES + 1))
    except OSError:
        return MOST_ENTRIES + 1


def _all_below(top: Path) -> Iterator[os.DirEntry[str]]:
    """Raises OSError where it cannot be looked into; what is gone meanwhile is left out.

    Each folder is opened in the one that it lies in, and what was begun is gone on with: neither time nor memory grows with the
    paths, of which a job makes 500,000 with 4,000 bytes each. That takes two descriptors for each folder on the way down.
    """
    way: list[tuple[int, Iterator[os.DirEntry[str]]]] = []

    def enter(name: str | Path, inside: int | None) -> None:
        if len(way) > DEEPEST:
            raise OSError(errno.ENAMETOOLONG, f"it lies more than {DEEPEST} folders deep")
        at = -1
        try:
            at = os.open(name, _FOLDER, dir_fd=inside)
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
            with suppress(FileNotFoundError):  # the whole of it
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
    """Files on these folders' disks that have no name any more, which these processes hold open or have mapped: they take room
    until they are closed, and no folder shows them. Who has more open than is looked at counts as full."""
    disks = set[int]()
    for folder in folders:
        with suppress(OSError):
            disks.add(os.stat(folder).st_dev)
    places = [at for pid in pids for at in (*tables_of(pid), f"/proc/{pid}/map_files")]
    entries = 0
    for at in places:  # before any of them is looked at, which takes ten times as long
        with suppress(OSError):  # it has ended; or only root may look
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
    """Removes it with all that is below. No link is followed. What resists stays; nothing is raised. Blocks.

    Each folder in it is emptied in turn: its files go, and its folders move up to the top. So a tree of any depth takes two
    descriptors, no recursion and no path.
    """
    _let_in(folder)
    with suppress(OSError):
        at = os.open(folder, _FOLDER)
        try:
            left = True
            while left:
                left = _removed_some(at, at)
        finally:
            os.close(at)
    with suppress(OSError):
        os.rmdir(folder)


def _removed_some(folder: int, top: int) -> bool:
    """Removes some of what lies in `folder`; whether there was anything that could be removed."""
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
                at = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    while _removed_some(at, top):
                        done = True
                finally:
                    os.close(at)
                os.rmdir(entry.name, dir_fd=folder)
            done = True
    return done


def _let_in(folder: str | Path, inside: int | None = None) -> None:
    """An owner who is not root is shut out of what was closed or made read-only, and could not remove what is in it."""
    with suppress(OSError):
        at = os.open(folder, _PATH, dir_fd=inside)
        try:
            if os.fstat(at).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{at}", stat.S_IRWXU)
        finally:
            os.close(at)
