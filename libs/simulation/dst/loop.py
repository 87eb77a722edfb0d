"""An event loop in virtual time: when nothing is ready, the time jumps to the next timer. No threads, no selector.

Each callback belongs to the simulated process of its context. One that is dead never runs again; one that is frozen
keeps its callbacks until it goes on. So a process stops between two of its callbacks, wherever it is, as a real one does.
"""

import asyncio
from asyncio import Future, events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any

from libs.ports.host import _present

_AT_ONCE = 200_000
"""So many callbacks without the time moving: something spins."""


class Crashed(BaseException):
    """Unwinds the code of a simulated process that has just died. Nothing that it does on the way has an effect."""


class Spinning(RuntimeError):
    """Callbacks follow each other and time stands still."""


class SimHandle:
    """A callback that was asked for; asyncio's Handle and TimerHandle in one."""

    __slots__ = ("args", "callback", "context", "gone", "order", "time")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context, time: float, order: int):
        self.callback, self.args, self.context = callback, args, context
        self.time, self.order = time, order
        self.gone = False

    def cancel(self) -> None:
        self.gone = True
        self.callback = _nothing
        self.args = ()

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.time

    def __lt__(self, other: "SimHandle") -> bool:
        return (self.time, self.order) < (other.time, other.order)


def _nothing(*_: Any) -> None:
    pass


_Loop: Any = asyncio.AbstractEventLoop
"""Sockets, signals and subprocesses are not there: what services do with them stands behind a port."""


class VirtualLoop(_Loop):
    """`run(main)` runs a coroutine to its end, or until `halted`. `steps` counts callbacks; `failed` gets what they raised."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.failed: list[tuple[Any, BaseException]] = []
        self.halted = False
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._order = 0
        self._running = False
        self._closed = False

    # ------------------------------------------------------------------------------------------------- what asyncio asks

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = SimHandle(callback, args, copy_context() if context is None else context, self.now, 0)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        self._order = order = self._order + 1
        when = self.now + delay
        handle = SimHandle(callback, args, copy_context() if context is None else context, when, order)
        heappush(self._timers, (when, order, handle))
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        self._order = order = self._order + 1
        handle = SimHandle(callback, args, copy_context() if context is None else context, when, order)
        heappush(self._timers, (when, order, handle))
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        host = _present.get() if context is None else context.get(_present)
        if host is not None:
            host.begun(task)  # type: ignore[attr-defined]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """At once: there are no threads here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    get_debug = bool
    """False. Each future asks, so it is a call into C."""

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Crashed):
            self.failed.append((context.get("message"), error))

    async def shutdown_asyncgens(self) -> None:
        """Nothing is kept of them."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # ---------------------------------------------------------------------------------------------------------- running

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs until `main` ends; returns what it returns, or None when it was halted before."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._running = True
        try:
            task = self.create_task(main, name="main")
            self._turn(task)
            return task.result() if task.done() else None
        finally:
            self._running = False
            events._set_running_loop(before)

    def _turn(self, until: "asyncio.Task[Any]") -> None:
        ready, timers, done = self._ready, self._timers, until.done
        most = self.steps + _AT_ONCE
        while not done() and not self.halted:
            if ready:
                handle = ready.popleft()
            elif timers:
                when, _, handle = heappop(timers)
                if when > self.now and not handle.gone:
                    self.now = when
                    most = self.steps + _AT_ONCE
            else:
                raise RuntimeError("nothing is left to do, and the simulation has not ended")
            if handle.gone:
                continue
            context = handle.context
            host: Any = context.get(_present)
            if host is not None and host.held is not None:
                host.held.append(handle)
                continue
            self.steps += 1
            if self.steps > most:
                raise Spinning(f"{_AT_ONCE} callbacks at {self.now:.6f} s; the last was {handle.callback}")
            try:
                context.run(handle.callback, *handle.args)
            except Crashed:
                continue
            except Exception as error:
                self.failed.append((handle.callback, error))

    def again(self, handle: SimHandle) -> None:
        """A callback that a frozen process kept is ready now."""
        self._ready.append(handle)
