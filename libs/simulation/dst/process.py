"""A simulated process: the host of its tasks, with clocks of its own, that can be frozen, killed and started again."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from libs.ports.host import on_host
from libs.simulation.dst.loop import Crashed, SimHandle

if TYPE_CHECKING:
    from libs.simulation.dst.client import SimClient
    from libs.simulation.dst.world import World

EPOCH_NS = 1_900_000_000_000_000_000
"""When virtual time begins, nanoseconds since the Unix epoch."""


class _Dead(deque[Any]):
    """What a dead process keeps of its callbacks: nothing."""

    def append(self, _: Any) -> None:
        pass


class Process:
    """One life of one process. `held` is None while it runs; callbacks go there while it is frozen or dead."""

    def __init__(self, world: "World", name: str, machine: str = "") -> None:
        self.world = world
        self.name = name
        self.machine = machine or name
        self.held: deque[SimHandle] | None = None
        self.alive = True
        self.overrun = False
        """Its client drops what it is told: a subscription's buffer is full."""
        self.why = ""
        self.clients: list[SimClient] = []
        self.on_end: Callable[[Process, str, BaseException | None], None] | None = None
        self.context: Context = copy_context()
        self.context.run(on_host, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64

    # -------------------------------------------------------------------------------------------------- the host's part

    def wall_ns(self) -> int:
        return EPOCH_NS + int((self.world.loop.now + self.world.offset_of(self.machine)) * 1e9)

    def boot_s(self) -> float:
        return 1000.0 + self.world.loop.now * self.world.rate_of(self.machine)

    def boot_id(self) -> str:
        machine = self.world.machines.get(self.machine)
        return f"{self.machine}-{machine.boots if machine is not None else 0}"

    def process_name(self) -> str:
        return self.name

    async def connect(self, name: str, inbox_prefix: str | None, wait_s: float) -> Any:
        return await self.world.net.connect(self, name, inbox_prefix, wait_s)

    def broker(self, name: str) -> Any:
        from libs.simulation.dst.service import SimBroker

        return SimBroker(self, name)

    def service(
        self,
        broker: Any,
        lifespan: Callable[[], AbstractAsyncContextManager[None]],
        ready: Callable[[], dict[str, str]],
    ) -> Any:
        from libs.simulation.dst.service import SimService

        return SimService(broker, lifespan, ready)

    def redis(self) -> Any:
        return self.world.redis.client(self)

    def mongo(self) -> Any:
        return self.world.mongo.client(self)

    def end(self, why: str, error: BaseException | None) -> None:
        self.die(why, error)

    def reached(self, failpoint: str) -> None:
        if self.alive and self.world.reached(self, failpoint):
            self.die(f"crash at {failpoint}", None)
            raise Crashed(failpoint)

    def begun(self, task: "asyncio.Task[Any]") -> None:
        """The loop has made a task in this process."""
        if not self.alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.get_coro().close()
            return
        self._tasks.append(task)
        if len(self._tasks) > self._prune_at:
            self._tasks = [t for t in self._tasks if not t.done()]
            self._prune_at = 64 + 2 * len(self._tasks)

    # ------------------------------------------------------------------------------------------- what the world does to it

    def start(self, main: Any, name: str = "main") -> "asyncio.Task[Any]":
        """Runs a coroutine in this process."""
        return self.context.run(self.world.loop.create_task, main, name=name)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> SimHandle:
        return self.world.loop.call_at(when, callback, *args, context=self.context)

    def freeze(self) -> None:
        """As SIGSTOP does."""
        if self.alive and self.held is None:
            self.held = deque()
            self.world.note(f"{self.name} is frozen")

    def thaw(self) -> None:
        if not self.alive or self.held is None:
            return
        self.world.note(f"{self.name} goes on")
        held, self.held = self.held, None
        for handle in held:
            self.world.loop.again(handle)

    @property
    def frozen(self) -> bool:
        return self.alive and self.held is not None

    def die(self, why: str, error: BaseException | None = None) -> None:
        """As SIGKILL does: nothing of it runs any more, and its connections break."""
        if not self.alive:
            return
        self.alive = False
        self.why = why
        self.held = _Dead()
        self.world.note(f"{self.name} ends: {why}" + (f": {error!r}" if error is not None else ""))
        for client in self.clients:
            client.killed()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):  # the one that runs right now unwinds by itself
                self.context.run(task.get_coro().close)
        if self.on_end is not None:
            self.on_end(self, why, error)
