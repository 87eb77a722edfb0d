"""Where servers keep data and listen: a state directory that all of them can use, and Unix sockets that only our own user can
connect to."""

import os
import stat
import tempfile
from hashlib import sha256
from pathlib import Path

_LONGEST = 100
"""Bytes of a socket's path: the kernel takes 107, on other systems 103."""


_LONGEST_STATE = 400
"""Bytes of a state directory's path: SQLite opens no file whose path has more than 512, with what it puts beside a database."""


class UnfitStateDir(RuntimeError):
    """The path of a state directory is one that a server cannot use."""


class SocketTaken(RuntimeError):
    """The folder of a socket is somebody else's, or open to others."""


def check_state_dir(path: Path) -> None:
    """Raises UnfitStateDir when a server would fail on the path later, in words of its own."""
    fix = "name another with --state-dir or BATON_STATE_DIR"
    real = path.resolve()
    if (size := max(len(os.fsencode(path)), len(os.fsencode(real)))) > _LONGEST_STATE:
        raise UnfitStateDir(
            f"the path of the state directory has {size} bytes, at most {_LONGEST_STATE} can be used: {fix}"
        )
    if odd := [c for c in f"{path}{real}" if not c.isprintable()]:
        raise UnfitStateDir(
            f"the path of the state directory, {str(path)!r}, holds {odd[0]!r}, which cannot be printed: {fix}"
        )


def private_socket(state_dir: Path, name: str) -> Path:
    """Where the server `name` of this state directory listens, in a folder of mode 0700 that is made here.

    A state directory with a long path has it below the folder for temporary files, or /tmp where that is long, too: paths of
    sockets are short. Raises SocketTaken when somebody was there first.
    """
    path = state_dir / "sockets" / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST:
        digest = sha256(os.fsencode(state_dir.resolve())).hexdigest()[:16]
        below = Path(f"baton-{os.geteuid()}", f"{digest}-{name}.sock")
        path = tempfile.gettempdir() / below
        path = path if len(os.fsencode(path)) <= _LONGEST else "/tmp" / below
    _own_folder(path.parent)
    return path


def _own_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SocketTaken(f"{folder} is not a folder of this user: remove it, or choose another state directory")
    folder.chmod(0o700)
