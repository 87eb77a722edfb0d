"""Small remembered positions (how far a reader has come), in the key-value bucket `baton-cursors`.

A cursor is a courtesy that shortens a start: losing one means reading again, so nothing depends on it.
"""

import json
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from libs.bus.table import CURSORS_BUCKET


class Cursors:
    """Named JSON objects. Names: letters, digits and `-_=./`."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._bucket: KeyValue | None = None

    async def load(self, name: str) -> dict[str, Any] | None:
        """The value that was saved last, or None."""
        try:
            entry = await (await self._kv()).get(name)
        except KeyNotFoundError:
            return None
        value: dict[str, Any] = json.loads(entry.value or b"{}")
        return value

    async def save(self, name: str, value: dict[str, Any]) -> None:
        await (await self._kv()).put(name, json.dumps(value).encode())

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._js.key_value(CURSORS_BUCKET)
        return self._bucket
