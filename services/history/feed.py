"""Publishes each team's events: ledger events become messages on the stream EVENTS.

Its position in the ledger is a cursor in JetStream, moved after the messages are stored. After a crash between the two some
are sent again with the same ids, and the broker drops them. The state of unfinished jobs comes from a snapshot and the records
after it; up to the cursor these are read without publishing. MongoDB is not involved.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter

from libs.bus.cursors import Cursors, Overtaken
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.bus.retry import retry_while_away
from libs.core.projections.history import Feed
from libs.ledger.chain import LedgerRewound
from libs.ledger.follower import FollowedEntry, Follower, Gather
from libs.ports.host import failpoint
from schemas import ids, subjects
from schemas.jobs import JobRejected, TeamEvent

log = logging.getLogger("baton.history")

A = TypeVar("A")
NAME = "history-feed"
_REST_S = 0.003
"""The node that is to do what a record says hears of it first."""
_GATHER = Gather(0.025, busy_s=0.05, busy_events=25)
"""Under load, that is from 500 events a second on: those of some records are stored as one batch, synced once, and the
cursor moves once for all of them."""


class FeedLoop:
    """The loop. `problem` is "" while all is well, for the readiness check; `position` is what teams were told to."""

    def __init__(
        self, js: JetStreamContext, pool: str, registry: CollectorRegistry, *, snapshot_records: int = 5000
    ) -> None:
        self.position = 0
        self.follower = Follower(
            js, pool, Feed, name=NAME, snapshot_every=snapshot_records, gather=_GATHER, rest_s=_REST_S
        )
        self._pool = pool
        self._source = f"/baton/{pool}/history"
        self._outbox = Outbox(js, batches=True)
        self._cursors = Cursors(js, "history")
        self._cursor: dict[str, Any] = {}
        self._cannot = ""
        self._told = Counter("baton_history_events", "events told to teams", ["what"], registry=registry)

    @property
    def problem(self) -> str:
        return self._cannot or self.follower.problem

    async def run(self) -> None:
        """For ever. Raises LedgerStopped only; a broker that is away or full is waited for."""
        while True:
            try:
                await self.follower.run(self._after, begin=self._begin)
            except Overtaken as error:
                log.warning("%s; going on from there", error)

    async def _begin(self) -> None:
        found = await self._surely("read its cursor", partial(self._cursors.load, f"{NAME}-{self._pool}"))
        cursor = found or {"seq": 0, "hash": "", "position": 0}
        if self.follower.began_at < cursor["position"]:
            raise LedgerRewound(f"the ledger of pool {self._pool} ends before {cursor['position']}, which was told")
        self._cursor = cursor
        self.position = max(int(cursor["position"]), self.follower.resumed_at)

    async def _after(self, steps: Sequence[FollowedEntry]) -> None:
        """Stores the events of what was not told yet, then moves the cursor."""
        cursor, follower = self._cursor, self.follower
        if any(s.entry.seq == cursor["seq"] and s.entry.hash != cursor["hash"] for s in steps):
            raise LedgerRewound(f"record {cursor['seq']} of pool {self._pool} is not the one that was told")
        messages = [
            m for step in steps if step.entry.valid and step.entry.seq > self.position for m in self._news(step)
        ]
        if messages:
            await self._surely(f"store {len(messages)} events", partial(self._outbox.publish_many, messages))
        failpoint("feed.stored")
        if follower.position > self.position:
            mark = {"seq": follower.head.seq, "hash": follower.head.hash, "position": follower.position}
            await self._surely("move its cursor", partial(self._cursors.move, f"{NAME}-{self._pool}", mark))
            self.position = follower.position

    def _news(self, step: FollowedEntry) -> Iterator[Outgoing]:
        for index, event in enumerate(step.told):
            what = "rejected" if isinstance(event, JobRejected) else event.what
            self._told.labels(what).inc()
            of_team = isinstance(event, TeamEvent)
            kind = f"io.baton.{'team' if of_team else 'job'}.{what}.v1"
            id_ = ""
            if isinstance(event, JobRejected) and event.stored_us:
                id_ = ids.rejection_id(event.team, event.client_key, event.stored_us, kind)
            yield outgoing(
                event,
                subject=subjects.team_event(what, event.team) if of_team else subjects.event(what, event.team),
                type=kind,
                id=id_,
                source=self._source,
                cause=f"ledger:{self._pool}:{step.entry.seq}",
                key=str(index),
                correlation="" if isinstance(event, TeamEvent) else event.job_id,
            )

    async def _surely(self, what: str, work: Callable[[], Awaitable[A]]) -> A:
        """Does `work` until it succeeds: the ids make a repeat harmless, and nothing may be left out."""

        def away(error: Exception, failures: int) -> None:
            if not self._cannot:
                log.warning("the feed cannot %s: %r", what, error)
            self._cannot = f"cannot {what}: {error!r}"

        done = await retry_while_away(work, away)
        self._cannot = ""
        return done
