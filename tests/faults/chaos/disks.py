"""A file system of its own for what is to be full: a small tmpfs. Only root may mount one."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def why_not() -> str:
    """Why nothing can be mounted here; "" when it can."""
    if os.geteuid() != 0:
        return "only root may mount a file system"
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True, text=True, check=False)
        if made.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return made.stderr.strip()


@contextlib.contextmanager
def small(folder: Path, mib: int) -> Iterator[Path]:
    """`folder` has so much room until the block ends; then what was in it is gone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """No byte more fits into the file system of `folder` until the block ends."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        room = os.statvfs(folder)
        os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize))
        while True:
            file.seek(0, os.SEEK_END)
            file.write(bytes(1 << 16))
            file.flush()
    try:
        yield
    finally:
        ballast.unlink()
