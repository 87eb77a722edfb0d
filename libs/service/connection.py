"""A service's own connection to its pool, beside FastStream's: made, checked and closed in one way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.bus.connect import BusConnection, close, connect
from libs.bus.streams import bind
from libs.service.settings import ServiceSettings


@asynccontextmanager
async def connected(settings: ServiceSettings, name: str) -> AsyncIterator[BusConnection]:
    """A connection named `name`, once the pool's streams and consumers are there; closed at the end, and after an error.

    Raises BusUnavailable and StreamsMissing, and whatever the block raises. One that closes by itself ends the process.
    """
    nats = await connect(settings.bus, name=name, die_on_close=True)
    try:
        await bind(nats.jetstream(), [settings.pool])
        yield nats
    except Exception:
        await close(nats)
        raise
    await close(nats)
