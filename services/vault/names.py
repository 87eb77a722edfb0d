"""Publishes which secrets a team has, by name, for all services: admission refuses a job that names another one.

There is an entry for each team in the bucket of cursors, written after each change of the team's secrets and before its sender
is answered. It names the revision of the secrets, so that a slow process never overwrites a newer entry. Entries that are
missing after a crash are written when a process of vault starts. Until one has, `KNOWN` does not exist, and nothing is
refused.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from libs.bus.secret_names import KNOWN, NAMES_OF
from libs.bus.table import CURSORS_BUCKET

_TRIES = 20


class NamesTold:
    """Of this process; others may write the same."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._bucket: KeyValue | None = None

    async def tell(self, team: str, revision: int, names: Iterable[str]) -> None:
        """These are the team's as of that revision; without a name as of what followed it."""
        names = sorted(names)
        at = 2 * revision + (not names)
        body = json.dumps({"at": at, "names": names}).encode()
        for _ in range(_TRIES):
            kv, key = await self._kv(), NAMES_OF.format(team=team)
            told, last = await self.read(team)
            if told["at"] >= at:
                return
            try:
                await (kv.update(key, body, last=last) if last else kv.create(key, body))
                return
            except KeyWrongLastSequenceError:
                continue

    async def read(self, team: str) -> tuple[dict[str, Any], int]:
        """What is told of a team, and the revision of that entry; 0: there is none."""
        try:
            entry = await (await self._kv()).get(NAMES_OF.format(team=team))
        except KeyNotFoundError:
            return {"at": -1, "names": []}, 0
        return json.loads(entry.value or b"{}"), int(entry.revision or 0)

    async def forget(self, team: str, told: dict[str, Any], last: int) -> None:
        """The team has no secrets, as was found after this was told. Unless somebody has told otherwise since."""
        if told["names"]:
            with suppress(KeyWrongLastSequenceError):
                body = json.dumps({"at": told["at"] + 1, "names": []}).encode()
                await (await self._kv()).update(NAMES_OF.format(team=team), body, last=last)

    async def all_told(self) -> None:
        """From now on a team without an entry has no secrets."""
        await (await self._kv()).put(KNOWN, b"{}")

    async def told(self) -> list[str]:
        """The teams that have an entry."""
        stem = f"$KV.{CURSORS_BUCKET}.{NAMES_OF.format(team='')}"
        held = await self._js.stream_info(f"KV_{CURSORS_BUCKET}", subjects_filter=f"{stem}*")
        return [subject.removeprefix(stem) for subject in held.state.subjects or {}]

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._js.key_value(CURSORS_BUCKET)
        return self._bucket
