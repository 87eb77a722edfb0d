"""Shared by the tests of libs.bus: waiting without a clock, one consumer's part of the shared streams."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from libs.embedded.servers import NATS
from tests.kit.background import ServerInBackground


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerInBackground]:
    """A NATS server for one test, which may kill it."""
    with ServerInBackground(NATS, tmp_path / "own", sync_always=True) as server:
        yield server


@pytest.fixture
def origin() -> str:
    """A service name of this test alone, so that its dead letters have a subject of their own."""
    return f"svc-{uuid.uuid4().hex[:8]}"


async def until(condition: Callable[[], Awaitable[Any] | Any], deadline_s: float = 60.0) -> Any:
    """Waits until `condition` is true; the deadline is for a hung test only."""
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
    count = (await js.stream_info(stream, subjects_filter=subject)).state.subjects or {}
    total = sum(count.values())
    if not total:
        return []
    reader = await js.subscribe(subject, stream=stream, ordered_consumer=True)
    try:
        return [await reader.next_msg(timeout=30) for _ in range(total)]
    finally:
        await reader.unsubscribe()
