"""A nats-server that a test may kill and start again on the same port and store."""

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path

import nats
from nats.aio.client import Client

from libs.embedded.binaries import nats_server


class Broker:
    """One server, down until `start`."""

    def __init__(self, folder: Path, max_payload: int = 1024 * 1024) -> None:
        self.folder, self.max_payload = folder, max_payload
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nmax_payload: {self.max_payload}\n'
            f'jetstream {{ store_dir: "{self.folder / "store"}", sync_interval: always }}\n'
        )
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(nats_server()), "-c", str(config), stdout=log, stderr=log
            )
        for _ in range(1000):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.01)
        raise RuntimeError((self.folder / "log").read_text()[-2000:])

    async def kill(self) -> None:
        """As `kill -9` does: nothing is flushed, nobody is told."""
        process, self._process = self._process, None
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def connect(self) -> Client:
        async def quiet(_error: Exception) -> None:
            return None

        return await nats.connect(
            self.url,
            error_cb=quiet,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.05,
            ping_interval=1,
            pending_size=64 * 1024 * 1024,
        )
