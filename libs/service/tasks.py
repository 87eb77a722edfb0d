"""Background tasks of a service."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

from libs.bus.cancel import cancel
from libs.ports.host import present_host

log = logging.getLogger("baton.service")

FAILED_EXIT_CODE = 71


def end_process(why: str, error: BaseException | None = None) -> None:
    """Logs and exits with `FAILED_EXIT_CODE`, at once: the supervisor starts a fresh process."""
    if (host := present_host()) is not None:
        host.end(why, error)
        return
    log.critical("%s; ending this process", why, exc_info=error)
    exit_now(FAILED_EXIT_CODE)


def exit_now(code: int) -> NoReturn:
    """Python would wait for threads, and one of a driver may wait for a store that does not answer, for longer than a
    supervisor waits for us."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def essential(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """`task`, whose failure ends the process as that of one of `Tasks` does: of work that its owner cancels itself."""
    task.add_done_callback(_end_if_failed)
    return task


def _end_if_failed(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(f"task {task.get_name()!r} failed", error)


class Tasks:
    """Tasks that run beside the message handlers.

    One that fails ends the process, loudly: its supervisor starts a fresh one, which is always right here, because
    every service can rebuild what it knows. A task that returns has simply done its work.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Runs `work` until it ends or the service stops."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """Cancels the tasks at the end of the block and waits for them."""
        try:
            yield
        finally:
            self._stopping = True
            await cancel(*self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._stopping:
            _end_if_failed(task)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning("task %r failed while stopping", task.get_name(), exc_info=error)
