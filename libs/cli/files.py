"""Files that a command is given. Of what it reads no more is taken than can be used; what it writes takes no device's name."""

import sys
from pathlib import Path

from libs.cli.exits import UsageFault
from schemas.yamlfile import text_of


def read_text(path: Path) -> str:
    """Of a file or a pipe, `-` being standard input. Raises OSError, UnicodeDecodeError."""
    if str(path) == "-":
        return text_of(sys.stdin)
    with path.open(encoding="utf-8") as file:
        return text_of(file)


def check_target(path: Path) -> None:
    """Of a file that gets its name when it is whole: whatever has the name is gone then.

    Raises UsageFault where that is no regular file, or there is no folder.
    """
    if path.is_dir():
        raise UsageFault(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UsageFault(f"{path} is a device, a pipe or a socket, whose name the file would take; name another")
    if not path.parent.is_dir():
        raise UsageFault(f"{path}: there is no folder {path.parent}; make it first")
