"""What a service registers its handlers at, and how it runs, on a simulated process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from nats.aio.msg import Msg

from libs.bus.broker import Plain, Pulled

if TYPE_CHECKING:
    from libs.simulation.dst.client import SimClient
    from libs.simulation.dst.process import Process

_EXPIRES_S = 5.0


class SimBroker:
    """Stands for FastStream's broker: subscribers are registered, then started together."""

    def __init__(self, process: "Process", name: str) -> None:
        self.process, self.name = process, name
        self._pulled: list[Pulled] = []
        self._plain: list[Plain] = []
        self._client: SimClient | None = None

    def pulls(self, pulled: Pulled) -> None:
        self._pulled.append(pulled)

    def hears(self, plain: Plain) -> None:
        self._plain.append(plain)

    async def connect(self) -> "SimClient":
        if self._client is None:
            self._client = await self.process.connect(self.name, None, 30)
        return self._client

    async def ping(self, timeout: float) -> bool:
        return self._client is not None and self._client.is_connected

    async def start(self) -> None:
        client = await self.connect()
        for plain in self._plain:
            await client.subscribe(plain.subject, plain.queue, cb=plain.hear)
        for pulled in self._pulled:
            self.process.world.loop.create_task(self._pull(client, pulled))

    async def _pull(self, client: "SimClient", pulled: Pulled) -> None:
        """Batches from a durable consumer, as long as the process lives. One request is open at a time."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{pulled.stream}.{pulled.durable}"
        loop = asyncio.get_running_loop()
        inbox = client.new_inbox()
        found: list[Msg] = []
        news = asyncio.Event()

        async def heard(message: Msg) -> None:
            found.append(message)
            news.set()

        await client.subscribe(inbox, cb=heard)
        asked, until, reconnects = 0, 0.0, 0
        while not client.is_closed:
            if asked <= 0 or loop.time() > until or client.stats["reconnects"] != reconnects:
                asked, until, reconnects = pulled.batch, loop.time() + _EXPIRES_S + 1.0, client.stats["reconnects"]
                request = {"batch": pulled.batch, "expires": int(_EXPIRES_S * 1e9)}
                await client.publish(subject, json.dumps(request).encode(), reply=inbox)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until + 0.1):
                    await news.wait()
                    await asyncio.sleep(0.005)
            news.clear()
            batch_now, found[:] = list(found), []
            messages = [m for m in batch_now if m.reply.startswith("$JS.ACK.")]
            asked -= len(messages)
            if len(messages) < len(batch_now):  # a status: the request is over
                asked = 0
                if not messages and (batch_now[-1].headers or {}).get("Status") == "503":
                    await asyncio.sleep(0.5)
            if messages and not client.is_closed:
                await pulled.take(messages)


class SimService:
    """Stands for the ASGI application: its lifespan, then its subscribers, then for ever."""

    def __init__(
        self,
        broker: SimBroker,
        lifespan: Callable[[], AbstractAsyncContextManager[None]],
        ready: Callable[[], dict[str, str]],
    ) -> None:
        self.broker, self.lifespan, self.ready = broker, lifespan, ready

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.lifespan():
            await self.broker.start()
            yield
