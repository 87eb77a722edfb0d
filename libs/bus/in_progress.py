"""Extends the acknowledgement deadline of a batch while it is handled, and says whether that worked.

The broker redelivers a message to another process when it is not settled within `ACK_WAIT_S`; the other process may know more
by then and decide otherwise. So a process that was frozen or cut off for about that long, and so could not send "in progress"
to the broker, stores nothing of what it decided. Only the moment between the last check and the socket is not covered.
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
"""How long a pull request is open: a message that it brings was delivered no earlier than that."""
_TICK_S = 0.5
_STANDSTILL_S = 0.6 * ACK_WAIT_S
"""A process that was frozen for so long may have missed to send "in progress", which is due every third of `ACK_WAIT_S`."""

StillOwned = Callable[[], bool]


class FreezeDetector:
    """Notices when this process was frozen: a timer that fires every `_TICK_S` came much too late."""

    def __init__(self) -> None:
        self._seen_s = self._resumed_s = -math.inf
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Starts the timer; further calls do nothing."""
        if self._task is None:
            self._seen_s = clock.boot_s()
            self._task = asyncio.create_task(self._tick(), name="freezes")

    def ran_since(self, began_s: float) -> bool:
        """Whether this process was not frozen since `began_s`, nor since the pull request that was answered then."""
        return clock.boot_s() - self._seen_s <= _STANDSTILL_S and began_s > self._resumed_s + PULL_S

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(clock.until_turn(_TICK_S))
            now = clock.boot_s()
            if now - self._seen_s > _STANDSTILL_S:
                self._resumed_s = now
            self._seen_s = now


@asynccontextmanager
async def keep_in_progress(messages: Sequence[Msg], freezes: FreezeDetector) -> AsyncIterator[StillOwned]:
    """Sends "in progress" for the messages, or those that are left of them, while the batch is being handled. Yields a function
    that says whether they still belong to this process."""
    freezes.watch()
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
        yield lambda: freezes.ran_since(began_s) and clock.boot_s() - known_s < ACK_WAIT_S
    finally:
        task.cancel()
