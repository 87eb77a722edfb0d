"""Files given to commands. Input is read up to a limit; output replaces regular files only."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from libs.cli.exits import UsageFault
from schemas.yamlfile import text_of


def read_text(path: Path) -> str:
    """Reads a file or a pipe; `-` is standard input. Raises OSError, UnicodeDecodeError."""
    if str(path) == "-":
        return text_of(sys.stdin)
    with path.open(encoding="utf-8") as file:
        return text_of(file)


def read_yaml(file: Path, option: str = "") -> str:
    """The text of a YAML file given to a command, by `option`. Raises UsageFault."""
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        how = f" with {option}" if option else ""
        raise UsageFault(f"{file} cannot be read: {why_not(error)}; name a YAML file in UTF-8{how}") from None


def why_not(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read or written, without its name."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 text ({error.reason} at byte {error.start})"
    return error.strerror or str(error)


def check_target(path: Path) -> None:
    """Checks a target that appears under its name when complete, replacing what has the name.

    Raises UsageFault if that is no regular file, or the folder does not exist.
    """
    if str(path) == "-":
        raise UsageFault("- is no file: name one, which gets its name when all is written")
    if path.is_dir():
        raise UsageFault(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UsageFault(f"{path} is a device, a pipe or a socket, whose name the file would take; name another")
    if not path.parent.is_dir():
        raise UsageFault(f"{path}: there is no folder {path.parent}; make it first")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder, also removed when a signal ends the command: the signal raises SystemExit inside the block."""
    if threading.current_thread() is not threading.main_thread():  # other threads get no signals
        with TemporaryDirectory() as folder:
            yield Path(folder)
        return
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with TemporaryDirectory() as folder:
            yield Path(folder)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
