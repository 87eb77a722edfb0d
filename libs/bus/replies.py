"""Acknowledgements of publishes, as futures.

nats-py's `publish_async` is not used: a refusal by the broker never reaches its future (`APIError.from_error` raises
where a value is expected), and messages lost in a reconnect keep their permits for ever.
"""

import asyncio
import itertools
import json
from typing import ClassVar
from weakref import WeakKeyDictionary

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError


class Replies:
    """Where the acknowledgements of one connection arrive: a subject of its own and a future per message."""

    _all: ClassVar["WeakKeyDictionary[Client, Replies]"] = WeakKeyDictionary()

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[PubAck]] = {}

    @classmethod
    async def of(cls, connection: Client) -> "Replies":
        replies = cls._all.get(connection)
        if replies is None:
            cls._all[connection] = replies = cls(connection.new_inbox())
            await connection.subscribe(f"{replies._prefix}.*", cb=replies._arrived)
        return replies

    def expect(self) -> "tuple[asyncio.Future[PubAck], str]":
        """A future for one acknowledgement, and the subject to name in the message."""
        reply_to = f"{self._prefix}.{next(self._numbers)}"
        future: asyncio.Future[PubAck] = asyncio.get_running_loop().create_future()
        self._waiting[reply_to] = future
        future.add_done_callback(lambda _: self._waiting.pop(reply_to, None))
        return future, reply_to

    async def _arrived(self, msg: Msg) -> None:
        future = self._waiting.get(msg.subject)
        if future is None or future.done():
            return
        if msg.headers and msg.headers.get("Status") == "503":
            future.set_exception(NoStreamResponseError())
            return
        try:
            answer = json.loads(msg.data)
            if "error" in answer:
                APIError.from_error(answer["error"])  # raises
            stored = PubAck(
                answer["stream"], answer["seq"], domain=answer.get("domain"), duplicate=answer.get("duplicate"),
                batch_size=answer.get("count"),
            )  # fmt: skip
            future.set_result(stored)
        except Exception as e:
            future.set_exception(e)
