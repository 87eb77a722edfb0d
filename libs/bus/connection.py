"""nats-py's client with its traps closed: `libs.bus.connect` makes one.

- A server whose URL says `tls://` and that says of itself, in clear, that it has no encryption is told nothing (default: all).
- A connection ends also when the last of what it was to send cannot be sent: at a peer that has closed it, and at one that is
  frozen (by default the client stops half-way or waits for ever: who listens goes on listening, and nobody is told of the end).
- Whoever ends does not wait for a server that does not answer (default: ten seconds for all that listens and ten more).
- Another server is asked at once, whatever the last one has not taken (default: once the kernel has given that one up, which
  takes a quarter of an hour).
- A try to connect again that fails half-way leaves nothing behind (default: its connection stays, subscribed, and nobody reads
  it: a queue group's messages are lost there until the broker gives it up, after minutes).
- A connection that is gone is told by OSError under uvloop, too (default: RuntimeError, by which the client stops half-way).
- Who closes a connection is not cancelled with a reconnect that has just begun (default: both wait for one future).
- A reconnect, or a first try, that was cancelled ends (default: one whose cancel came with a refusal of the server goes on for
  ever, as `wait_for` of Python 3.11 drops it then, and the process with it does not end).
- A PONG that nobody waits for any more is passed over (default: reading ends with it, once a PING was given up: a server that
  stood still for a few seconds is not heard for another 20 to 30 s).
- A connection whose TLS has failed can be closed (default: whoever closes it waits for ever).
- A broker is checked by the authority that the file has at each connection (default: for ever by that of the first one, so
  that who runs when another authority follows can only be started again).
- A subject or headers that cannot be read are the message's affair (default: nothing more of the connection is read), and more
  headers than anybody of ours sends are not read (each line costs).
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.command import hpub_cmd

from libs.bus import wire
from libs.bus.headers import encoded
from libs.bus.pulls import JetStream
from libs.bus.wire import BadAddress

logger = logging.getLogger("baton.bus")

_FLUSH_S = 5
"""For what is still to be sent when a connection ends, and for a server to show that it is there to take it."""
_UNREADABLE = "the headers of a message cannot be read"
_MOST_HEADERS = 64
"""Of a question or a signal: an envelope has ten, and the broker adds a few. What a stream keeps may have more: it is pulled by
who reads it, and comes as fast as that."""
_MOST_HEADER_BYTES = 80 * 1024
"""Of any message: a stream keeps 64 KiB of them, and the broker adds a few."""
_TOO_MANY = "a message has more headers than anybody of ours sends: they are not read"
_LINE, _LIVE, _KEPT = b"\r\n", b"baton.", b"$JS.ACK."
_IN_CLEAR = "it does not encrypt, although its URL says tls://"


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
