"""Retries while MongoDB is unavailable: logs the outage once, and backs off while nothing could be written."""

import asyncio
import logging

from libs.adapters.mongo.store import StoreAway

log = logging.getLogger("baton.history")

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class StoreOutage:
    """The outage as one loop sees it. `problem` is "" while the store is available."""

    def __init__(self, what: str) -> None:
        """`what`: the work that stops meanwhile, for the log."""
        self.problem = ""
        self._what = what
        self._failures = 0
        self._reached = 0

    async def wait(self, error: StoreAway, position: int) -> None:
        """Waits until the next try. `position`: the last ledger record that was written."""
        self._failures = 0 if position != self._reached else self._failures + 1
        self._reached = position
        if self.problem != str(error):
            log.warning("%s stop at record %d: %s", self._what, position, error)
        self.problem = str(error)
        await asyncio.sleep(_PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)])

    def over(self) -> None:
        self.problem = ""
