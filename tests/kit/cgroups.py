"""Groups of processes (cgroups) that are there."""

import fnmatch
import os
from pathlib import Path


def groups_below(top: Path, like: str) -> list[Path]:
    """With names like that. Groups of tests beside may go while it is looked."""
    return [Path(at, name) for at, names, _ in os.walk(top) for name in fnmatch.filter(names, like)]
