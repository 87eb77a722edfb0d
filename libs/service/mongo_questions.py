"""Questions that MongoDB answers: the asker gets an error in time when MongoDB is down; this is no error of the service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.adapters.mongo.store import StoreAway
from libs.bus.queries import AskAgain


@asynccontextmanager
async def asks_mongo(service: str, what: str, within_s: float | None = None) -> AsyncIterator[None]:
    """`what` is kept there, by `service`. Raises AskAgain in place of StoreAway, and after `within_s`, which is less than a
    client waits: that a MongoDB is frozen, or cut off without a word, is known only after some 15 s."""
    scope = asyncio.timeout(within_s)
    try:
        async with scope:
            yield
    except (StoreAway, TimeoutError) as error:
        if isinstance(error, TimeoutError) and not scope.expired():
            raise
        raise AskAgain(f"MongoDB, which keeps {what}, does not answer {service}: ask again") from None
