"""How far a reader has come, kept in a JetStream key-value bucket: small JSON objects by name."""

import json
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError

from libs.bus.streams import CURSORS


class Cursors:
    """Named positions. The last save wins; a lost save only means that some work is done again."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js

    async def load(self, name: str) -> dict[str, Any] | None:
        """The saved object, or None."""
        bucket = await self._js.key_value(CURSORS)
        try:
            entry = await bucket.get(name)
        except KeyNotFoundError:
            return None
        return json.loads(entry.value) if entry.value else None  # type: ignore[no-any-return]

    async def save(self, name: str, value: dict[str, Any]) -> None:
        bucket = await self._js.key_value(CURSORS)
        await bucket.put(name, json.dumps(value).encode())
