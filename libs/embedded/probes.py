"""Readiness probes: each makes an async function that answers True, answers False, or raises when nobody is there yet.

Written on plain sockets so that starting a server imports no client library.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from libs.embedded.ports import LOOPBACK
from libs.embedded.process import Probe

_OP_MSG = 2013


def tcp_open(port: int) -> Probe:
    """Ready when something accepts connections on the port."""

    async def probe() -> bool:
        async with _connection(port):
            return True

    return probe


def http_ok(port: int, path: str = "/") -> Probe:
    """Ready when `GET path` answers 200."""

    async def probe() -> bool:
        async with _connection(port) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}\r\n\r\n".encode())
            return (await reader.readline()).split()[1:2] == [b"200"]

    return probe


def valkey_pong(socket: Path, user: str, password: str) -> Probe:
    """Ready when PING answers PONG on its Unix socket: before that, Valkey answers LOADING while it replays its append-only
    file."""

    async def probe() -> bool:
        async with _opened(asyncio.open_unix_connection(socket)) as (reader, writer):
            writer.write(f"AUTH {user} {password}\r\nPING\r\n".encode())
            await reader.readline()
            return await reader.readline() == b"+PONG\r\n"

    return probe


def mongo_pong(socket: Path) -> Probe:
    """Ready when the `ping` command is answered with ok, spoken in the MongoDB wire protocol on a Unix socket."""
    elements = b"\x10ping\x00" + struct.pack("<i", 1) + b"\x02$db\x00" + struct.pack("<i", 6) + b"admin\x00"
    body = struct.pack("<iB", 0, 0) + struct.pack("<i", len(elements) + 5) + elements + b"\x00"
    request = struct.pack("<iiii", 16 + len(body), 1, 0, _OP_MSG) + body

    async def probe() -> bool:
        async with _opened(asyncio.open_unix_connection(socket)) as (reader, writer):
            writer.write(request)
            (length,) = struct.unpack("<i", await reader.readexactly(4))
            reply = await reader.readexactly(length - 4)
            return b"\x10ok\x00\x01" in reply or b"\x01ok\x00" + struct.pack("<d", 1.0) in reply

    return probe


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _connection(port: int) -> contextlib.AbstractAsyncContextManager[_Streams]:
    return _opened(asyncio.open_connection(LOOPBACK, port))


@contextlib.asynccontextmanager
async def _opened(opening: Awaitable[_Streams]) -> AsyncIterator[_Streams]:
    reader, writer = await opening
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
