"""Unix sockets that only our own user can connect to."""

import os
import stat
import tempfile
from hashlib import sha256
from pathlib import Path

_LONGEST = 100
"""Bytes of a socket's path: the kernel takes 107, on other systems 103."""


class SocketTaken(RuntimeError):
    """The folder of a socket is somebody else's, or open to others."""


def private_socket(state_dir: Path, name: str) -> Path:
    """Where the server `name` of this state directory listens, in a folder of mode 0700 that is made here.

    A state directory with a long path has it below the system's folder for temporary files, because paths of sockets are
    short. Raises SocketTaken when somebody was there first.
    """
    path = state_dir / "sockets" / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST:
        digest = sha256(os.fsencode(state_dir.resolve())).hexdigest()[:16]
        path = Path(tempfile.gettempdir()) / f"baton-{os.geteuid()}" / f"{digest}-{name}.sock"
    _own_folder(path.parent)
    return path


def _own_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SocketTaken(f"{folder} is not a folder of this user: remove it, or choose another state directory")
    folder.chmod(0o700)
