"""Limits how many gang ports (`MASTER_PORT`) an attempt uses. A job that listens on all of them would keep other teams'
gangs from starting.

The limit counts all ports that the attempt has had since its agent first saw it, because holding one after the other
blocks as many gangs. A foreign process on an attempt's own port is noted: if that attempt fails, the failure was not
its own.

The kernel lists the sockets of a port. Process tables give their owners, which is slower, so each socket is looked up
once.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from libs.ports.sockdiag import BOUND, CONNECTED, LISTENING, HeldPort, held_ports
from schemas.ids import FIRST_TEAM_UID, TEAM_UIDS
from services.agent.keeper import proc
from services.agent.limits import SHARE
from services.agent.tables import sockets_of
from services.agent.variables import GANG_PORTS

_FEW = 16
"""More new sockets than this are looked up at once, even if the last look-up was slow."""
_IN_THE_WAY_S = 30.0
"""A process reports within this time that it could not listen."""
_EACH, _EACH_OF_ANY = 64, 1000


@dataclass(eq=False, slots=True)
class PortsHad:
    """Gang ports that one attempt has had, and others on its own port.

    Args:
        uid: its team's user.
        most: the most ports it may have had; 0: unlimited.
        meets: its own port, if its first process is on this node; else 0.
    """

    uid: int
    most: int = 0
    meets: int = 0
    had: set[int] = field(default_factory=set)
    own: set[int] = field(default_factory=set)
    """Its sockets on its own port."""
    in_the_way_s: float | None = None
    """When others were last seen there."""

    def too_many(self) -> str:
        """The violation in words, or ""."""
        if not self.most or len(self.had) <= self.most:
            return ""
        return (
            f"port limit: it has had {len(self.had)} of the ports {GANG_PORTS.start} to {GANG_PORTS.stop - 1}, at which gangs "
            f"meet, and may have {self.most}"
        )

    def is_others(self, one: HeldPort) -> bool:
        """Whether the socket may belong to another team. A team's own interference is its own failure, without credit."""
        return one.uid != self.uid or not _is_teams(one.uid)

    def was_in_the_way(self, now_s: float) -> str:
        """Who held its own port recently or, if the attempt has ended, now, in words; or "". Blocks for some
        milliseconds."""
        lately = self.in_the_way_s is not None and now_s - self.in_the_way_s < _IN_THE_WAY_S
        there = held_ports(range(self.meets, self.meets + 1), LISTENING | BOUND | CONNECTED) if self.meets else []
        if self.meets and (lately or any(map(self.is_others, there))):
            return f"others on its node held port {self.meets}, at which its processes meet (MASTER_PORT)"
        return ""


AttemptOf = tuple[PortsHad, Callable[[], set[int]]]
"""An attempt's ports, and a function for its processes."""


class GangPorts:
    """Scans for all attempts of one agent."""

    def __init__(self) -> None:
        self._all_at_s = sys.float_info.max if given_out() else 0.0
        """When connected sockets are included in the next scan. A server on such a port may have very many."""
        self._with_owner: set[int] = set()
        """Sockets whose owners are known."""
        self._unowned: set[int] = set()
        """Sockets that no examined process has. If still so at the second scan, they are in flight: sent and not
        received."""

    def look(self, attempts: Sequence[AttemptOf], now_s: float, thorough: bool) -> None:
        """Updates each attempt's ports. Blocks. `thorough`: also look up a few new sockets."""
        every = now_s >= self._all_at_s
        began = time.monotonic()
        held = held_ports(GANG_PORTS, LISTENING | BOUND | (CONNECTED if every else 0))
        if every:
            self._all_at_s = now_s + SHARE * (time.monotonic() - began)
            self._with_owner.intersection_update(one.inode for one in held)
        servers = {one.port for one in held if one.state & LISTENING}
        held = [one for one in held if not (one.state & CONNECTED and one.port in servers)]
        new = [one for one in held if one.inode not in self._with_owner]
        if new and (thorough or len(new) > _FEW):
            self._ask_whose(new, attempts)
        for ports, _ in attempts:
            at = {one.inode for one in held if one.port == ports.meets and ports.is_others(one)}
            if at & self._with_owner - ports.own:
                ports.in_the_way_s = now_s

    def _ask_whose(self, new: Sequence[HeldPort], attempts: Sequence[AttemptOf]) -> None:
        by_inode = {one.inode: one for one in new}
        nobodys = set(by_inode)
        for ports, processes in attempts:
            wanted = {one.inode for one in new if one.uid == ports.uid or not _is_teams(one.uid)}
            for inode in sockets_of(processes(), wanted) if wanted else ():
                port = by_inode[inode].port
                ports.had.add(port)
                if port == ports.meets:
                    ports.own.add(inode)
                nobodys.discard(inode)
        in_flight = nobodys & self._unowned
        for one in (by_inode[inode] for inode in in_flight):
            for ports, _ in attempts:
                if one.uid == ports.uid:
                    ports.had.add(one.port)
        self._with_owner |= by_inode.keys() - (nobodys - in_flight)
        self._unowned = nobodys - in_flight


def _is_teams(uid: int) -> bool:
    return FIRST_TEAM_UID <= uid < FIRST_TEAM_UID + TEAM_UIDS


def most_each() -> int:
    """The default limit of gang ports per attempt."""
    return _EACH_OF_ANY if given_out() else _EACH


@cache
def given_out() -> bool:
    """Whether the machine assigns gang ports to outgoing connections or to listeners on any port."""
    try:
        kept = proc.read_text("/proc/sys/net/ipv4/ip_local_reserved_ports").strip()
        spans = [tuple(map(int, (span.split("-") * 2)[:2])) for span in kept.split(",") if span]
    except (OSError, ValueError):
        return False
    given = set(local_ports()) & set(GANG_PORTS)
    for begin, end in spans:
        given.difference_update(range(begin, end + 1))
    return bool(given)


@cache
def local_ports() -> range:
    """The range of ephemeral ports, shared by all processes of the machine."""
    try:
        first, last = map(int, proc.read_text("/proc/sys/net/ipv4/ip_local_port_range").split())
    except (OSError, ValueError):
        first, last = 32_768, 60_999
    return range(first, last + 1)
