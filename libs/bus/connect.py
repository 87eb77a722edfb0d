"""One way to connect to NATS, with the defaults that would lose or freeze things changed."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

log = logging.getLogger("baton.bus")

CLOSED_EXIT_CODE = 70
"""A process whose connection closed for good ends with this, and its supervisor starts it again."""

ErrorCallback = Callable[[Exception], Awaitable[None]]


class BusUnavailable(ConnectionError):
    """NATS could not be reached in time; the text names the address (without password) and what to do."""


def connect_options(name: str, *, error_cb: ErrorCallback | None = None) -> dict[str, Any]:
    """Options for `nats.connect` and for FastStream's broker.

    The client's own defaults give up after two minutes (and FastStream's pull loop then spins), notice a dead peer
    after six, and hold 2 MiB while disconnected.
    """
    return {
        "name": name,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.25,
        "ping_interval": 10,
        "max_outstanding_pings": 2,
        "pending_size": 64 * 1024 * 1024,
        "connect_timeout": 5,
        "drain_timeout": 10,
        "error_cb": error_cb or _log_error,
    }


async def connect(
    url: str,
    *,
    name: str,
    inbox_prefix: str | None = None,
    wait_s: float = 30.0,
    die_on_close: bool = False,
) -> Client:
    """A connection that reconnects for ever.

    Args:
        inbox_prefix: where replies arrive; a team's credential allows only its own, `_INBOX_<team>`.
        wait_s: how long the first connection is tried for, s.
        die_on_close: end the process if the connection closes although we did not close it.

    Raises:
        BusUnavailable: nobody answered within `wait_s`, or the credential was refused.
    """
    client: Client | None = None

    async def closed() -> None:
        if die_on_close and not getattr(client, "baton_closing", False):
            log.error("the connection to NATS closed for good; ending this process")
            os._exit(CLOSED_EXIT_CODE)

    options = connect_options(name) | {"closed_cb": closed}
    if inbox_prefix is not None:
        options["inbox_prefix"] = inbox_prefix.encode()
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            client = await nats.connect(url, **options | {"max_reconnect_attempts": 1, "allow_reconnect": False})
            break
        except (OSError, NatsError, asyncio.TimeoutError) as e:
            if "authorization" in str(e).lower() or asyncio.get_running_loop().time() > deadline:
                raise BusUnavailable(
                    f"cannot reach NATS at {without_password(url)} ({e}): start it with `baton up`, "
                    "or set BATON_NATS_URL to a running server and a valid credential"
                ) from e
            await asyncio.sleep(0.1)
    client.options["allow_reconnect"] = True
    client.options["max_reconnect_attempts"] = -1
    return client


async def close(client: Client) -> None:
    """Closes on purpose: `die_on_close` does not strike."""
    client.baton_closing = True  # type: ignore[attr-defined]
    if not client.is_closed:
        await client.close()


def without_password(url: str) -> str:
    """`url` fit for a message."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))


async def _log_error(error: Exception) -> None:
    log.warning("nats: %s", error or type(error).__name__)
