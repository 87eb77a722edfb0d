"""Keeps memory cgroups of ended attempts from filling the kernel's table.

A removed memory cgroup persists while any page is charged to it, e.g. of a file in the page cache. A machine has room
for 65,535 of them; beyond that, nothing that needs one can start. With memory to spare the kernel frees none by itself,
so it is told to, well before the limit.
"""

import logging
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("baton.agent")

MOST = 65_535
"""The most of one machine (Linux, mm/memcontrol.c, MEM_CGROUP_ID_MAX)."""


class KeptGroups:
    """The memory cgroups of this machine. `root` is where /proc and /sys lie."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._most = MOST // 2

    def look(self) -> None:
        """Makes the kernel drop its file cache when half of the table is used, and then each time half of the rest is.
        Blocks meanwhile; raises nothing."""
        if (before := self._count()) <= self._most:
            return
        try:
            (self._root / "proc/sys/vm/drop_caches").write_text("1")
        except OSError as e:
            log.error(
                "this machine has %d memory cgroups, and at %d no job starts on it; those of ended jobs go when it drops its "
                "page cache, which this agent may not ask for (%s): as root, echo 1 > /proc/sys/vm/drop_caches",
                before,
                MOST,
                e.strerror,
            )
        else:
            log.warning("the page cache was dropped: it kept memory cgroups of ended jobs, %d of %d", before, MOST)
        self._most = (self._count() + MOST) // 2

    def _count(self) -> int:
        """All of them, with removed ones; 0 if the kernel does not report it."""
        with suppress(OSError):
            for line in (self._root / "proc/cgroups").read_text().splitlines():
                if line.startswith("memory\t"):
                    return int(line.split()[2])
        with suppress(OSError):  # a kernel with cgroups of version 2 only
            counters = dict(
                line.split() for line in (self._root / "sys/fs/cgroup/cgroup.stat").read_text().splitlines()
            )
            return sum(int(counters.get(name, 0)) for name in ("nr_descendants", "nr_dying_descendants"))
        return 0
