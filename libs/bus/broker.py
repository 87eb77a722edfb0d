"""FastStream's broker over our own connection.

FastStream carries a service's life cycle. What a service hears and pulls does not go through it (`Plain`, `Pulled`); streams
are made by `libs.bus.streams`, failures are settled by `libs.bus.settle`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream.nats import NatsBroker
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from libs.bus.connect import BusConnection, connect
from libs.bus.creds import Address, at
from libs.bus.in_progress import PULL_S
from libs.ports.host import present_host

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.subscription import Subscription


log = logging.getLogger("baton.bus")

GRACEFUL_S = 10.0
"""How long a stop waits for batches that are being handled."""
_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Pulled:
    """What is pulled from a durable consumer, up to `batch` messages at a time, and handed to `take`, which raises nothing.
    FastStream takes 0.15 ms of the processor from one to the other."""

    stream: str
    durable: str
    subject: str
    config: ConsumerConfig
    inbox_prefix: str
    batch: int
    take: Callable[[list[Msg]], Awaitable[None]]
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a batch is dealt with."""

    async def subscribed(self, js: JetStreamContext) -> JetStreamContext.PullSubscription:
        prefix = self.inbox_prefix.encode()
        return await js.pull_subscribe(self.subject, self.durable, self.stream, config=self.config, inbox_prefix=prefix)

    async def run(self, subscription: JetStreamContext.PullSubscription) -> None:
        """Until the connection is closed for good."""
        while True:
            try:
                messages = await subscription.fetch(self.batch, PULL_S)
            except ConnectionClosedError:
                return
            except NatsTimeout:
                continue
            except Exception:
                log.exception("nothing can be pulled from %s", self.stream)
                await asyncio.sleep(_AGAIN_S)
                continue
            async with self.taking:
                await self.take(messages)


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
        super().__init__(at(address).url, logger=None, graceful_timeout=GRACEFUL_S, apply_types=False, serializer=None)
        self._baton = {"address": address, "name": name, "die_on_close": die_on_close, "wait_s": wait_s}
        self.first: Callable[[], Awaitable[None]] | None = None
        self.started = asyncio.Event()
        self._plain: list[Plain] = []
        self._heard: list[Subscription] = []
        self._pulled: list[Pulled] = []
        self._pulling: list[asyncio.Task[None]] = []

    def pulls(self, pulled: Pulled) -> None:
        """Pulls it once it starts."""
        self._pulled.append(pulled)

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
        js = connection.jetstream()
        for pulled in self._pulled:
            subscription = await pulled.subscribed(js)
            self._pulling.append(asyncio.create_task(pulled.run(subscription), name=f"pull from {pulled.stream}"))
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
            self._heard, self._pulled = [], []
            self.config.broker_config.graceful_timeout = None
        with suppress(NatsError, TimeoutError):
            async with asyncio.timeout(GRACEFUL_S):
                for pulled in self._pulled:
                    await pulled.taking.acquire()  # no other batch is begun
                for heard in self._heard:
                    await heard.drain()
                for one in self._plain:
                    await one.idle()
        self._heard = []
        for task in self._pulling:
            task.cancel()
        await super().stop(*why)


def make_broker(address: Address | str, name: str, *, die_on_close: bool = True) -> Broker:
    """A broker that is not connected yet; `await broker.connect()` gives the client, `broker.start()` starts handlers.

    With `die_on_close` a connection that is closed for good ends the process with status 70: nothing would come any more.
    """
    if (host := present_host()) is not None:
        return host.broker(name)
    return Broker(address, name, die_on_close=die_on_close)
