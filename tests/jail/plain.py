"""What a plain user of this machine needs to run Baton from this checkout: root shows it, by bubblewrap."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def readable_to_all() -> list[str]:
    """bubblewrap's arguments: the machine as it is, and the interpreter may be read, wherever it lies."""
    shown = dict.fromkeys((sys.base_prefix, sys.prefix, str(ROOT)))
    closed = sorted({f"/{Path(path).parts[1]}" for path in shown} - {"/usr", "/opt", "/tmp", "/home"})
    return [
        *("--dev-bind", "/", "/"),
        *(word for top in closed for word in ("--perms", "0755", "--tmpfs", top)),
        *(word for path in shown for word in _way(path, closed)),
        *(word for path in shown for word in ("--ro-bind", path, path)),
    ]


def _way(path: str, closed: list[str]) -> list[str]:
    above = [str(folder) for folder in reversed(Path(path).parents) if folder != Path("/")]
    return (
        [word for folder in above if folder not in closed for word in ("--perms", "0755", "--dir", folder)]
        if any(path.startswith(f"{top}/") for top in closed)
        else []
    )
