"""Enforces shares of kernel resources common to all processes of a machine: gang ports, ephemeral ports, open files,
file locks, socket memory.

The kernel has no per-user limit for any of them, and one job can exhaust each in a tenth of a second. An attempt's use
is in the tables of its processes, which are slow to read. So the machine's totals are read five times a second, which
is free, and the tables when a total has grown, or else at intervals. An attempt above its share is ended.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import psutil

from libs.ports.sockdiag import (
    BOUND,
    CONNECTED,
    DATAGRAMS,
    LISTENING,
    Buffered,
    HeldPort,
    all_at,
    buffered,
    held_ports,
)
from services.agent import filelocks, neighbours
from services.agent.filelocks import locks_on_machine
from services.agent.gangports import GangPorts, PortsHad, given_out, local_ports
from services.agent.keeper import proc
from services.agent.limits import SHARE, mib
from services.agent.netlinks import MOST as MOST_NETLINKS
from services.agent.netlinks import NetlinkTotal, had_by, netlinks
from services.agent.tables import files_of, networks_of, sockets_of

QUICK_S = 0.2
_FEW = 16
"""More new sockets on the machine than this trigger a scan."""
_OF_ONE = 4
"""An attempt may open a quarter of the machine's open files."""
_FILES_TAKEN, _PORTS_TAKEN, _MEMORY_TAKEN, _LOCKS_TAKEN = 3 / 4, 7 / 8, 3 / 4, 3 / 4
"""Above these fractions of a total the largest user is ended, if its share is significant:"""
_WORTH = 64
_OF_A_TEAM, _USUAL = 4, 2
"""A team's attempts may have had four times the limit of one attempt in gang ports, plus two for each attempt."""
LOCKS = 200_000
"""File locks of all attempts together, 38 MB; one attempt may have a quarter. The kernel has no limit of its own."""
_HALF = 2
"""An attempt may have half of the socket memory; a machine's unread data is seldom that much."""
_PROTOCOLS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP}
_WITH_PORTS = {"TCP": LISTENING | BOUND | CONNECTED, "UDP": DATAGRAMS}
"""States of sockets that have a port. Each protocol has all ports for itself."""
_NETLINK = "netlink"
"""Netlink has no limit of its own; TCP's is used."""
_WATCHES = 100_000
"""A write to a file that so many watch stops its processor for some 18 ms; beyond twice as many it is said."""
_FILE_BYTES = 256
"""An open file takes at least this many bytes of its job's memory."""


@dataclass(eq=False, slots=True)
class SharedUse:
    """One attempt's use. `sockets`: its limit, 0: unlimited. `shim`: the process that holds it, 0: unknown. `ending`:
    it exceeded a share and is being ended."""

    ports: PortsHad
    sockets: int = 0
    shim: int = 0
    own_network: bool = False
    """It has its own network namespace."""
    ending: bool = False

    def processes(self) -> set[int]:
        return proc.descendants([self.shim]) if self.shim else set()


Excess = Iterator[tuple[SharedUse, str]]
"""(attempt to end, reason). Its `ending` is set before the next one is computed."""


class SharedLook:
    """Scans of one agent. `every_s`: the interval of scans without growth."""

    def __init__(self, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._now = every_s, now
        self._gang_ports = GangPorts()
        self._next = self._next_thorough = 0.0
        self._sockets = self._opened = self._locks = 0
        """The machine's totals at the last scan, or smaller ones since."""
        self._netlink_total = NetlinkTotal()
        self._memory = dict.fromkeys((*_PROTOCOLS, _NETLINK), 0)
        """The same for socket memory by protocol, bytes."""

    def due(self, uses: Iterable[SharedUse] = ()) -> bool:
        """Whether to scan now."""
        sockets, opened, memory = sockets_of_machine(), open_on_machine(), self._memory_now(uses)
        locks = locks_on_machine()
        self._sockets, self._opened = min(self._sockets, sockets), min(self._opened, opened)
        self._locks = min(self._locks, locks)
        self._memory = {name: min(self._memory[name], now) for name, now in memory.items()}
        return (
            self._now() >= self._next
            or sockets - self._sockets > _FEW
            or self._many_more_files(opened)
            or self._many_more_locks(locks)
            or any(self._much_more_memory(name, now) for name, now in memory.items())
        )

    def look(self, uses: Sequence[SharedUse]) -> dict[SharedUse, str]:
        """Attempts above a share, with reasons. Blocks."""
        began = self._now()
        ended = {}
        for use, why in self._too_much(uses, began >= self._next_thorough):
            use.ending, ended[use] = True, why
        self._next = began + self._every_s
        if began >= self._next_thorough:
            self._next_thorough = self._now() + SHARE * (self._now() - began)
        return ended

    def _too_much(self, uses: Sequence[SharedUse], thorough: bool) -> Excess:
        sockets, opened, locks = sockets_of_machine(), open_on_machine(), locks_on_machine()
        self._gang_ports.look([(use.ports, use.processes) for use in uses], self._now(), thorough)
        yield from ((use, why) for use in uses if not use.ending and (why := use.ports.too_many()))
        yield from _too_many_gang_ports(uses)
        fewest = min((use.sockets for use in uses if use.sockets), default=sys.maxsize)
        if sockets > fewest and (thorough or sockets - self._sockets > fewest // 8):
            yield from _too_many_sockets(uses)
        if opened > files_each() and (thorough or self._many_more_files(opened)):
            yield from _too_many_files(uses, opened)
        if locks > locks_each() and (thorough or self._many_more_locks(locks)):
            yield from _too_many_locks(uses)
        yield from _too_much_netlink(uses)
        for name, now in (memory := self._memory_now(uses)).items():
            if name in _PROTOCOLS and now > memory_each(name) and (thorough or self._much_more_memory(name, now)):
                yield from _too_much_memory(uses, name, now)
        self._sockets, self._opened, self._locks, self._memory = sockets, opened, locks, memory

    def _memory_now(self, uses: Iterable[SharedUse]) -> dict[str, int]:
        return memory_of_sockets() | {_NETLINK: self._netlink_total.now(_elsewhere(uses))}

    def _many_more_files(self, opened: int) -> bool:
        return opened > files_each() and opened - self._opened > files_each() // 8

    def _many_more_locks(self, locks: int) -> bool:
        return locks > locks_each() and locks - self._locks > locks_each() // 8

    def _much_more_memory(self, name: str, now: int) -> bool:
        return now > (each := memory_each(name)) and now - self._memory[name] > each // 8


def _too_many_gang_ports(uses: Sequence[SharedUse]) -> Excess:
    """Limits per team: many small attempts, each below its limit, would together have too many."""
    teams: dict[int, list[SharedUse]] = {}
    for use in uses:
        if use.ports.most and not use.ending:
            teams.setdefault(use.ports.uid, []).append(use)
    for theirs in teams.values():
        had, most = sum(len(use.ports.had) for use in theirs), max(use.ports.most for use in theirs)
        may = _OF_A_TEAM * most + _USUAL * len(theirs)
        for use in sorted(theirs, key=lambda one: len(one.ports.had), reverse=True):
            if had > may:
                yield (
                    use,
                    (
                        f"port limit: attempts of its team there have had {had} of the ports at which gangs meet, and may have "
                        f"{may}; none had more than this one, {len(use.ports.had)}"
                    ),
                )
                had -= len(use.ports.had)


def _too_many_sockets(uses: Sequence[SharedUse]) -> Excess:
    held = {name: [one for one in found if one.inode or one.uid] for name, found in _sockets_with_ports(all_at)}
    every = [one for found in held.values() for one in found]
    own: dict[SharedUse, set[int | bytes]] = {use: set(sockets_of(use.processes())) for use in uses}
    nobodys = {one.inode for one in every if one.inode}.difference(*own.values())
    if nobodys:  # sockets that remain are in flight, sent and not received, and count for their team
        nobodys &= {one.inode for _, found in _sockets_with_ports(held_ports) for one in found}
    for use in uses:
        theirs = [one for one in every if one.uid == use.ports.uid]
        own[use].update(one.inode for one in theirs if one.inode in nobodys)
        own[use].update(one.id for one in theirs if not one.inode)  # closed, and not gone
    why = "all processes of the machine have their ports together"
    for use in uses:
        if use.sockets and not use.ending and (count := len(own[use])) > use.sockets:
            yield use, f"socket limit: it had {count} sockets open, and may have {use.sockets}: {why}"
    for name, found in held.items():
        ports = {use: len({one.port for one in found if (one.inode or one.id) in own[use]}) for use in uses}
        taken = len({one.port for one in found})
        for use in _largest(ports, taken, len(local_ports()), _PORTS_TAKEN):
            had = f"it had {ports[use]} ports of {name}, more than any other, when {taken} were taken"
            yield use, f"socket limit: {had}: {why}"


def _sockets_with_ports(
    ask: Callable[[range, int, int], list[HeldPort]],
) -> list[tuple[str, list[HeldPort]]]:
    return [(name, ask(local_ports(), states, _PROTOCOLS[name])) for name, states in _WITH_PORTS.items()]


def _too_many_files(uses: Sequence[SharedUse], opened: int) -> Excess:
    most, there_are = files_each(), open_files_of_machine()
    counts = {use: files_of(use.processes()) for use in uses}
    why = f"all processes of the machine have {there_are:,} together (sysctl fs.file-max)"
    for use in uses:
        if not use.ending and counts[use] > most:
            yield use, f"file limit: it had {counts[use]:,} files open, and may have {most:,}: {why}"
    for use in _largest(counts, opened, there_are, _FILES_TAKEN):
        yield use, f"file limit: it had {counts[use]:,} files open, more than any other, when {opened:,} were: {why}"


def _too_many_locks(uses: Sequence[SharedUse]) -> Excess:
    held = filelocks.held_by([use.processes() for use in uses], filelocks.listed_locks(LOCKS))
    counts = dict(zip(uses, held, strict=True))
    why = "no limit of its memory counts them"
    for use in uses:
        if not use.ending and counts[use] > locks_each():
            yield use, f"lock limit: it held {counts[use]:,} locks of files, and may hold {locks_each():,}: {why}"
    taken = sum(counts.values())
    for use in _largest(counts, taken, LOCKS, _LOCKS_TAKEN):
        yield use, f"lock limit: it held {counts[use]:,} locks of files, more than any other, of {taken:,}: {why}"


def _too_much_memory(uses: Sequence[SharedUse], name: str, taken: int) -> Excess:
    most, there_is = memory_each(name), memory_for_sockets(name)
    counts = _memory_by_use(uses, buffered(_PROTOCOLS[name]))
    for use in uses:  # a network namespace of its own has the same memory
        for process in networks_of(use.processes()):
            counts[use] += sum(one.bytes for one in buffered(_PROTOCOLS[name], process))
    why = f"all processes of the machine have {mib(there_is)} together (sysctl net.ipv4.{name.lower()}_mem)"
    for use in uses:
        if not use.ending and counts[use] > most:
            yield use, f"memory of sockets: its {name} had {mib(counts[use])}, and may have {mib(most)}: {why}"
    for use in _largest(counts, taken, there_is, _MEMORY_TAKEN):
        had = f"its {name} had {mib(counts[use])}, more than any other, when {mib(taken)} were taken"
        yield use, f"memory of sockets: {had}: {why}"


def _elsewhere(uses: Iterable[SharedUse]) -> list[int]:
    """One process in each separate network."""
    return [use.shim for use in uses if use.own_network and use.shim]


def _too_much_netlink(uses: Sequence[SharedUse]) -> Excess:
    held, most = netlinks(_elsewhere(uses)), memory_each(_NETLINK)
    if len(held) <= MOST_NETLINKS and sum(one.bytes for one in held) <= most:
        return
    for use, had in zip(uses, had_by([use.processes() for use in uses], held), strict=True):
        if not use.ending and had.bytes > most:
            why = "no limit of its memory counts that"
            yield use, f"memory of sockets: its netlink had {mib(had.bytes)}, and may have {mib(most)}: {why}"
        elif not use.ending and had.sockets > MOST_NETLINKS:
            yield use, f"socket limit: it had {had.sockets} of netlink, and may have {MOST_NETLINKS}"


def _memory_by_use(uses: Sequence[SharedUse], held: Sequence[Buffered]) -> dict[SharedUse, int]:
    """Connections that a server has not accepted count for its listener; sockets in flight, or closed with unsent data,
    count for their team."""
    whose = {inode: use for use in uses for inode in sockets_of(use.processes())}
    servers = {one.port: whose[one.inode] for one in held if one.listens and one.inode in whose}
    counts = dict.fromkeys(uses, 0)
    for one in held:
        use = whose.get(one.inode) if one.inode else servers.get(one.port)
        for of in [use] if use is not None else [use for use in uses if use.ports.uid == one.uid]:
            counts[of] += one.bytes
    return counts


def _largest(counts: Mapping[SharedUse, int], taken: int, there_are: int, crowded: float) -> Iterator[SharedUse]:
    """The largest users, until less than the fraction `crowded` of the total is used. Use of attempts being ended no
    longer counts."""
    taken -= sum(count for use, count in counts.items() if use.ending)
    for use, count in sorted(counts.items(), key=lambda one: one[1], reverse=True):
        if not use.ending and taken > crowded * there_are and count > there_are // _WORTH:
            taken -= count
            yield use


# --------------------------------------------------------------------------------------------- what the machine has


def open_files_of_machine() -> int:
    """The machine's limit of open files, except root's."""
    try:
        return int(proc.read_text("/proc/sys/fs/file-max"))
    except (OSError, ValueError):
        return sys.maxsize


def connections_left() -> int:
    """The machine's limit of connections kept for a minute after their end, each with its port; 0 if unknown."""
    try:
        return int(proc.read_text("/proc/sys/net/ipv4/tcp_max_tw_buckets"))
    except (OSError, ValueError):
        return 0


def watches_of_a_user() -> int:
    """The machine's limit of files that one user's processes may watch by `epoll`; 0 if unknown."""
    try:
        return int(proc.read_text("/proc/sys/fs/epoll/max_user_watches"))
    except (OSError, ValueError):
        return 0


def files_each() -> int:
    """The limit of open files per attempt."""
    return open_files_of_machine() // _OF_ONE


def locks_each() -> int:
    """The limit of file locks per attempt."""
    return LOCKS // _OF_ONE


def open_on_machine() -> int:
    """Open files of all processes of the machine."""
    try:
        return int(proc.read_text("/proc/sys/fs/file-nr").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def sockets_of_machine() -> int:
    """TCP sockets, connected or not, and UDP sockets with a port; 0 if unknown. IPv6 has the same ports, and counts its UDP
    sockets apart."""
    said = _sockstat("/proc/net/sockstat")
    return (
        said["TCP"].get("alloc", 0)
        + said["UDP"].get("inuse", 0)
        + _sockstat("/proc/net/sockstat6")["UDP6"].get("inuse", 0)
    )


def memory_of_sockets() -> dict[str, int]:
    """Protocol -> bytes of socket memory."""
    said = _sockstat("/proc/net/sockstat")
    return {name: said[name].get("mem", 0) * _page() for name in _PROTOCOLS}


def _sockstat(path: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {name: {} for name in (*_PROTOCOLS, "UDP6")}
    with suppress(OSError, ValueError):
        for line in proc.read_text(path).splitlines():
            name, *words = line.split()
            if (said := found.get(name[:-1])) is not None:
                said.update(zip(words[::2], map(int, words[1::2]), strict=True))
    return found


def memory_for_sockets(name: str) -> int:
    """Bytes of socket memory of a protocol above which the kernel slows all its sockets."""
    if name == _NETLINK:
        return memory_for_sockets("TCP")
    try:
        return int(proc.read_text(f"/proc/sys/net/ipv4/{name.lower()}_mem").split()[1]) * _page()
    except (OSError, ValueError, IndexError):
        return sys.maxsize


def memory_each(name: str) -> int:
    """The limit of socket memory per attempt."""
    return memory_for_sockets(name) // _HALF


@cache
def _page() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def first_port_of_all() -> int:
    """The first port that any user may bind."""
    try:
        return int(proc.read_text("/proc/sys/net/ipv4/ip_unprivileged_port_start"))
    except (OSError, ValueError):
        return 1024


def lacking(http_port: int = 0) -> list[str]:
    """What this machine's settings let one job exhaust, with fixes. `http_port`: the agent's own, 0: a new one at each
    start. Without root, jobs have the agent's user, and no port can be protected."""
    out = []
    if http_port and os.geteuid() == 0 and http_port >= first_port_of_all():
        out.append(
            f"a job may bind the agent's port {http_port} while it is restarted, be asked for metrics in its place, and keep "
            "it from coming back: BATON_HTTP_PORT below 1024 is for root alone"
        )
    most, memory = open_files_of_machine(), int(psutil.virtual_memory().total)
    if most < memory // _FILE_BYTES:  # otherwise nobody has the memory for that many
        out.append(
            f"all jobs together can have {most:,} files open, and one may have a quarter: sysctl -w fs.file-max={sys.maxsize} "
            "leaves it to their memory"
        )
    left, ports = connections_left(), len(local_ports())
    if left > ports // 2:
        out.append(
            f"connections that have ended may keep {left:,} ports for a minute, and there are {ports:,} for outgoing ones: "
            f"sysctl -w net.ipv4.tcp_max_tw_buckets={ports // 2} leaves half of them to others"
        )
    if (watches := watches_of_a_user()) > 2 * _WATCHES:
        out.append(
            f"a job may watch {watches:,} files by epoll, all of them one, and each write to that stops a processor: "
            f"sysctl -w fs.epoll.max_user_watches={_WATCHES}"
        )
    if given_out():
        out.append(
            "outgoing connections are given ports of 20000 to 29999, at which gangs meet: sysctl -w "
            "net.ipv4.ip_local_reserved_ports=20000-29999 keeps them"
        )
    if few := neighbours.lacking():
        out.append(few)
    return out
