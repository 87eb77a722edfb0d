"""Readiness probes: each makes an async function that answers True, answers False, or raises when nobody is there yet.

Written on plain sockets so that starting a server imports no client library.
"""

import asyncio
import contextlib
import json
import os
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from libs.embedded.ports import LOOPBACK
from libs.embedded.process import IllProbe, Probe, Unhealthy

_OP_MSG = 2013
_ROOM_MIB = 16
"""With less than so much a broker that could not write is left alone: it could not write again, and plain requests go on."""
_BODY_BYTES = 600
_WELL, _UNWELL = 200, 503


def http_ok(port: int, path: str = "/") -> Probe:
    """Ready when `GET path` answers 200."""

    async def probe() -> bool:
        async with _connection(port) as (reader, writer):
            return await _get(reader, writer, path) == _WELL

    return probe


Health = Callable[[], Awaitable[tuple[int, str]]]
"""Asks a nats-server for its health: the status, and its words. Raises when nobody answers."""


def health_page(port: int, path: str) -> Health:
    """By its monitoring page."""

    async def ask() -> tuple[int, str]:
        async with _connection(port) as (reader, writer):
            status = await _get(reader, writer, path)
            said = (await reader.read(_BODY_BYTES)).partition(b"\r\n\r\n")[2].decode(errors="replace")
        return status, said

    return ask


def health_by_request(port: int, login: Callable[[str], str], options: Mapping[str, bool]) -> Health:
    """By a request of the system account on the port of its clients, so that no other port is open. `login` makes a client's
    first message, of the nonce that the server gave. Only a server that has recovered its streams listens there."""

    async def ask() -> tuple[int, str]:
        async with _connection(port) as (reader, writer):
            info = json.loads((await reader.readline()).removeprefix(b"INFO"))
            inbox, asked = f"_INBOX.health.{secrets.token_hex(8)}", json.dumps(dict(options))
            writer.write(
                f"CONNECT {login(info['nonce'])}\r\nSUB {inbox} 1\r\n"
                f"PUB $SYS.REQ.SERVER.{info['server_id']}.HEALTHZ {inbox} {len(asked)}\r\n{asked}\r\n".encode()
            )
            while not (line := await reader.readline()).startswith(b"MSG "):
                if not line or line.startswith(b"-ERR"):
                    raise ConnectionError(f"nats-server: {line!r}")
            told = json.loads(await reader.readexactly(int(line.split()[-1])))["data"]
        return int(told["status_code"]), str(told.get("error", ""))[:_BODY_BYTES]

    return ask


def healthy(health: Health) -> Probe:
    """Ready when it says that it is well."""

    async def probe() -> bool:
        return (await health())[0] == _WELL

    return probe


def nats_stuck(health: Health, data_dir: Path) -> IllProbe:
    """Whether a nats-server is to be started anew: one that could not write (2.15) answers no publish any more, also when there
    is room again. `data_dir`: where it writes. Silence is no illness: it may be frozen, or busy."""

    async def check() -> Unhealthy | None:
        status, said = await health()
        if status != _UNWELL:
            return None
        room = os.statvfs(data_dir)
        free_mib = room.f_bavail * room.f_frsize >> 20
        where = f"{free_mib} MiB are free in {data_dir}"
        if free_mib < _ROOM_MIB:
            return Unhealthy(f"{where}; it is started anew when there are {_ROOM_MIB}. It says {said}", curable=False)
        return Unhealthy(f"{where}, and it says {said}", curable=True)

    return check


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


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
    """Asks for a page; returns its status. What follows is left to read."""
    writer.write(f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}\r\n\r\n".encode())
    return int((await reader.readline()).split()[1])


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
