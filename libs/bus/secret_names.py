"""The names of teams' secrets, which vault writes and admission reads. Values, sizes and dates are not in it."""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from libs.bus.retry import UNAVAILABLE
from libs.bus.table import CURSORS_BUCKET

log = logging.getLogger("baton.bus")

NAMES_OF = "vault.secret-names.{team}"
KNOWN = "vault.secret-names-known"
"""It is there once vault has written down the names of all teams."""
_TEAMS = 1_000


class SecretNames:
    """As they were read last. Whoever judges a request has them read after it was stored: a secret that was set before is then
    among them."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._bucket: KeyValue | None = None
        self._known = False
        self._of: dict[str, tuple[str, ...]] = {}

    def of(self, team: str) -> tuple[str, ...] | None:
        """None: it is not known which it has."""
        return self._of.get(team)

    async def learn(self, requests: Iterable[tuple[str, bytes]]) -> None:
        """Reads the names of these teams, each once, whose request (its body) may name a secret. What cannot be read is not
        known, and hinders nobody."""
        teams = {team for team, body in requests if b'"secret' in body}
        if len(self._of) + len(teams) > _TEAMS:
            self._of.clear()
        if teams:
            await asyncio.gather(*map(self._learn, sorted(teams)))

    async def _learn(self, team: str) -> None:
        try:
            names = await self._read(team)
        except (*UNAVAILABLE, ValueError, KeyError) as error:
            log.warning("the names of team %s's secrets cannot be read: %r", team, error)
            names = None
        if names is None:
            self._of.pop(team, None)
        else:
            self._of[team] = names

    async def _read(self, team: str) -> tuple[str, ...] | None:
        if not self._known and await self._get(KNOWN) is None:
            return None
        self._known = True
        told = await self._get(NAMES_OF.format(team=team))
        return () if told is None else tuple(map(str, told["names"]))

    async def _get(self, key: str) -> Mapping[str, list[str]] | None:
        if self._bucket is None:
            self._bucket = await self._js.key_value(CURSORS_BUCKET)
        try:
            found: Mapping[str, list[str]] = json.loads((await self._bucket.get(key)).value or b"{}")
        except KeyNotFoundError:
            return None
        return found
