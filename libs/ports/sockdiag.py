"""Reads sockets from the kernel by netlink (`sock_diag`): sockets on a range of ports, the memory of each socket, and what
each connection of a server has received; ends connections of a process that does not.

One question per address family. The kernel filters by the range, so the answer takes a millisecond or two however many
other sockets exist.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address

LISTENING = 1 << 10
BOUND = 1 << 13
"""Bound, but neither listening nor connected, see `tells`."""
_LEFT = 1 << 6
"""A connection kept for a minute after its end (TIME_WAIT)."""
_CLOSED = 1 << 7
CONNECTED = 0x0FFF & ~(_LEFT | _CLOSED | LISTENING | 1)
DATAGRAMS = CONNECTED | _CLOSED
"""Of UDP: all with a port. One that is not connected is told as closed."""

_SOCK_DIAG, _TELL, _END = 4, 20, 21
_DUMP, _ACKNOWLEDGE = 0x301, 0x005
_DONE, _ERROR = 3, 2
_FILTER = 1
_AT_LEAST, _AT_MOST = 2, 3
_HEADER, _ASKED, _ANSWER = struct.Struct("=IHHII"), struct.Struct("=BBHI48s"), struct.Struct("=xB2x48s12xII")
_ROOM = 1 << 18
_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNET = 0x4000_0000
_PIDFD_GETFD = 438
_MEMORY, _SAY_MEMORY = 7, 1 << 6
_INFO, _SAY_INFO = 2, 1 << 1
_RECEIVED_AT, _UNREAD_AT = 128, 56
"""Of `tcp_info`, and of the answer itself."""
_ATTRIBUTES = 72
_ATTRIBUTE, _MEMORY_OF = struct.Struct("=HH"), struct.Struct("=I12xII")
"""Memory fields: received but not read; (write limit, forward allocation); sent but not taken."""


@dataclass(frozen=True, slots=True)
class HeldPort:
    """One socket: its port, the user of the process that created it, and its inode, which appears in processes' open
    files; 0: no process has it."""

    port: int
    uid: int
    inode: int
    state: int
    """`LISTENING`, one of `CONNECTED`, or another: bound."""
    family: int
    id: bytes
    """The kernel's identifier."""


def held_ports(ports: range, states: int, protocol: int = socket.IPPROTO_TCP) -> list[HeldPort]:
    """Sockets of this network that belong to processes. Empty if the kernel does not report them."""
    return [one for one in all_at(ports, states, protocol) if one.inode]


def all_at(ports: range, states: int, protocol: int = socket.IPPROTO_TCP) -> list[HeldPort]:
    """Also those without a process: closed with unsent data, or not yet accepted. Newer kernels give their former user
    (seen on 6.18)."""
    attribute = _on(ports)
    found: list[HeldPort] = []
    with suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            for answer in _answers(_TELL, _DUMP, _ASKED.pack(family, protocol, 0, states, b"") + attribute):
                state, id, uid, inode = _ANSWER.unpack_from(answer)
                found.append(HeldPort(int.from_bytes(id[:2], "big"), uid, inode, 1 << state, family, id))
    return found


def _on(ports: range) -> bytes:
    """The attribute by which the kernel tells of sockets on these alone."""
    # Two operations with their ports: the second number is how far to continue, the third jumps behind the end:
    # refused.
    wanted = struct.pack("=BBHHHBBHHH", _AT_LEAST, 8, 20, 0, ports.start, _AT_MOST, 8, 12, 0, ports.stop - 1)
    return struct.pack("=HH", 4 + len(wanted), _FILTER) + wanted


@cache
def tells(state: int) -> bool:
    """Whether the kernel reports TCP sockets that are `LISTENING` (its module tcp_diag), or `BOUND` (Linux 6.8). Tried with
    one."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        if state == LISTENING:
            one.listen()
        port = one.getsockname()[1]
        return bool(held_ports(range(port, port + 1), state))


@dataclass(frozen=True, slots=True)
class Buffered:
    """One socket, by its identity as in `HeldPort`, and its bytes of kernel memory: received but not read, and sent but
    not taken."""

    port: int
    uid: int
    inode: int
    listens: bool
    bytes: int


def buffered(protocol: int, process: int = 0) -> list[Buffered]:
    """All TCP or UDP sockets of a process's network; 0: this one's. Empty if the kernel does not report them."""
    found: list[Buffered] = []
    with suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = _ASKED.pack(family, protocol, _SAY_MEMORY, 0xFFFF, b"")
            for answer in _answers(_TELL, _DUMP, asked, process):
                state, id, uid, inode = _ANSWER.unpack_from(answer)
                port = int.from_bytes(id[:2], "big")
                found.append(Buffered(port, uid, inode, 1 << state == LISTENING, _memory_in(answer)))
    return found


def _memory_in(answer: bytes) -> int:
    found = _attribute(answer, _MEMORY)
    return sum(_MEMORY_OF.unpack_from(found)) if found else 0


def _attribute(answer: bytes, wanted: int) -> bytes:
    at = _ATTRIBUTES
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == wanted:
            return answer[at + _ATTRIBUTE.size : at + length]
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return b""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of a server, and how many bytes of it the server has read, or not yet."""

    id: bytes
    """The kernel's identifier."""
    family: int
    inode: int
    read: int
    unread: int

    @property
    def peer(self) -> str:
        """Address and port at the other end."""
        return peer(self.family, self.id[20:36], self.id[2:4])


FAMILIES = (socket.AF_INET, socket.AF_INET6)


def families_of(port: int) -> tuple[int, ...]:
    """Of those who listen there: in which connections to them may be."""
    listening = {one.family for one in held_ports(range(port, port + 1), LISTENING)}
    return tuple(family for family in FAMILIES if family in listening)


def connections(port: int, families: tuple[int, ...] = FAMILIES) -> list[Connection]:
    """Those to a server on this port, in this network. Empty if the kernel does not report them. For each family the kernel
    walks over its whole table."""
    found: list[Connection] = []
    with suppress(OSError):
        for family in families:
            asked = _ASKED.pack(family, socket.IPPROTO_TCP, _SAY_INFO, CONNECTED, b"")
            for answer in _answers(_TELL, _DUMP, asked + _on(range(port, port + 1))):
                _, id, _, inode = _ANSWER.unpack_from(answer)
                info = _attribute(answer, _INFO)
                if inode and len(info) >= _RECEIVED_AT + 8:
                    received = struct.unpack_from("=Q", info, _RECEIVED_AT)[0]
                    unread = struct.unpack_from("=I", answer, _UNREAD_AT)[0]
                    found.append(Connection(id, family, inode, received - unread, unread))
    return found


def peer(family: int, address: bytes, port: bytes) -> str:
    """As the kernel has it -> as `Connection` has it."""
    if family == socket.AF_INET:
        at: str = str(IPv4Address(address[:4]))
    else:
        six = IPv6Address(address)
        at = str(six.ipv4_mapped or six)
    return f"{at}:{int.from_bytes(port, 'big')}"


def end(one: Connection) -> None:
    """Ends a connection of another process, which reads an error at once. Root does that by the kernel alone; who is not takes
    part in the socket, if the process is the same user's. Raises OSError."""
    try:
        for _ in _answers(_END, _ACKNOWLEDGE, _ASKED.pack(one.family, socket.IPPROTO_TCP, 0, 0xFFFF, one.id)):
            pass
    except PermissionError:
        _shut(one)
    except OSError as e:
        if e.errno != errno.ENOENT:  # it has ended by itself
            raise


def _shut(one: Connection) -> None:
    """Raises OSError."""
    name = f"socket:[{one.inode}]"
    for process in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for file in os.listdir(f"/proc/{process}/fd"):
                if os.readlink(f"/proc/{process}/fd/{file}") == name:
                    _shut_of(process, int(file))
                    return
    raise PermissionError(errno.EPERM, "the process that has this connection is another user's: only root may end it")


def _shut_of(process: int, file: int) -> None:
    holder = os.pidfd_open(process)
    try:
        if (copied := _LIBC.syscall(_PIDFD_GETFD, holder, file, 0)) < 0:
            raise OSError(ctypes.get_errno(), "the kernel lets nobody take part in that process's files")
        try:
            # Not `shutdown`: what comes after it is read all the same.
            if _LIBC.connect(copied, struct.pack("=H14x", socket.AF_UNSPEC), 16):
                raise OSError(ctypes.get_errno(), "the connection cannot be ended")
        finally:
            os.close(copied)
    finally:
        os.close(holder)


def _answers(what: int, flags: int, body: bytes, process: int = 0) -> Iterator[bytes]:
    """Raises OSError."""
    with _in_network_of(process) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(body), what, flags, 1, 0) + body)
        while True:
            said, at = kernel.recv(_ROOM), 0
            while at < len(said):
                length, kind, *_ = _HEADER.unpack_from(said, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    if number := -struct.unpack_from("=i", said, at + _HEADER.size)[0]:
                        raise OSError(number, "the kernel does not tell of sockets, or end them")
                    return
                yield said[at + _HEADER.size : at + length]
                at += (length + 3) & ~3


def _in_network_of(process: int) -> socket.socket:
    """A netlink socket stays in the network where it was created, so this thread enters that network for a moment.
    Raises OSError."""
    if not process:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(f"/proc/{process}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
            try:
                return _in_network_of(0)
            finally:
                _enter(own)
        finally:
            os.close(there)
    finally:
        os.close(own)


def _enter(network: int) -> None:
    if _LIBC.setns(network, _NEWNET):
        raise OSError(ctypes.get_errno(), "the network of a job cannot be looked into")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port, at every address of the machine. Tries it as servers do, with
    `SO_REUSEADDR`."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind((anywhere, port))
        except OSError as e:
            if e.errno == errno.EADDRINUSE:
                return False
    return True


def end_what_is_left(port: int) -> None:
    """Ends connections from this port that no process has: left by a server without `SO_REUSEADDR`, they block the port
    for a minute. Only root may; others wait."""
    held = all_at(range(port, port + 1), LISTENING | BOUND | CONNECTED | _LEFT)
    if any(one.inode for one in held):  # a connection that a server has not accepted has no process either
        return
    for one in held:
        with suppress(OSError):
            body = _ASKED.pack(one.family, socket.IPPROTO_TCP, 0, 0xFFFF, one.id)
            list(_answers(_END, _ACKNOWLEDGE, body))
