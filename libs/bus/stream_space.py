"""Free space of streams, with a high-water mark for each kind of message.

A pool's inbox takes submits and cancels of people, and reports of nodes and clocks. If people could fill it, the report that a
job has finished would find no space, and its devices would never be free again. So submits are refused from
`SUBMITS_HIGH_WATER` of the inbox on (and of the ledger, which stores their decisions), cancels a little later. The rest of the
space is reserved for reports. The broker is asked for the fill level now and then; in between this process adds what it sends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from nats.js.api import StreamInfo

from libs.bus.messages import Outgoing, header_bytes
from libs.bus.retry import run_periodically
from libs.ports.clock import until_turn

log = logging.getLogger("baton.room")

SUBMITS_HIGH_WATER: Final = 0.95
CANCELS_HIGH_WATER: Final = 0.98
"""Fill levels, as shares of a stream's size."""

ASK_S: Final = 0.5
QUIET_S: Final = 5.0
"""The interval between questions to the broker while nothing is sent."""
_OVERHEAD_BYTES = 64  # of a stored message, beside its subject, headers and payload

Ask = Callable[[], Awaitable[Sequence[StreamInfo]]]


class StreamSpace:
    """The free space of some streams; messages are written to the first of them."""

    def __init__(self, ask: Ask, every_s: float = ASK_S) -> None:
        self._every_s = every_s
        self.known = asyncio.Event()
        self._wanted = asyncio.Event()
        self._ask = ask
        self._streams: list[tuple[str, int, int]] = []  # (name, bytes, limit)
        self._since = 0  # bytes put into the first stream since it was asked

    async def run(self) -> None:
        """Runs for ever. While the broker is unavailable the last known fill level counts. Raises ConnectionClosedError."""
        await run_periodically(self._turn, self._every_s, log, "how full the streams are is not known")

    async def _turn(self) -> None:
        """Asks the broker, then waits until something is to be sent."""
        self._wanted.clear()
        await self.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(until_turn(QUIET_S)):
                await self._wanted.wait()

    async def look(self) -> None:
        """Asks once. Raises nats errors."""
        found = await self._ask()
        self._streams = [
            (str(info.config.name), info.state.bytes, info.config.max_bytes)
            for info in found
            if info.config.max_bytes and info.config.max_bytes > 0
        ]
        self._since = 0
        self.known.set()

    def lacks(self, items: Iterable[Outgoing], end: float) -> str:
        """Why `items` may not be sent when the high-water mark of their kind is `end`; "" when they may: then they count."""
        self._wanted.set()
        size = sum(map(_size, items))
        for index, (name, used, limit) in enumerate(self._streams):
            share = (used + (self._since + size if index == 0 else 0)) / limit
            if share > end:
                return f"{name} is {min(share, 1.0):.0%} full"
        self._since += size
        return ""


def _size(item: Outgoing) -> int:
    return len(item.subject) + len(item.payload) + header_bytes(item.headers) + _OVERHEAD_BYTES
