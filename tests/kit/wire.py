"""The way to a server, which can be cut off without a word: nothing is closed, and nothing more comes through."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit


class Wire:
    """`url` leads to the server. While `quiet`, a connection gets `answers` more pieces of what the server says, and nothing
    after that; once it is over, all of it."""

    def __init__(self, server_url: str) -> None:
        self._to = urlsplit(server_url)
        self._url = server_url
        self._open = asyncio.Event()
        self._open.set()
        self._answers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.ends: list[asyncio.StreamWriter] = []
        """Of the client's connections, in the order in which they were made."""
        self.url = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Wire"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        before, _, after = self._url.rpartition(f":{self._to.port}")  # a password may begin as the port does
        self.url = f"{before}:{server.sockets[0].getsockname()[1]}{after}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()

    def quiet(self, answers: int = 0) -> None:
        self._answers = answers
        self._open.clear()

    def loud(self) -> None:
        self._open.set()

    def alive(self) -> int:
        """How many connections the client has not ended."""
        return sum(not end.transport.is_closing() for end in self.ends)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ends.append(writer)
        from_server, to_server = await asyncio.open_connection(self._to.hostname, self._to.port)
        for work in (self._up(reader, to_server), self._down(from_server, writer)):
            self._start(work)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            to_server.write(data)
        to_server.close()

    async def _down(self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = 0
        while data := await from_server.read(65536):
            if told >= self._answers:
                await self._open.wait()
            told += 1
            writer.write(data)
        writer.close()
