"""Removes what ended attempts left on the disk."""

import logging
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from services.agent.folders import disk_used, files_below, remove_tree
from services.agent.logs import OWN

log = logging.getLogger("baton.agent")

_FREE = 10
"""A tenth of the disk is kept free of ended attempts' files."""


def make_room(root: Path, ended: Callable[[], Sequence[Path]]) -> None:
    """While the disk of `root` has less than a tenth of its bytes or files free, removes what ended attempts left
    there, the largest first, so that small ones stay. Blocks: call it in a thread."""
    if not (lacks := _lacks(root)):
        return
    left = files_below if lacks == _FILES else _bytes_below
    for folder in sorted(ended(), key=left, reverse=True):
        log.warning(
            "the disk of %s has less than a tenth of %s free: %s of an ended attempt is removed", root, lacks, folder
        )
        remove_tree(folder)
        if not _lacks(root):
            return


_ROOM, _FILES = "its room", "its files"


def _lacks(root: Path) -> str:
    """What is nearly exhausted on the disk; "": nothing, or unknown. On most disks the number of files is limited
    whatever their size."""
    try:
        found = os.statvfs(root)
    except OSError as e:  # the next user of the disk gets the error; running work goes on
        log.error("it is not known how full the disk of %s is: %s", root, e)
        return ""
    if found.f_bavail < found.f_blocks // _FREE:
        return _ROOM
    return _FILES if found.f_favail < found.f_files // _FREE else ""


def _bytes_below(folder: Path) -> int:
    return disk_used([folder], sys.maxsize)


def prune(folders: Sequence[Path]) -> None:
    """Removes folders of old attempts. Those of other owners stay if they cannot be removed. Blocks: call it in a
    thread."""
    for folder in folders:
        remove_tree(folder)
        if folder.parent.name != OWN:
            with suppress(OSError):  # another attempt is still there
                folder.parent.rmdir()


def remove_unsaved(checkpoints: Path, pruned: Sequence[Path], kept: Collection[str]) -> list[str]:
    """Removes empty checkpoint folders of jobs whose last attempt here was pruned; returns these jobs. Runs on the
    event loop, so that no attempt can begin meanwhile and find its folder gone."""
    gone: list[str] = []
    for job_id in {folder.name.partition(".")[0] for folder in pruned}.difference(kept):
        with suppress(OSError):  # something was saved
            os.rmdir(checkpoints / job_id)
            gone.append(job_id)
    return gone
