"""One way to connect to NATS, with the client's traps closed (`libs.bus.connection` has those of an open connection).

- It reconnects for ever (the client's default gives up after two minutes and stays closed).
- A server that it was told of by another one, and that the URL does not name, gets the credential too (default: none, and
  it is refused there for ever).
- A dead peer is noticed within 20 to 30 s (default: up to six minutes, and never by who has a thousand subscriptions or
  flushes to tell it: the PING that would show it waits behind them).
- Errors that the client reports in the background are logged and counted.
- A connection that closes for good although nobody asked for it ends the process, when `die_on_close` is set:
  FastStream's pull loop would otherwise spin on it and freeze the event loop. A supervisor starts the process again.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client

from libs.bus import wire
from libs.bus.connection import BusConnection
from libs.bus.creds import Address, BadCredential, at, speaker
from libs.bus.unreachable import Problems, explained
from libs.bus.wire import BadAddress, without_password
from libs.ports.host import present_host
from schemas.subjects import service_inbox

logger = logging.getLogger("baton.bus")

EXIT_CONNECTION_LOST = 70
PENDING_BYTES = 64 * 1024 * 1024


__all__ = [
    "Address",
    "AnonymousBroker",
    "BadAddress",
    "BadCredential",
    "BusConnection",
    "BusUnavailable",
    "close",
    "connect",
    "refuse_anybody",
    "refuse_shared",
    "without_password",
]


class BusUnavailable(ConnectionError):
    """No NATS server could be reached; the text names the URL (without its password) and the fix."""


class AnonymousBroker(BusUnavailable):
    """The broker lets in anybody, or anybody with a password, so that nobody is kept from anything; the text has the fix."""


async def connect(
    address: Address | str,
    *,
    name: str,
    inbox_prefix: str | None = None,
    wait_s: float = 30,
    die_on_close: bool = False,
) -> BusConnection:
    """A connection to `address` (a bare URL, or comma-separated ones of one cluster, will do), named `name` at the server.

    `inbox_prefix` is where replies arrive; a credential allows only its own (`schemas.subjects`); by default a service's. The
    first connection is tried for `wait_s` seconds. Raises BusUnavailable after that, and at once when the credential is
    refused; BadAddress when the URL or the authority is none, BadCredential when the credential is; AnonymousBroker when
    anybody may connect there and `address` does not allow that.
    """
    if (host := present_host()) is not None:
        return await host.connect(name, inbox_prefix, wait_s)
    where = at(address)
    wire.check_form(where.url)
    try:
        wire.check(where.url, allowed=wire.allowed_hosts(), insecure=where.plain)
    except wire.PlainWire as e:
        raise BusUnavailable(str(e)) from None
    connection = BusConnection()
    problems = Problems(name)
    servers = [part.strip() for part in where.url.split(",")]
    connection.secret, connection.loop = where.secret(), asyncio.get_running_loop()
    options: dict[str, Any] = {
        "servers": servers,
        **({} if where.creds is not None else _credential(servers)),
        **where.options(),
        "name": name,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.25,
        "connect_timeout": 2,
        "ping_interval": 10,
        "max_outstanding_pings": 2,
        "pending_size": PENDING_BYTES,
        "flusher_queue_size": 0,
        "drain_timeout": 10,
        "error_cb": problems.report,
        "closed_cb": _on_closed(connection, die_on_close),
    }
    if inbox_prefix is None and where.creds is not None:
        with suppress(ValueError):  # a name of several tokens: of who gives the prefix, or needs none
            inbox_prefix = service_inbox(speaker(where.creds))
    if inbox_prefix is not None:
        options["inbox_prefix"] = inbox_prefix
    connection.authority = where.authority if where.encrypted else None
    attempt = connection.begin(options)
    refused = asyncio.create_task(problems.refused.wait())
    try:
        await asyncio.wait({attempt, refused}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if attempt.done():
            attempt.result()
            problems.connected = True
            if not where.anonymous:
                refuse_anybody(connection, where.url)
                if where.creds is None:
                    logger.warning("NATS knows us by a password: whoever has it may say anything; set BATON_NATS_CREDS")
            return connection
    except AnonymousBroker:
        await connection.close()
        raise
    except (nats.errors.Error, OSError, ValueError) as e:
        problems.last = problems.last or str(e)
    finally:
        refused.cancel()
        if not attempt.done():
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
    await connection.close()
    raise BusUnavailable(explained(where, problems, wait_s))


def refuse_anybody(connection: Client, url: str) -> None:
    """Raises AnonymousBroker, naming `url`, when the broker lets in whoever reaches it."""
    if not connection._server_info.get("auth_required"):
        raise AnonymousBroker(_ANYBODY.format(without_password(url), "lets anybody in: whoever reaches it"))


def refuse_shared(where: Address) -> None:
    """Raises AnonymousBroker for an address without a credential: its broker knows us by a password, as it knows all others."""
    if where.creds is None:
        shared = "is to know us by no credential of our own: whoever has the same password, or needs none,"
        raise AnonymousBroker(_ANYBODY.format(without_password(where.url), shared))


def _credential(servers: Sequence[str]) -> dict[str, str]:
    """The user that all these URLs name, as the client's options; nothing when they differ: then each has its own."""
    users = {(found.username, found.password) for found in map(urlsplit, servers)}
    user, password = users.pop()
    return {"user": user, "password": password} if not users and user and password else {}


async def close(connection: Client) -> None:
    """Sends what is buffered and closes `connection`. Never raises for a server that is away."""
    await connection.drain()


_ANYBODY = (
    "NATS at {} {} may write the ledger. Give it accounts (`baton credentials` prints them, and makes what BATON_NATS_CREDS "
    "names: see docs/security.md), or say that this is meant: `baton up` with --insecure, or BATON_INSECURE=1"
)


def _on_closed(connection: BusConnection, die_on_close: bool) -> Any:
    async def closed() -> None:
        if connection.closing:
            return
        logger.critical("the NATS connection was closed for good: %s", connection.last_error or "nobody says why")
        if die_on_close:
            os._exit(EXIT_CONNECTION_LOST)

    return closed
