"""Whether what the broker delivered to this process is still its own.

A delivery that is not settled within `ACK_WAIT_S` goes to another process, which may come to another answer: it knows more by
then. So a process that was frozen or cut off for about as long, and cannot have told the broker that it was at work, stores
nothing of what it had decided. What is left is the moment between the last look and the socket.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from libs.bus.table import ACK_WAIT_S
from libs.ports import clock

PULL_S: Final = 2.0
"""So long a pull request stands: what it brings was not delivered earlier."""
_TICK_S = 0.5
_STANDSTILL_S = 0.6 * ACK_WAIT_S
"""Who stood still for so long may have missed to tell that it is at work, which it does every third of `ACK_WAIT_S`."""

StillOurs = Callable[[], bool]


class Standstill:
    """Notices that this process did not run for a while."""

    def __init__(self) -> None:
        self._seen_s = self._resumed_s = -math.inf
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begins to look; once is enough."""
        if self._task is None:
            self._seen_s = clock.boot_s()
            self._task = asyncio.create_task(self._tick(), name="standstill")

    def none_since(self, began_s: float) -> bool:
        """Whether it ran all the time since `began_s`, and since the pull request that was answered then."""
        return clock.boot_s() - self._seen_s <= _STANDSTILL_S and began_s > self._resumed_s + PULL_S

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(clock.until_turn(_TICK_S))
            now = clock.boot_s()
            if now - self._seen_s > _STANDSTILL_S:
                self._resumed_s = now
            self._seen_s = now


@asynccontextmanager
async def hold(messages: Sequence[Msg], standstill: Standstill) -> AsyncIterator[StillOurs]:
    """Keeps the broker from handing the batch, or what is left of it, to somebody else while it is being handled. Tells whether
    it has not done so."""
    standstill.watch()
    began_s = known_s = clock.boot_s()

    async def beat() -> None:
        nonlocal known_s
        while True:
            await asyncio.sleep(ACK_WAIT_S / 3)
            with suppress(NatsError, OSError):
                at_s, left = clock.boot_s(), tuple(messages)
                for msg in left:
                    await msg.in_progress()
                if left:
                    await left[0]._client.flush(int(ACK_WAIT_S / 3))
                known_s = at_s

    task = asyncio.create_task(beat())
    try:
        yield lambda: standstill.none_since(began_s) and clock.boot_s() - known_s < ACK_WAIT_S
    finally:
        task.cancel()
