"""Keeps each team's monthly bill in MongoDB, as posted. Nothing waits for MongoDB: changes during an outage are written
afterwards, and all bills are rewritten at intervals, which also fills an emptied store."""

import asyncio
import logging

from libs.adapters.mongo.bills import BillStore
from libs.bus.retry import run_periodically
from libs.core.billing.kept_bills import kept_bills, months_of
from libs.core.billing.metering import Meter
from libs.ledger.follower import Follower

log = logging.getLogger("baton.quota_billing")

WHOLE_S = 3600.0
"""Interval at which all bills are rewritten."""


class BillKeeper:
    """`run` is a task. Unwritten bills are bounded by teams x months."""

    def __init__(self, follower: Follower[Meter], store: BillStore, *, every_s: float) -> None:
        self._follower, self._store, self._every_s = follower, store, every_s
        self._unwritten: set[tuple[str, str]] = set()
        self._whole_at = float("-inf")

    async def run(self) -> None:
        """Runs until cancelled. Waits for an unreachable store. Raises ConnectionClosedError."""
        await self._follower.caught_up.wait()
        await run_periodically(self.turn, self._every_s, log, "bills are not kept in MongoDB")

    async def turn(self) -> None:
        """Writes bills that changed since the last successful turn. Raises StoreAway."""
        now = asyncio.get_running_loop().time()
        async with self._follower.still():
            money, head = self._follower.projection.money, self._follower.head
            whole = now - self._whole_at >= WHOLE_S
            days = ((team, key[0]) for team, sums in money.sums.items() for key in sums) if whole else money.touched
            self._unwritten |= months_of(days)
            money.touched.clear()
            bills = list(
                kept_bills(money, self._unwritten, pool=self._follower.pool, upto_seq=head.seq, head=head.hash)
            )
        if whole:
            self._whole_at = now
        await self._store.save(bills)
        self._unwritten.clear()
