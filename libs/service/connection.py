"""A service's own connection to its pools, beside FastStream's: made, checked and closed in one way."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from libs.bus.connect import BusConnection, close, connect
from libs.bus.streams import bind
from libs.service.settings import ServiceSettings


@asynccontextmanager
async def connected(settings: ServiceSettings, name: str, *, pools: Sequence[str] = ()) -> AsyncIterator[BusConnection]:
    """A connection named `name`, once the streams and consumers of these pools are there (by default of the service's own);
    closed at the end, however the block is left.

    Raises BusUnavailable and StreamsMissing, and whatever the block raises. One that closes by itself ends the process.
    """
    async with at_the_bus(settings, name) as nats:
        await bind(nats.jetstream(), pools or [settings.pool])
        yield nats


@asynccontextmanager
async def at_the_bus(
    settings: ServiceSettings, name: str, *, inbox_prefix: str | None = None
) -> AsyncIterator[BusConnection]:
    """The same without looking whether the streams are there: for agents, to whose account they do not belong."""
    nats = await connect(settings.bus, name=name, inbox_prefix=inbox_prefix, die_on_close=True)
    try:
        yield nats
    finally:
        await close(nats)
