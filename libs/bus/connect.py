"""One way to connect to NATS, with the client's traps closed.

- It reconnects for ever (the client's default gives up after two minutes and stays closed).
- A server that it was told of by another one, and that the URL does not name, gets the credential too (default: none, and
  it is refused there for ever).
- A dead peer is noticed within 20 to 30 s (default: up to six minutes, and never by who has a thousand subscriptions or
  flushes to tell it: the PING that would show it waits behind them).
- A server whose URL says `tls://` and that says of itself, in clear, that it has no encryption is told nothing (default: all).
- Errors that the client reports in the background are logged and counted.
- A connection ends also when the last of what it was to send cannot be sent: at a peer that has closed it, and at one that is
  frozen (by default the client stops half-way or waits for ever: who listens goes on listening, and nobody is told of the end).
- Whoever ends does not wait for a server that does not answer (default: ten seconds for all that listens and ten more).
- Another server is asked at once, whatever the last one has not taken (default: once the kernel has given that one up, which
  takes a quarter of an hour).
- A try to connect again that fails half-way leaves nothing behind (default: its connection stays, subscribed, and nobody reads
  it: a queue group's messages are lost there until the broker gives it up, after minutes).
- A connection that is gone is told by OSError under uvloop, too (default: RuntimeError, by which the client stops half-way).
- Who closes a connection is not cancelled with a reconnect that has just begun (default: both wait for one future).
- A reconnect that was cancelled ends (default: one whose cancel came with a refusal of the server goes on for ever, as
  `wait_for` of Python 3.11 drops it then, and the process with it does not end).
- A PONG that nobody waits for any more is passed over (default: reading ends with it, once a PING was given up: a server that
  stood still for a few seconds is not heard for another 20 to 30 s).
- A connection whose TLS has failed can be closed (default: whoever closes it waits for ever).
- A broker is checked by the authority that the file has at each connection (default: for ever by that of the first one, so
  that who runs when another authority follows can only be started again).
- A connection that closes for good although nobody asked for it ends the process, when `die_on_close` is set:
  FastStream's pull loop would otherwise spin on it and freeze the event loop. A supervisor starts the process again.
"""

import asyncio
import logging
import os
import re
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.command import hpub_cmd

from libs.bus import wire
from libs.bus.creds import Address, BadCredential, at, speaker
from libs.bus.endings import of_credential
from libs.bus.headers import encoded
from libs.bus.metrics import ERRORS
from libs.bus.pulls import JetStream
from libs.bus.wire import BadAddress, without_password
from libs.ports.host import present_host
from schemas.subjects import service_inbox

logger = logging.getLogger("baton.bus")

EXIT_CONNECTION_LOST = 70
PENDING_BYTES = 64 * 1024 * 1024
_FLUSH_S = 5
"""For what is still to be sent when a connection ends, and for a server to show that it is there to take it."""


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


class _Transport(TcpTransport):
    """nats-py's own, with one behaviour under both event loops: what is written to a connection that is gone is lost, as
    asyncio has it, and `drain` raises OSError. uvloop's RuntimeError is for nats-py the end of the loop."""

    _begins_tls = False
    """Also of one whose TLS has failed."""

    def write(self, payload: bytes) -> None:
        with suppress(RuntimeError):
            super().write(payload)

    def writelines(self, payload: Sequence[bytes]) -> None:
        with suppress(RuntimeError):
            super().writelines(payload)

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        self._begins_tls = True
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        self._begins_tls = False

    async def wait_closed(self) -> None:
        """Each by itself: a reconnect that is cancelled while it waits would cancel whoever closes the connection. Where TLS
        has failed nothing is waited for: it took the connection over, and nobody tells the plain stream of its end."""
        if not self._begins_tls:
            await asyncio.shield(super().wait_closed())


class BusConnection(Client):
    """A NATS client that knows whether its end is wanted."""

    closing = False
    silent = False
    """It did not answer when it was asked last: see `answers`."""
    loop: asyncio.AbstractEventLoop | None = None
    """In which it was connected."""
    secret = ""
    """Of its credential: see `libs.bus.ids`."""
    authority: Path | None = None
    """The file of the authority that the broker is known by."""

    def __init__(self) -> None:
        super().__init__()
        self._connecting: set[asyncio.Task[Any]] = set()
        """Tasks that do nothing else."""

    def begin(self, options: dict[str, Any]) -> asyncio.Task[None]:
        """Connects, as nats-py's `connect` does, in a task that ends when it is cancelled."""
        task = asyncio.create_task(self.connect(**options))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task

    def _connect_command(self) -> bytes:
        """nats-py's own, which would be said in clear to whoever says that there is no encryption: it has a signature, by which
        that one may speak to the true broker in our name."""
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise nats.errors.Error(_IN_CLEAR)
        return super()._connect_command()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """nats-py's own; where there are more headers than anybody of ours sends, none are read: each line costs."""
        if headers and (
            len(headers) > _MOST_HEADER_BYTES
            or (headers.count(_LINE) > _MOST_HEADERS and subject.startswith(_LIVE) and not reply.startswith(_KEPT))
        ):
            headers = b""
            await self._error_cb(nats.errors.Error(_TOO_MANY))
        await super()._process_msg(sid, subject, reply, data, headers)

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        """The last token of its subject is the sender's, and may be of any bytes. nats-py raised what these are to it, and read
        nothing more of this connection."""
        return self.msg_class(
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Likewise: where they cannot be read there are none. What is logged of it is not of the sender's choice."""
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
        except (ValueError, IndexError):
            await self._error_cb(nats.errors.Error(_UNREADABLE))
            return None
        return found

    async def _process_pong(self) -> None:
        """nats-py's own, which raises where who sent the PING was cancelled, or has given up, and so ends reading."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        """nats-py's own, with headers written in a quicker way where they are plain."""
        block = encoded(headers) if headers and subject else None
        if block is None:
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        await self._send_command(hpub_cmd(subject, reply, block, payload))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    def jetstream(self, **options: Any) -> JetStream:
        """nats-py's own, with pulls that hold no message back."""
        return JetStream(self, **options)

    async def drain(self) -> None:
        """Lets what was heard be dealt with, sends what is buffered, closes. Never raises for a server that is away, and waits
        for none that does not answer: closing goes on without it."""
        self.closing = True
        try:
            if not self.silent and await self.answers():
                await super().drain()
                return
        except (nats.errors.Error, OSError) as e:
            logger.info("connection could not be drained (%s), closing it", e)
        self._give_up()
        await super().close()

    async def answers(self) -> bool:
        """Whether the server answers now; `silent` remembers it."""
        self.silent = True
        if self.is_connected:
            with suppress(nats.errors.Error, OSError):
                await self.flush(timeout=_FLUSH_S)
                self.silent = False
        return not self.silent

    async def close(self) -> None:
        """Never raises for a server that is away: what waits to be sent to it is given up."""
        self.closing = True
        await super().close()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """nats-py's own, to its end: once more, without what cannot be sent, where that ended it half-way."""
        if self.is_closed:
            await super()._close(status, do_cbs)
            return
        if self.is_reconnecting:
            self._give_up()
        patience = asyncio.get_running_loop().call_later(_FLUSH_S, self._give_up)
        try:
            await super()._close(status, do_cbs)
        except OSError as e:
            logger.info("what was still to be sent to NATS is given up: %r", e)
            self._give_up()
            self._status = Client.DISCONNECTED  # nothing is done for one that is closed
            await super()._close(status, do_cbs)
        finally:
            patience.cancel()

    async def _attempt_reconnect(self) -> None:
        """nats-py's own; and where that does not know what to do, or was cancelled and has gone on for a step, the connection
        is closed for good, and not left as it is."""
        task = asyncio.current_task()
        assert task is not None
        self._connecting.add(task)
        self._abort()
        try:
            await super()._attempt_reconnect()
            replaced = self._reconnection_task is not task
            if task.cancelling() and not replaced and not self.is_closed:
                self._reconnection_task = None
                await self._close(Client.CLOSED, do_cbs=False)
        except Exception as e:
            logger.exception("NATS cannot be reconnected to")
            self._reconnection_task, self._err = None, e
            await self._close(Client.CLOSED)
        finally:
            self._connecting.discard(task)

    async def _connect_to_server(self, server: Any) -> None:
        """nats-py's own; and what it has left of a try that failed half-way is ended: a connection that the server hears and
        sends to, where nobody reads, and half a message, which the next would go on with."""
        task = asyncio.current_task()
        if task is not None and task in self._connecting and task.cancelling():  # also where the cancel was dropped
            raise asyncio.CancelledError
        self._abort()
        for reader in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if reader is not None:
                reader.cancel()
        self._ps.reset()
        if self.authority is not None:
            with suppress(BadAddress):  # it is written just now: the one of before
                self.options["tls"] = wire.context(self.authority)
        await super()._connect_to_server(server)
        if type(self._transport) is TcpTransport:
            made = _Transport()
            vars(made).update(vars(self._transport))
            self._transport = made

    def _give_up(self) -> None:
        """What waits to be sent."""
        self._pending, self._pending_data_size = [], 0
        self._abort()

    def _abort(self) -> None:
        """What the transport has is not sent any more: its end would wait until the peer has taken it. The plain connection
        below TLS is ended: asyncio's TLS raises AttributeError where it was closed twice (seen: Python 3.11.2)."""
        writer = getattr(self._transport, "_bare_io_writer", None)
        if writer is not None:
            writer.transport.abort()


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
    problems = _Problems(name)
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
    raise BusUnavailable(_unreachable(where, problems, wait_s))


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


class _Problems:
    """Logs and counts what the client reports; the same text at most every ten seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = ""
        self.connected = False
        self.refused = asyncio.Event()
        self._logged: dict[str, float] = {}

    async def report(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if not (_CROWDED.search(self.last) and isinstance(error, ConnectionError)):  # the broker's own word says more
            self.last = text
        ERRORS.labels(type(error).__name__).inc()
        if not self.connected and _REFUSAL.search(text):
            self.refused.set()
        now = time.monotonic()
        if now - self._logged.get(text, -10.0) >= 10.0:
            if len(self._logged) > 100:
                self._logged.clear()
            self._logged[text] = now
            logger.warning("NATS connection %s: %s", self.name, text)


_ANYBODY = (
    "NATS at {} {} may write the ledger. Give it accounts (`baton credentials` prints them, and makes what BATON_NATS_CREDS "
    "names: see docs/security.md), or say that this is meant: `baton up` with --insecure, or BATON_INSECURE=1"
)
_RENEWING = "`baton team rotate` makes it; of a node `baton node rotate`, of a service `baton credentials --rotate`"
_UNREADABLE = "the headers of a message cannot be read"
_MOST_HEADERS = 64
"""Of a question or a signal: an envelope has ten, and the broker adds a few. What a stream keeps may have more: it is pulled by
who reads it, and comes as fast as that."""
_MOST_HEADER_BYTES = 80 * 1024
"""Of any message: a stream keeps 64 KiB of them, and the broker adds a few."""
_TOO_MANY = "a message has more headers than anybody of ours sends: they are not read"
_LINE, _LIVE, _KEPT = b"\r\n", b"baton.", b"$JS.ACK."
_IN_CLEAR = "it does not encrypt, although its URL says tls://"
_SAID_NOTHING = ("TimeoutError", "nats: timeout")
"""What is reported of a server that lets one connect and says nothing."""
_UNTRUSTED = re.compile(r"certificate|SSL", re.IGNORECASE)
_OUTDATED = re.compile(r"expired|not yet valid", re.IGNORECASE)
_MISNAMED = re.compile(r"mismatch", re.IGNORECASE)
_CROWDED = re.compile(r"maximum account active connections", re.IGNORECASE)
_REFUSAL = re.compile(r"authorization|authentication(?! timeout)|revoked", re.IGNORECASE)
"""Not of a credential that came too late: the way there is slow."""


def _unreachable(where: Address, problems: _Problems, wait_s: float) -> str:
    shown = without_password(where.url)
    if problems.refused.is_set():
        fix = (
            "check user and password in the URL, or set BATON_NATS_CREDS"
            if where.creds is None
            else f"{_void(where.creds)}; ask your operator for the new file ({_RENEWING})"
        )
        return f"NATS at {shown} refused the credential ({problems.last}): {fix}"
    if _UNTRUSTED.search(problems.last):
        fix = _trusted(where, problems.last)
        return f"the certificate of NATS at {shown} is not one that we trust ({problems.last}): {fix}"
    if _CROWDED.search(problems.last):
        return (
            f"NATS at {shown} takes no connection of this team ({problems.last}): it has as many as it may, or it sent too "
            "much and is kept out for some minutes; your operator's `baton audit` says which, and `baton team let-in` ends it"
        )
    if problems.last in _SAID_NOTHING:
        return (
            f"no NATS server answered at {shown} within {wait_s:g} s, and nothing refused the connection: a server that is "
            "there stands still, or is too slow: look at it, and at the way to it, or correct BATON_NATS_URL"
        )
    why = f" ({problems.last})" if problems.last else ""
    return (
        f"no NATS server answered at {shown} within {wait_s:g} s{why}: "
        "start one (`baton up`, or `docker compose up nats`) or correct BATON_NATS_URL"
    )


def _void(creds: Path | str) -> str:
    with suppress(BadCredential):
        if (term := of_credential(creds)) is not None and term.ends_s <= (now_s := time.time()):
            return f"it {term.told(now_s)}"
    return "it may have been revoked or rotated"


def _trusted(where: Address, why: str) -> str:
    """What to do so that the broker's certificate is believed."""
    if not where.encrypted:
        return "its URL says that nothing is encrypted: write tls:// there"
    if _OUTDATED.search(why):
        return (
            "your operator makes a new one (`baton credentials --renew` with the options of before, then the broker reloads), "
            "or this machine's clock is wrong"
        )
    if _MISNAMED.search(why):
        return "use a name that the certificate has, or have it made for this one (`baton credentials --hosts`)"
    if where.creds is None:
        return "set BATON_NATS_CREDS to your credential, beside which its ca.pem lies, or BATON_NATS_CA to that"
    return "set BATON_NATS_CA to the ca.pem that came with your credential"


def _on_closed(connection: BusConnection, die_on_close: bool) -> Any:
    async def closed() -> None:
        if connection.closing:
            return
        logger.critical("the NATS connection was closed for good: %s", connection.last_error or "nobody says why")
        if die_on_close:
            os._exit(EXIT_CONNECTION_LOST)

    return closed
