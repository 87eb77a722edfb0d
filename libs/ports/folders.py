"""Whether a folder can be written, asked before anything depends on it."""

import os
from pathlib import Path


def unwritable(folder: Path) -> str:
    """Why nothing can be made in `folder`, or the folder itself, and what to do; "" when it can. A full disk is none of this:
    what is there already can go on."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
    except OSError as error:
        return f"it cannot be looked at ({error.strerror}): give it to user {os.geteuid()}"
    if not there.is_dir():
        return f"{there} is no folder: remove it"
    if os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return f"the disk of {there} is mounted read-only: mount it for writing"
    return f"user {os.geteuid()} may not write {there}: give it to that user"
