"""How much room streams have, asked now and then and counted on in between: for who must leave some to others.

A pool's inbox takes submits and cancels of people, and the facts of nodes and of time. If people could fill it, a finished
job's devices would never be free again, and nothing would ever make room. So submits end at `SUBMITS_END` of the inbox (and
of the ledger, where their decisions go), cancels a little later; the rest is for facts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from nats.js.api import StreamInfo

from libs.bus.messages import Outgoing, header_bytes
from libs.bus.patience import in_turns
from libs.ports.clock import until_turn

log = logging.getLogger("baton.room")

SUBMITS_END: Final = 0.95
CANCELS_END: Final = 0.98
"""Shares of a stream's size."""

ASK_S: Final = 0.5
QUIET_S: Final = 5.0
"""So often the broker is asked while nobody wants to put anything in."""
_OVERHEAD_BYTES = 64  # of a stored message, beside its subject, headers and payload

Ask = Callable[[], Awaitable[Sequence[StreamInfo]]]


class StreamRoom:
    """The room in some streams, the first of which is written to."""

    def __init__(self, ask: Ask, every_s: float = ASK_S) -> None:
        self._every_s = every_s
        self.known = asyncio.Event()
        self._wanted = asyncio.Event()
        self._ask = ask
        self._streams: list[tuple[str, int, int]] = []  # (name, bytes, limit)
        self._since = 0  # bytes put into the first stream since it was asked

    async def run(self) -> None:
        """For ever. While the broker does not say, what was known last counts. Raises ConnectionClosedError."""
        await in_turns(self._turn, self._every_s, log, "how full the streams are is not known")

    async def _turn(self) -> None:
        """Looks, and rests until somebody wants to put something in."""
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
        """Why `items` may not be put in when their kind ends at the share `end`; "" when they may: then they count."""
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
