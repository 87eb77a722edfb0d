"""Tells each team what happens to its jobs: ledger events become messages on the stream EVENTS.

Its place in the ledger is a cursor in JetStream, moved after the messages are stored. A crash between the two sends
some again with the same ids, and the broker drops them. What the feed knows of unfinished jobs comes from a snapshot
and the records after it; up to the cursor these are read in silence. MongoDB has no part in this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter, Gauge

from libs.bus.cursors import Cursors
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.core.projections.history import Feed, WrongVersion
from libs.ledger.chain import GENESIS, ChainEntry, LedgerRewound
from libs.ledger.reader import LedgerReader
from libs.ledger.snapshots import Snapshots
from schemas import subjects

log = logging.getLogger("baton.history")

NAME = "history-feed"
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class FeedLoop:
    """The loop. `problem` is "" while all is well, for the readiness check."""

    def __init__(
        self, js: JetStreamContext, pool: str, registry: CollectorRegistry, *, snapshot_records: int = 5000
    ) -> None:
        self.problem = "not read yet"
        self.position = 0
        self._js = js
        self._pool = pool
        self._source = f"/baton/{pool}/history"
        self._outbox = Outbox(js)
        self._cursors = Cursors(js)
        self._snapshots = Snapshots(js, pool)
        self._snapshot_records = snapshot_records
        self._feed = Feed()
        self._lag = Gauge("baton_history_feed_lag_records", "ledger records not told to teams yet", registry=registry)
        self._told = Counter("baton_history_events", "events told to teams", ["what"], registry=registry)

    async def run(self) -> None:
        """For ever. Raises LedgerStopped only; a broker that is away or full is waited for."""
        reader = await self._open()
        cursor = await self._cursors.load(f"{NAME}-{self._pool}") or {"seq": 0, "hash": "", "position": 0}
        if await reader.last_seq() < cursor["position"]:
            raise LedgerRewound(f"the ledger of pool {self._pool} ends before {cursor['position']}, which was told")
        self.position = told = max(int(cursor["position"]), reader.position)
        snapped = reader.position
        async for entries in reader.follow():
            self.problem = reader.problem
            self._lag.set(reader.lag() + len(entries))
            if not entries:
                continue
            if any(e.seq == cursor["seq"] and e.hash != cursor["hash"] for e in entries):
                raise LedgerRewound(f"record {cursor['seq']} of pool {self._pool} is not the one that was told")
            await self._publish(entries, told)
            if reader.position > told:
                told = reader.position
                mark = {"seq": reader.head.seq, "hash": reader.head.hash, "position": told}
                await self._surely("its cursor", partial(self._cursors.save, f"{NAME}-{self._pool}", mark))
            self.position = told
            self._lag.set(reader.lag())
            if reader.position - snapped >= self._snapshot_records:
                snapped = reader.position
                await self._snapshot(reader)

    async def _open(self) -> LedgerReader:
        loaded = await self._snapshots.load(NAME)
        if loaded is not None:
            head, position, data = loaded
            try:
                self._feed = Feed.load(data)
                return LedgerReader(self._js, self._pool, head, position)
            except WrongVersion as error:
                log.warning("%s: reading the ledger from its beginning", error)
        self._feed = Feed()
        return LedgerReader(self._js, self._pool, GENESIS)

    async def _publish(self, entries: list[ChainEntry], told: int) -> None:
        """Folds the records, and stores the events of those after `told`."""
        messages: list[Outgoing] = []
        for entry in entries:
            if entry.valid:
                events = self._feed.apply(entry.record)
                if entry.seq > told:
                    for index, event in enumerate(events):
                        self._told.labels(event.what).inc()
                        messages.append(
                            outgoing(
                                event,
                                subject=subjects.event(event.what, event.team),
                                type=f"io.baton.job.{event.what}.v1",
                                source=self._source,
                                cause=f"ledger:{self._pool}:{entry.seq}",
                                key=str(index),
                                correlation=event.job_id,
                            )
                        )
        if messages:
            await self._surely(f"{len(messages)} events", partial(self._outbox.publish_many, messages))

    async def _surely(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """Does `work` until it succeeds: the ids make a repeat harmless, and nothing may be left out."""
        failures = 0
        while True:
            try:
                await work()
                return
            except (NatsError, TimeoutError, OSError) as error:
                if not self.problem:
                    log.warning("the feed cannot store %s: %r", what, error)
                self.problem = f"cannot store {what}: {error!r}"
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1

    async def _snapshot(self, reader: LedgerReader) -> None:
        try:
            await self._snapshots.save(NAME, reader.head, reader.position, self._feed.dump())
        except (NatsError, TimeoutError, OSError) as error:  # the older one serves as well, it takes longer
            log.warning("snapshot of the feed at %d was not stored: %r", reader.position, error)
