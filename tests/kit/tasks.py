"""Work beside a test."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from libs.bus.cancel import cancel


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list["asyncio.Task[Any]"]]:
    """Runs these until the block ends; what one of them raised, the block raises."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        await cancel(*tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
