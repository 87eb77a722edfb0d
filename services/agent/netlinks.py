"""Measures unread data in netlink sockets, through which processes query the kernel.

Such answers are kernel memory that no cgroup counts and, unlike TCP's and UDP's, no global limit bounds. (Seen: a job
queried in a loop through 13,000 sockets, and had 3 GB beyond its 200 MB.) The kernel reports the memory of each socket;
tables of open files give its attempt. A socket in flight between two processes is in no table, but attempts with
something in flight are known.
"""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from services.agent.keeper import proc
from services.agent.limits import SHARE
from services.agent.tables import sockets_of, tables_of

MOST = 1024
"""The most that an attempt may have; reading takes a microsecond per socket."""
_INODE, _RECEIVED, _SENT = 9, 4, 5
_IN_FLIGHT = re.compile(r"^scm_fds:\s*(\d+)", re.MULTILINE)


class Netlink(NamedTuple):
    """A socket by its inode, and its bytes received but not read, or sent but not taken."""

    inode: int
    bytes: int


def netlinks(processes: Iterable[int] = ()) -> list[Netlink]:
    """All of this network namespace, and of those of the processes."""
    return [one for at in ("self", *processes) for one in _sockets_listed(f"/proc/{at}/net/netlink")]


def _sockets_listed(path: str) -> Iterator[Netlink]:
    with suppress(OSError, ValueError, IndexError):  # it has ended
        for line in proc.read_text(path).splitlines()[1:]:
            words = line.split()
            yield Netlink(int(words[_INODE]), int(words[_RECEIVED]) + int(words[_SENT]))


@dataclass(slots=True)
class NetlinkTotal:
    """Bytes of all of them."""

    _bytes: int = 0
    _next: float = 0.0

    def now(self, processes: Iterable[int]) -> int:
        began = time.monotonic()
        if began >= self._next:
            self._bytes = sum(one.bytes for one in netlinks(processes))
            self._next = began + SHARE * (time.monotonic() - began)
        return self._bytes


class NetlinkUse(NamedTuple):
    """An attempt's use: bytes and sockets."""

    bytes: int
    sockets: int


def had_by(attempts: Sequence[set[int]], held: Sequence[Netlink]) -> list[NetlinkUse]:
    """Use of each attempt, by its processes. A socket in no table counts for the attempt with the most in flight."""
    by_inode = {one.inode: one.bytes for one in held if one.inode}
    own = [sockets_of(processes, by_inode.keys()) for processes in attempts]
    nobodys = set(by_inode).difference(*own)
    if len(nobodys) > MOST or 2 * sum(map(by_inode.__getitem__, nobodys)) > sum(by_inode.values()):
        in_flight = list(map(_in_flight, attempts))
        if most := max(in_flight, default=0):
            own[in_flight.index(most)] |= nobodys
    return [NetlinkUse(sum(map(by_inode.__getitem__, inodes)), len(inodes)) for inodes in own]


def _in_flight(processes: Iterable[int]) -> int:
    """Number of files sent to their sockets and not received. What the kernel tells of other files a job can make long: of
    an epoll each file that it watches, and each copy of it is told again."""
    count, seen = 0, set[int]()
    for at in (table for pid in processes for table in tables_of(pid)):
        with suppress(OSError):
            for name in os.listdir(at):
                with suppress(OSError):
                    one = os.stat(f"{at}/{name}")
                    if stat.S_ISSOCK(one.st_mode) and one.st_ino not in seen:
                        seen.add(one.st_ino)
                        count += sum(map(int, _IN_FLIGHT.findall(proc.read_text(f"{at}info/{name}"))))
    return count
