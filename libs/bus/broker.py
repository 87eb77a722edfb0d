"""FastStream's broker over our own connection.

FastStream 0.7.7, pinned: 0.7.8 strands messages of a batch pull until `ack_wait`. It wires handlers and lifespan;
streams are made by `libs.bus.streams`, failures are settled by `libs.bus.settle`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faststream.nats import NatsBroker
from nats.errors import Error as NatsError

from libs.bus.connect import BusConnection, connect
from libs.bus.creds import Address, at
from libs.ports.host import present_host

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.subscription import Subscription


async def undecoded(msg: Any, original: Any = None) -> Any:
    """A FastStream decoder that hands over the raw message: decoding is `libs.bus.messages`, once, by its rules."""
    return msg.raw_message


GRACEFUL_S = 10.0
"""How long a stop waits for batches that are being handled."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What is heard without FastStream, which takes 130 us for each message, whatever becomes of it: `hear` takes
    some. `idle` returns when all that was heard has been dealt with."""

    subject: str
    queue: str
    hear: Callable[[Any], Awaitable[None]]
    idle: Callable[[], Awaitable[None]]
    most_pending: int


class Broker(NatsBroker):
    """A NatsBroker whose connection is made by `libs.bus.connect`: one set of options for all of Baton.

    `first` is awaited before it starts; `started` is set once its subscribers have.
    """

    def __init__(self, address: Address | str, name: str, *, die_on_close: bool = True, wait_s: float = 30) -> None:
        super().__init__(
            at(address).url, logger=None, graceful_timeout=GRACEFUL_S, apply_types=False, serializer=None
        )  # handlers take the raw message: nothing is injected, and no models are made for it
        self._baton = {"address": address, "name": name, "die_on_close": die_on_close, "wait_s": wait_s}
        self.first: Callable[[], Awaitable[None]] | None = None
        self.started = asyncio.Event()
        self._plain: list[Plain] = []
        self._heard: list[Subscription] = []

    def hears(self, plain: "Plain") -> None:
        """Subscribes to it once it starts."""
        self._plain.append(plain)

    async def _connect(self) -> "Client":
        options: dict[str, Any] = dict(self._baton)
        connection = await connect(options.pop("address"), **options)
        self.config.connect(connection)
        return connection

    async def start(self) -> None:
        """Connects and starts every subscriber; returns when the server knows of them."""
        if self.first is not None:
            await self.first()
        await super().start()
        connection = await self.connect()
        for one in self._plain:
            most = one.most_pending
            heard = await connection.subscribe(one.subject, one.queue, cb=one.hear, pending_msgs_limit=most)
            self._heard.append(heard)
        # nats-py writes a flush's PING ahead of what is still buffered: only the second PONG comes after our SUBs.
        for _ in range(2):
            await connection.flush()
        self.started.set()

    async def stop(self, *why: Any) -> None:
        """Hears nothing more, and lets what was heard be dealt with, for a while. Not at a server that does not answer: nothing
        can be answered or acknowledged there."""
        connection = self._connection
        if isinstance(connection, BusConnection) and not await connection.answers():
            self._heard = []
            self.config.broker_config.graceful_timeout = None
        with suppress(NatsError, TimeoutError):
            async with asyncio.timeout(GRACEFUL_S):
                for heard in self._heard:
                    await heard.drain()
                for one in self._plain:
                    await one.idle()
        self._heard = []
        await super().stop(*why)


def make_broker(address: Address | str, name: str, *, die_on_close: bool = True) -> Broker:
    """A broker that is not connected yet; `await broker.connect()` gives the client, `broker.start()` starts handlers.

    With `die_on_close` a connection that is closed for good ends the process with status 70: FastStream's pull loop
    would spin on it and freeze every other coroutine.
    """
    if (host := present_host()) is not None:
        return host.broker(name)
    return Broker(address, name, die_on_close=die_on_close)
