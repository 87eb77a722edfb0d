"""What all processes of a machine have together, and one job could take for itself: the ports at which gangs meet, the ports
of outgoing connections, open files.

The kernel bounds none of these for a user, and a job takes each of them in a tenth of a second. Who has how many of them the
tables of its processes say, which takes long to read. So the machine's totals are read five times a second, which costs
nothing, and it is looked for whose they are when they have grown, and else from time to time. Who has more than it may is
ended.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from services.agent.gangports import GangPorts, PortsHad, given_out
from services.agent.keeper import proc
from services.agent.tables import files_of, sockets_of

QUICK_S = 0.2
_FEW = 16
"""So many more sockets on the machine are reason for another look."""
_SHARE = 20
"""Reading tables may cost a twentieth of the time, but where something has grown much."""
_OF_ONE = 4
"""Of the files that the machine can have open an attempt may have a quarter."""
_CROWDED = 3
"""When three quarters are open, whoever has most is ended, if that is a share worth speaking of:"""
_WORTH = 64
_DYING_S = 5.0
"""Who was ended has given back what it had."""
_FILE_BYTES = 256
"""Of the memory of its job an open file takes as much, and more."""


@dataclass(eq=False, slots=True)
class SharedUse:
    """What one attempt has of it. `sockets`: so many it may have open, 0: as many as it likes. `shim`: the process that holds
    it, 0: not known yet."""

    ports: PortsHad
    sockets: int = 0
    shim: int = 0

    def processes(self) -> set[int]:
        return proc.descendants([self.shim]) if self.shim else set()


class SharedLook:
    """All looks of one agent. `every_s`: how often it looks though nothing has grown."""

    def __init__(self, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._now = every_s, now
        self._gang_ports = GangPorts()
        self._next = self._next_thorough = 0.0
        self._sockets = self._opened = 0
        """Of the machine at the last look, or since, if they were fewer then."""
        self._dying: list[tuple[float, int]] = []
        """Of those that were ended: until when they count, and their open files."""

    def due(self) -> bool:
        """Whether to look."""
        sockets, opened = sockets_of_machine(), open_on_machine()
        self._sockets, self._opened = min(self._sockets, sockets), min(self._opened, opened)
        return self._now() >= self._next or sockets - self._sockets > _FEW or self._many_more_files(opened)

    def look(self, uses: Sequence[SharedUse]) -> dict[SharedUse, str]:
        """Those that have taken more than they may, and of what, in words. Blocks."""
        began, sockets, opened = self._now(), sockets_of_machine(), open_on_machine()
        thorough = began >= self._next_thorough
        self._gang_ports.look([(use.ports, use.processes) for use in uses], began, thorough)
        ended = {use: why for use in uses if (why := use.ports.too_many())}
        fewest = min((use.sockets for use in uses if use.sockets), default=sys.maxsize)
        if sockets > fewest and (thorough or sockets - self._sockets > fewest // 8):
            ended |= _with_too_many_sockets(uses)
        if opened > files_each() and (thorough or self._many_more_files(opened)):
            ended |= self._with_too_many_files(uses, opened)
        self._sockets, self._opened = sockets, opened
        self._next = began + self._every_s
        if thorough:
            self._next_thorough = self._now() + _SHARE * (self._now() - began)
        return ended

    def _many_more_files(self, opened: int) -> bool:
        return opened > files_each() and opened - self._opened > files_each() // 8

    def _with_too_many_files(self, uses: Sequence[SharedUse], opened: int) -> dict[SharedUse, str]:
        most, now = files_each(), self._now()
        self._dying = [(until, count) for until, count in self._dying if until > now]
        left = opened - sum(count for _, count in self._dying)
        ended = {}
        counted = [(files_of(use.processes()), use) for use in uses]
        for count, use in sorted(counted, key=lambda one: one[0], reverse=True):
            if count > most or (left > _CROWDED * most and count > _OF_ONE * most // _WORTH):
                ended[use] = (
                    f"file limit: it had {count:,} files open, and may have {most:,}, or fewer where others have many, too: "
                    f"all processes of the machine have {open_files_of_machine():,} together (sysctl fs.file-max)"
                )
                left -= count
                self._dying.append((now + _DYING_S, count))
        return ended


def _with_too_many_sockets(uses: Sequence[SharedUse]) -> dict[SharedUse, str]:
    return {
        use: f"socket limit: it had {count} sockets open, and may have {use.sockets}: all processes of the machine have their "
        "ports together"
        for use in uses
        if use.sockets and (count := len(sockets_of(use.processes()))) > use.sockets
    }


# --------------------------------------------------------------------------------------------- what the machine has


@cache
def ports_of_machine() -> int:
    """From which outgoing connections get theirs. They are one for all processes of the machine."""
    try:
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return 28_232
    return last - first + 1


def open_files_of_machine() -> int:
    """So many its processes can have open together, but root's."""
    try:
        return int(proc.read_text("/proc/sys/fs/file-max"))
    except (OSError, ValueError):
        return sys.maxsize


def files_each() -> int:
    """So many of them an attempt may have."""
    return open_files_of_machine() // _OF_ONE


def open_on_machine() -> int:
    """Files that are open, of all its processes."""
    try:
        return int(proc.read_text("/proc/sys/fs/file-nr").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def sockets_of_machine() -> int:
    """Those of TCP, whether they are connected or not, and of UDP; 0 where the kernel does not say."""
    count = 0
    with suppress(OSError, ValueError):
        for line in proc.read_text("/proc/net/sockstat").splitlines():
            name, *words = line.split()
            said = dict(zip(words[::2], words[1::2], strict=True))
            count += int(said.get("alloc", 0)) if name == "TCP:" else int(said["inuse"]) if name == "UDP:" else 0
    return count


def lacking() -> list[str]:
    """What this machine's settings leave for one job to take, and how they are mended."""
    out = []
    most, memory = open_files_of_machine(), int(psutil.virtual_memory().total)
    if most < memory // _FILE_BYTES:  # else nobody has memory for so many
        out.append(
            f"all jobs together can have {most:,} files open, and one may have a quarter: sysctl -w fs.file-max={sys.maxsize} "
            "leaves it to their memory"
        )
    if given_out():
        out.append(
            "outgoing connections are given ports of 20000 to 29999, at which gangs meet: sysctl -w "
            "net.ipv4.ip_local_reserved_ports=20000-29999 keeps them"
        )
    return out
