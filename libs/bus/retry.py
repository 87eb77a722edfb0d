"""Retries while the broker is unavailable.

`UNAVAILABLE` are the errors that a request raises meanwhile. ConnectionClosedError is always passed on: that connection is
closed for good, and a retry on it would never end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Final, TypeVar

from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError

from libs.ports.clock import until_turn

UNAVAILABLE: Final = (NatsError, TimeoutError, OSError)
PAUSES_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)

A = TypeVar("A")


async def retry_while_away(
    ask: Callable[[], Awaitable[A]],
    away: Callable[[Exception, int], object],
) -> A:
    """Calls `ask` until it succeeds and returns its result. Between tries it sleeps for each of `PAUSES_S`, then for the last
    one again. `away` is called with each error and the number of errors before it. Raises ConnectionClosedError, and what
    `ask` raises besides `UNAVAILABLE`."""
    failures = 0
    while True:
        try:
            return await ask()
        except ConnectionClosedError:
            raise
        except UNAVAILABLE as error:
            away(error, failures)
            await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1


async def run_periodically(
    turn: Callable[[], Awaitable[float | None]], every_s: float, log: Logger, complaint: str
) -> None:
    """Calls `turn` every `every_s` seconds, for ever; a turn may return another pause (s). While the broker is unavailable only
    the first failure is logged, as `complaint`. Raises ConnectionClosedError."""
    is_away = False
    while True:
        pause_s = None
        try:
            pause_s = await turn()
            is_away = False
        except ConnectionClosedError:
            raise
        except UNAVAILABLE as error:
            if not is_away:
                log.warning("%s: %r", complaint, error)
            is_away = True
        await asyncio.sleep(until_turn(every_s if pause_s is None else pause_s))
