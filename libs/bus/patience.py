"""A broker that is away is waited for: what was asked is asked again.

`AWAY` is what a request raises meanwhile. A connection that was closed for good is another matter: whoever waits on it
waits for ever, so ConnectionClosedError is always passed on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Final, TypeVar

from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError

from libs.ports.clock import until_turn

AWAY: Final = (NatsError, TimeoutError, OSError)
PAUSES_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)

A = TypeVar("A")


async def patiently(
    ask: Callable[[], Awaitable[A]],
    away: Callable[[Exception, int], object],
) -> A:
    """What `ask` answers, asked again after each of `PAUSES_S`, then after the last, while the broker is away. `away` is told
    each error and how many there were before it. Raises ConnectionClosedError, and what `ask` raises beside `AWAY`."""
    failures = 0
    while True:
        try:
            return await ask()
        except ConnectionClosedError:
            raise
        except AWAY as error:
            away(error, failures)
            await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1


async def in_turns(turn: Callable[[], Awaitable[float | None]], every_s: float, log: Logger, complaint: str) -> None:
    """Takes a turn every `every_s` seconds, for ever, or as often as the last one says (s). Of a row of turns in which the
    broker is away the first is logged, as `complaint`. Raises ConnectionClosedError."""
    is_away = False
    while True:
        pause_s = None
        try:
            pause_s = await turn()
            is_away = False
        except ConnectionClosedError:
            raise
        except AWAY as error:
            if not is_away:
                log.warning("%s: %r", complaint, error)
            is_away = True
        await asyncio.sleep(until_turn(every_s if pause_s is None else pause_s))
