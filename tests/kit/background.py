"""One embedded server in a background thread, so that it outlives the event loops of single tests."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.embedded.servers import MONGO, NATS, VALKEY

T = TypeVar("T")

_START_S = 60


class ServerInBackground:
    """`with ServerInBackground(NATS, folder) as server:` runs that server until the block ends.

    It is restarted on the same port and state when it dies, as in production; `kill` makes it die.
    """

    def __init__(self, name: str, folder: Path, *, sync_always: bool = False) -> None:
        self._name = name
        options = ServerOptions(
            run=(name,),
            # What streams reserve, not what they use: room for a thousand test pools.
            nats=NatsOptions(sync_always=sync_always, max_file_store_bytes=1 << 40, max_memory_store_bytes=1 << 34),
        )
        self._servers = Servers(folder, options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"server-{name}", daemon=True)

    @property
    def url(self) -> str:
        return {
            NATS: lambda: self._servers.nats_url,
            VALKEY: lambda: self._servers.redis_url,
            MONGO: lambda: self._servers.mongo_url,
        }[self._name]()

    def kill(self) -> int:
        """SIGKILL, as a crash does; the supervisor of `libs.embedded` starts the server again. Returns its old pid."""
        pid = self._servers.supervisor.pid(self._name)
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP until the block ends: it answers nobody, and its connections stay."""
        pid = self._servers.supervisor.pid(self._name)
        os.kill(pid, signal.SIGSTOP)
        while not all(_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
            time.sleep(0.001)  # until then it may still answer
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_replaced(self, pid: int) -> None:
        """Waits until another process than `pid` answers."""
        self._run(self._servers.supervisor.wait_ready(self._name, replaced_pid=pid, timeout_s=_START_S))

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._servers.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._servers.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)


def _stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return True  # it has ended meanwhile
