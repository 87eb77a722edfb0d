"""A service that needs archived records waits until an operator has restored them.

Meanwhile it is not ready and says why. It continues by itself once `baton ledger restore` has brought the records back, or
another process has saved a snapshot that reaches far enough. From its next declaration on, the records that it needs are not
deleted again, except by a run of `archive --delete` that began before; then they must be restored once more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext

from libs.bus.retry import UNAVAILABLE
from libs.ledger.segments import RecordsArchived, readable
from libs.ports.host import failpoint

log = logging.getLogger("baton.ledger")

LOOK_S = 5.0
"""The interval at which it checks whether the records are back."""


class RestoreWait:
    """The wait of one reader. `problem`: what it waits for, "" if for nothing; `records`: the number of missing records;
    `saved`: up to which record the newest snapshot of its kind reaches."""

    def __init__(self, js: JetStreamContext, pool: str, name: str, saved: Callable[[], Awaitable[int]]) -> None:
        self.problem = ""
        self.records = 0
        self._js, self._pool, self._name, self._saved = js, pool, name, saved

    async def over(self, gone: RecordsArchived) -> None:
        """Returns when it may be tried again. A broker that is away is waited for; raises ConnectionClosedError."""
        log.error("%s of pool %s waits: %s", self._name, self._pool, gone)
        self.problem, self.records = str(gone), gone.records
        try:
            while True:
                failpoint("ledger.archived")
                if await self._back(gone.seq):
                    break
                await asyncio.sleep(LOOK_S)
        finally:
            self.problem, self.records = "", 0
        log.warning("%s of pool %s goes on", self._name, self._pool)

    async def _back(self, seq: int) -> bool:
        try:
            first = (await readable(self._js, self._pool))[0].first
            return first <= seq or await self._saved() >= first - 1
        except ConnectionClosedError:
            raise
        except UNAVAILABLE:
            return False
