"""An event loop in a thread of its own: what runs on it outlives the loops of single tests."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopInBackground:
    """`with LoopInBackground() as loop: loop.run(work())`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 90.0) -> T:
        """The result of `work`, run on that loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
