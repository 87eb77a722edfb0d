"""Memory cgroups of attempts that have ended, which the kernel keeps.

A memory cgroup that was removed stays while a page is charged to it, e.g. of a file that its job wrote and that is in the page
cache. A machine has room for 65,535 of them, and then starts nothing that is to have one. One with memory to spare lets go of
none by itself: so it is told to, long before.
"""

import logging
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("baton.agent")

MOST = 65_535
"""Of one machine (Linux, mm/memcontrol.c, MEM_CGROUP_ID_MAX)."""


class KeptGroups:
    """Those of this machine. `root` is where /proc and /sys lie."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._most = MOST // 2

    def look(self) -> None:
        """Lets the kernel drop what it has cached of files when half of the room is taken, and when that left many, again
        when half of the rest is. Blocks, while it drops; nothing is raised."""
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
        """With those that were removed and are kept; 0 where the kernel says nothing of them."""
        with suppress(OSError):
            for line in (self._root / "proc/cgroups").read_text().splitlines():
                if line.startswith("memory\t"):
                    return int(line.split()[2])
        with suppress(OSError):  # a kernel with version 2 alone
            told = dict(line.split() for line in (self._root / "sys/fs/cgroup/cgroup.stat").read_text().splitlines())
            return sum(int(told.get(name, 0)) for name in ("nr_descendants", "nr_dying_descendants"))
        return 0
