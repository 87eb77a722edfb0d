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
    """Named JSON objects. Names: letters, digits and `-_=./`. `owner`: the service whose they are, which alone may write them
    (`libs.walls.roles`); until it has, what version 0.1.0 wrote under the name alone counts."""

    def __init__(self, js: JetStreamContext, owner: str = "") -> None:
        self._js, self._owner = js, owner
        self._bucket: KeyValue | None = None
        self._revisions: dict[str, int] = {}  # of each cursor as it was loaded or moved by us

    async def load(self, name: str) -> dict[str, Any] | None:
        """The value that was saved last, or None."""
        kv, own = await self._kv(), True
        try:
            entry = await kv.get(self._key(name))
        except KeyNotFoundError:
            self._revisions[name], own = 0, False
            if not self._owner:
                return None
            try:
                entry = await kv.get(name)
            except KeyNotFoundError:
                return None
        if own:
            self._revisions[name] = int(entry.revision or 0)
        value: dict[str, Any] = json.loads(entry.value or b"{}")
        return value

    async def save(self, name: str, value: dict[str, Any]) -> None:
        await (await self._kv()).put(self._key(name), json.dumps(value).encode())

    async def move(self, name: str, value: dict[str, Any]) -> None:
        """Replaces what `load` gave, or the last `move` here. Raises Overtaken, and changes nothing, when another process has
        moved it since."""
        kv, body, last, key = (
            await self._kv(),
            json.dumps(value).encode(),
            self._revisions.get(name, 0),
            self._key(name),
        )
        try:
            self._revisions[name] = await (kv.update(key, body, last=last) if last else kv.create(key, body))
        except KeyWrongLastSequenceError:
            if await self.load(name) != value:  # ours, when the first try was stored and its acknowledgement was lost
                raise Overtaken(f"cursor {name} was moved by another process") from None

    def _key(self, name: str) -> str:
        return f"{self._owner}.{name}" if self._owner else name

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._js.key_value(CURSORS_BUCKET)
        return self._bucket
