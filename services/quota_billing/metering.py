"""Reads the ledger into a meter, from the last snapshot on.

Whoever asks meanwhile gets a bill that is exact up to the sequence that it names. A record that no valid ledger holds
stops the service: a guess would be a wrong bill.
"""

import asyncio
import logging
import time

from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from libs.core.billing.metering import Meter, WrongVersion
from libs.ledger.chain import GENESIS
from libs.ledger.reader import LedgerReader
from libs.ledger.snapshots import Snapshots

log = logging.getLogger("baton.billing")

NAME = "quota_billing"
_SNAPSHOT_SHARE = 20  # a snapshot that took a second is followed by twenty without one


class Metering:
    """The loop and its meter. `caught_up` is set once all that was in the ledger at start is read."""

    def __init__(self, js: JetStreamContext, pool: str, *, snapshot_records: int = 5000) -> None:
        self.meter = Meter()
        self.caught_up = asyncio.Event()
        self.position = 0
        self.lag = 0
        self.problem = ""
        self._js = js
        self._pool = pool
        self._snapshots = Snapshots(js, pool)
        self._snapshot_records = snapshot_records

    async def run(self) -> None:
        """For ever. Raises LedgerStopped, or Unbillable from the meter."""
        reader = await self._open()
        start = await reader.last_seq()
        snapped, not_before = reader.position, 0.0
        async for entries in reader.follow():
            for entry in entries:
                if entry.valid:
                    self.meter.apply(entry.record, entry.seq)
                else:
                    self.meter.skip(entry.seq)
            self.position, self.lag, self.problem = reader.position, reader.lag(), reader.problem
            if self.position >= start:
                self.caught_up.set()
            began = time.monotonic()
            if self.position - snapped >= self._snapshot_records and began >= not_before:
                snapped = self.position
                await self._snapshot(reader)
                took = time.monotonic() - began
                not_before = began + took * _SNAPSHOT_SHARE

    async def _open(self) -> LedgerReader:
        loaded = await self._snapshots.load(NAME)
        if loaded is not None:
            head, position, data = loaded
            try:
                self.meter = Meter.load(data)
                return LedgerReader(self._js, self._pool, head, position)
            except WrongVersion as error:
                log.warning("%s: reading the ledger from its beginning", error)
        self.meter = Meter()
        return LedgerReader(self._js, self._pool, GENESIS)

    async def _snapshot(self, reader: LedgerReader) -> None:
        try:
            data = await asyncio.to_thread(self.meter.dump)  # only this task changes the meter, and it waits here
            await self._snapshots.save(NAME, reader.head, reader.position, data)
        except (NatsError, TimeoutError, OSError) as error:  # the older one serves as well, it takes longer
            log.warning("snapshot of the meter at %d was not stored: %r", reader.position, error)
