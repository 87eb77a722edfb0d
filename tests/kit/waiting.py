"""Waiting for what a broker does, without measuring time."""

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg
from nats.js import JetStreamContext


async def until(condition: Callable[[], Any], deadline_s: float = 60.0) -> Any:
    """Waits until `condition` (it may be async) is true; the deadline is for a hung test only."""
    async with asyncio.timeout(deadline_s):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.02)


async def stored(js: JetStreamContext, stream: str, subject: str) -> list[Msg]:
    """All messages of `stream` with `subject`, in order."""
    counts = (await js.stream_info(stream, subjects_filter=subject)).state.subjects or {}
    total = sum(counts.values())
    if not total:
        return []
    reader = await js.subscribe(subject, stream=stream, ordered_consumer=True)
    try:
        return [await reader.next_msg(timeout=30) for _ in range(total)]
    finally:
        await reader.unsubscribe()
