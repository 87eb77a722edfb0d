"""Loopback ports that stay ours, also while the server that uses one is down.

The naive way (bind to 0, read the number, close) loses the port in two ways. Another process may take it before the
server binds. Worse, numbers from 0 lie in the kernel's ephemeral range: while a killed server is down, a client that
tries again may be given that same number as its *own* source port, connect to itself, and so keep the server from ever
coming back. Therefore ports are chosen below the ephemeral range, and a lease keeps a bound socket that never listens:
on Linux the server may bind beside it (both set SO_REUSEADDR), while a plain bind and the ephemeral search may not.

A job may set SO_REUSEADDR, too. While a server is down, it could listen in its place: be told what is said to it, and answer.
So where we are root a port is one that only root may bind (docs/decisions/0122).
"""

import errno
import random
import socket
import sys
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 20_000
_ATTEMPTS = 200
_FOR_ROOT = (
    *range(811, 828),
    *range(834, 843),
    *range(863, 873),
    *range(874, 886),
    *range(889, 900),
    *range(914, 953),
    *range(954, 989),
)
"""Ports that need a right which no job has, and that nobody else has a use for: IANA gives them to no service."""


class PortInUse(RuntimeError):
    """A requested port is taken; the message names the process that holds it when that can be told."""


class PortLease:
    """A port that is ours until `release`."""

    def __init__(self, port: int, *holders: socket.socket) -> None:
        self.port = port
        self._holders = holders

    def release(self) -> None:
        """Give the port back. May be called twice."""
        for holder in self._holders:
            holder.close()
        self._holders = ()


def lease_port(requested: int | None = None, *, preferred: int | None = None) -> PortLease:
    """Lease `requested`, or else `preferred` if it is free, or else any free port: one that only root may bind, where we may. A
    `preferred` one that jobs may bind is then given up, too.

    Raises:
        PortInUse: `requested` has a listener, or no free port was found.
    """
    if requested is not None:
        lease = _take(requested, shared=True, alone=False)
        if lease is None:
            raise PortInUse(
                f"port {requested} is already in use by {_owner(requested)}: stop it or choose another port"
            )
        return lease
    chance = random.SystemRandom()
    ours = _only_ours()
    if (
        preferred is not None
        and (preferred in ours or not ours)
        and (lease := _take(preferred, shared=True)) is not None
    ):
        return lease
    for port in chance.sample(ours, len(ours)):
        if (lease := _take(port, shared=False)) is not None:
            return lease
    if preferred is not None and (lease := _take(preferred, shared=True)) is not None:
        return lease
    highest = max(_ephemeral_start() - 1, _LOWEST + 1000)
    for _ in range(_ATTEMPTS):
        if (lease := _take(chance.randint(_LOWEST, highest), shared=False)) is not None:
            return lease
    raise PortInUse(f"no free port on {LOOPBACK} between {_LOWEST} and {highest} in {_ATTEMPTS} attempts")


def _take(port: int, *, shared: bool, alone: bool = True) -> PortLease | None:
    """Bind the port; `shared` tolerates the remains of old connections (TIME_WAIT). They look like another lease, of which
    there is none when we are `alone` with the same number of UDP."""
    holder, mark = socket.socket(socket.AF_INET, socket.SOCK_STREAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if alone:
            mark.bind((LOOPBACK, port))
        if shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lets the server in, not a plain bind
    except OSError as error:
        holder.close()
        mark.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    if sys.platform != "linux":
        holder.close()  # elsewhere a bound socket would shut the server out
        return PortLease(port, mark)
    return PortLease(port, holder, mark)


def _only_ours() -> list[int]:
    """Of `_FOR_ROOT` those that we may bind and a job may not: all of them for root, or none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            trial.bind((LOOPBACK, _FOR_ROOT[0]))
    except PermissionError:
        return []
    except OSError:  # it is taken
        pass
    anybodys = _setting("ip_unprivileged_port_start", 1024)
    return [port for port in _FOR_ROOT if port < anybodys] if sys.platform == "linux" else []


def _ephemeral_start() -> int:
    return _setting("ip_local_port_range", 32_768)


def _setting(name: str, otherwise: int) -> int:
    """The first number of a setting of the kernel's."""
    try:
        return int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[0])
    except OSError:
        return otherwise


def _owner(port: int) -> str:
    try:
        import psutil

        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except Exception:  # psutil missing, or no right to look: the port is busy all the same
        pass
    return "another process"
