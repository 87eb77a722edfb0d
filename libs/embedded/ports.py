"""Loopback ports that stay ours, also while the server that uses one is down.

The naive way (bind to 0, read the number, close) loses the port in two ways. Another process may take it before the
server binds. Worse, numbers from 0 lie in the kernel's ephemeral range: while a killed server is down, a client that
tries again may be given that same number as its *own* source port, connect to itself, and so keep the server from ever
coming back. Therefore ports are chosen below the ephemeral range, and a lease keeps a bound socket that never listens:
on Linux the server may bind beside it (both set SO_REUSEADDR), while a plain bind and the ephemeral search may not.
"""

import errno
import random
import socket
import sys
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 20_000
_ATTEMPTS = 200


class PortInUse(RuntimeError):
    """A requested port is taken; the message names the process that holds it when that can be told."""


class PortLease:
    """A port that is ours until `release`."""

    def __init__(self, port: int, holder: socket.socket | None) -> None:
        self.port = port
        self._holder = holder

    def release(self) -> None:
        """Give the port back. May be called twice."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None


def lease_port(requested: int | None = None, *, preferred: int | None = None) -> PortLease:
    """Lease `requested`, or else `preferred` if it is free, or else any free port.

    Raises:
        PortInUse: `requested` has a listener, or no free port was found.
    """
    if requested is not None:
        lease = _take(requested, shared=True)
        if lease is None:
            raise PortInUse(
                f"port {requested} is already in use by {_owner(requested)}: stop it or choose another port"
            )
        return lease
    if preferred is not None and (lease := _take(preferred, shared=True)) is not None:
        return lease
    chance = random.SystemRandom()
    highest = max(_ephemeral_start() - 1, _LOWEST + 1000)
    for _ in range(_ATTEMPTS):
        if (lease := _take(chance.randint(_LOWEST, highest), shared=False)) is not None:
            return lease
    raise PortInUse(f"no free port on {LOOPBACK} between {_LOWEST} and {highest} in {_ATTEMPTS} attempts")


def _take(port: int, *, shared: bool) -> PortLease | None:
    """Bind the port; `shared` tolerates the remains of old connections (TIME_WAIT) and other leases."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lets the server in, not a plain bind
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    if sys.platform != "linux":
        holder.close()  # elsewhere a bound socket would shut the server out
        return PortLease(port, None)
    return PortLease(port, holder)


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768


def _owner(port: int) -> str:
    try:
        import psutil

        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except Exception:  # psutil missing, or no right to look: the port is busy all the same
        pass
    return "another process"
