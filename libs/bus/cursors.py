"""Small remembered positions (how far a reader has come), in the key-value bucket `baton-cursors`.

A cursor is a courtesy that shortens a start: losing one means reading again, so nothing depends on it.
"""

import json
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from libs.bus.table import CURSORS_BUCKET


class Overtaken(RuntimeError):
    """Somebody else has moved the cursor since it was loaded."""


class Cursors:
    """Named JSON objects. Names: letters, digits and `-_=./`."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._bucket: KeyValue | None = None
        self._revisions: dict[str, int] = {}  # of each cursor as it was loaded or moved by us

    async def load(self, name: str) -> dict[str, Any] | None:
        """The value that was saved last, or None."""
        try:
            entry = await (await self._kv()).get(name)
        except KeyNotFoundError:
            self._revisions[name] = 0
            return None
        self._revisions[name] = int(entry.revision or 0)
        value: dict[str, Any] = json.loads(entry.value or b"{}")
        return value

    async def save(self, name: str, value: dict[str, Any]) -> None:
        await (await self._kv()).put(name, json.dumps(value).encode())

    async def move(self, name: str, value: dict[str, Any]) -> None:
        """Replaces what `load` gave, or the last `move` here. Raises Overtaken, and changes nothing, when another process has
        moved it since."""
        kv, body, last = await self._kv(), json.dumps(value).encode(), self._revisions.get(name, 0)
        try:
            self._revisions[name] = await (kv.update(name, body, last=last) if last else kv.create(name, body))
        except KeyWrongLastSequenceError:
            if await self.load(name) != value:  # ours, when the first try was stored and its acknowledgement was lost
                raise Overtaken(f"cursor {name} was moved by another process") from None

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._js.key_value(CURSORS_BUCKET)
        return self._bucket
