"""Fair queueing: items of several flows (teams) are served round robin, so that no flow waits for another's backlog."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_OF_ONE, _LEAST_OF_ONE = 4, 2
"""One flow has at most a quarter of the workers, but at least two."""


class FairQueue(Generic[T]):
    """A round-robin queue. `take` gives the first item of each flow in turn: a flow with a thousand items is served as often as
    a flow with one.

    At most `each` items of one flow wait, and `most` in all. `put` refuses more, and the caller must tell the sender. A flow
    without items takes no memory.
    """

    def __init__(self, each: int, most: int) -> None:
        self._each = each
        self._most = most
        self._size = 0
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """Flows in the order of service: the one served last is at the end."""

    def __len__(self) -> int:
        return self._size

    def waiting(self, flow: str) -> int:
        """How many items of `flow` wait."""
        return len(self._waiting.get(flow, ()))

    def put(self, flow: str, item: T) -> bool:
        """Appends the item to its flow. False: the queue is full, and nothing has changed."""
        if self._size >= self._most or self.waiting(flow) >= self._each:
            return False
        self._waiting.setdefault(flow, deque()).append(item)
        self._size += 1
        return True

    def take(self, but: Container[str] = ()) -> tuple[str, T] | None:
        """The next item and its flow; None when nothing waits. Flows in `but` are skipped and keep their place."""
        flow = next((one for one in self._waiting if one not in but), None)
        if flow is None:
            return None
        items = self._waiting[flow]
        item = items.popleft()
        self._size -= 1
        if items:
            self._waiting.move_to_end(flow)
        else:
            del self._waiting[flow]
        return flow, item


class FairWorkers(Generic[T]):
    """A worker pool behind a `FairQueue`: `handle` runs for at most `at_once` items at a time, and for at most a quarter of
    these of one flow. (They share one processor, so a new item waits for everything that runs.)

    One item is started per iteration of the event loop: what arrived meanwhile is queued before the next flow is chosen. So a
    burst of items that `handle` answers without waiting delays no other flow either. Besides those that run, `each` items of a
    flow and `most` in all may wait.
    """

    def __init__(self, handle: Callable[[T], Coroutine[Any, Any, None]], at_once: int, each: int, most: int) -> None:
        self._handle, self._at_once, self._each, self._most = handle, at_once, each, most
        self._of_one = max(min(at_once, _LEAST_OF_ONE), at_once // _OF_ONE)
        self._queue: FairQueue[T] = FairQueue(each + at_once, most + at_once)
        self._running: dict[asyncio.Task[None], str] = {}
        self._running_of: Counter[str] = Counter()
        """Flow -> how many of its items are being handled."""
        self._changed = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None

    def put(self, flow: str, item: T) -> bool:
        """False: the queue is full, and nothing has changed."""
        free = self._at_once - len(self._running)
        soon = min(free, self._of_one - self._running_of[flow])
        if self._queue.waiting(flow) >= self._each + soon or len(self._queue) >= self._most + free:
            return False
        self._queue.put(flow, item)
        self._changed.set()
        if self._starting is None:
            self._starting = asyncio.create_task(self._begin())
        return True

    async def idle(self) -> None:
        """Returns when nothing waits and nothing runs."""
        while tasks := [*self._running, *([self._starting] if self._starting is not None else [])]:
            await asyncio.wait(tasks)

    async def _begin(self) -> None:
        try:
            while len(self._queue):
                while (turn := self._next()) is None:
                    self._changed.clear()
                    await self._changed.wait()
                flow, item = turn
                task = asyncio.create_task(self._handle(item))
                self._running[task] = flow
                self._running_of[flow] += 1
                task.add_done_callback(self._leave)
                await asyncio.sleep(0)
        finally:
            self._starting = None

    def _next(self) -> tuple[str, T] | None:
        if len(self._running) >= self._at_once:
            return None
        return self._queue.take([flow for flow, count in self._running_of.items() if count >= self._of_one])

    def _leave(self, task: "asyncio.Task[None]") -> None:
        flow = self._running.pop(task)
        self._running_of[flow] -= 1
        if not self._running_of[flow]:
            del self._running_of[flow]
        self._changed.set()
