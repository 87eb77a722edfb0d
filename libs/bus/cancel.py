"""Ending a task that uses the broker."""

import asyncio
from typing import Any

_AGAIN_S = 1.0


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancels these tasks and returns when all of them are done; what they raised is not raised here.

    Python 3.11's `wait_for`, which is in each request of nats-py, drops a cancellation that comes together with its result: the
    task goes on. So it is cancelled again. Whoever waits here and is cancelled himself hears of it when the tasks are done.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_AGAIN_S)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # it has been seen
    if cancelled is not None:
        raise cancelled
