"""Which processes have a device file open, as /proc shows it."""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def holders(files: Collection[str], root: Path = Path("/")) -> dict[str, frozenset[int]]:
    """File -> ids of the processes that have it open. A process whose descriptors may not be read is left out.

    Costs a look at every descriptor of the machine: some 10 ms where a few hundred processes run.
    """
    found: dict[str, set[int]] = {file: set() for file in files}
    if found:
        for pid, file in _open_files(root / "proc"):
            if file in found:
                found[file].add(pid)
    return {file: frozenset(pids) for file, pids in found.items()}


def _open_files(proc: Path) -> Iterator[tuple[int, str]]:
    for entry in os.scandir(proc):
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                for descriptor in os.scandir(f"{entry.path}/fd"):
                    with suppress(OSError):
                        yield int(entry.name), os.readlink(descriptor.path)
