"""Keeps Redis up to date with the ledger. It is a task with its own reader, so Redis never delays placement.

It folds the ledger in memory. While Redis follows, each batch is one call. Any fault there (away, emptied, rolled back, of
another ledger) makes Redis *stale*. Stale rows are rewritten as a whole from memory as soon as Redis answers. So the state
after any failure is the fold, and nothing has to be replayed.
"""

import asyncio
import logging
from collections.abc import Sequence

from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext

from libs.adapters.redis import NeedRebuild, Projection
from libs.adapters.redis.projection import Unavailable
from libs.core.projections.hot_state import Delta, HotState
from libs.ledger.chain import LedgerStopped
from libs.ledger.follower import FollowedEntry, Follower
from libs.ports.host import failpoint

log = logging.getLogger("baton.projector")

FOLLOWER = "projection"

_PAUSES_S = (0.1, 0.25, 0.5, 1.0, 2.0)


class Projector:
    """`await Projector(pool, redis_url).run(js)` for ever. It raises only what the ledger raises (LedgerStopped).

    `problem` is "" while Redis follows, `rebuilds` counts how often it was rewritten. Every `snapshot_every` records
    the fold is kept in the object store, so that a restart need not read the whole ledger.
    """

    def __init__(self, pool: str, redis_url: str, *, snapshot_every: int = 20_000) -> None:
        self.projection = Projection(redis_url, pool)
        self.rebuilds = 0
        self.problem = "not started"
        self.follower: Follower[HotState] | None = None
        self._pool = pool
        self._snapshot_every = snapshot_every
        self._before = ""  # hash of the last valid record that was folded
        self._stale = True
        self._failures = 0
        self._retry_at = 0.0

    async def run(self, js: JetStreamContext) -> None:
        self.follower = follower = Follower(
            js, self._pool, HotState, name=FOLLOWER, snapshot_every=self._snapshot_every, idle_s=1.0,
            rest_s=0.05, busy_rest_s=0.25,
        )  # fmt: skip

        async def begin() -> None:
            self._before = follower.head.hash

        async def after(steps: Sequence[FollowedEntry]) -> None:
            before, batch = self._before, self._batch(steps)
            if follower.caught_up.is_set():  # before that Redis would show the past
                await self._write(follower, before, batch)

        try:
            await follower.run(after, begin=begin)
        except (LedgerStopped, ConnectionClosedError):
            raise
        except Exception as e:
            # Placement folds the same ledger itself and would have stopped if that were wrong: this fold is. What stands in
            # Redis is only shown, so placement goes on without it and says so.
            log.exception("the projection stops")
            self.problem = f"stopped at {follower.position}: {e!r}"
        finally:
            await self.projection.close()

    def _batch(self, steps: Sequence[FollowedEntry]) -> list[tuple[int, str, list[Delta]]]:
        """For each record its sequence, the head after it, and the rows that it changed."""
        batch = []
        for step in steps:
            if step.entry.valid:
                self._before = step.entry.hash
            batch.append((step.entry.seq, self._before, step.told or []))
        return batch

    async def _write(
        self, follower: Follower[HotState], before: str, batch: list[tuple[int, str, list[Delta]]]
    ) -> None:
        now = asyncio.get_running_loop().time()
        try:
            if self._stale:
                if now < self._retry_at:
                    return
                await self._refresh(follower)
            elif batch:
                if await self.projection.apply(batch, before) > follower.position:
                    await self._check(follower)
            else:
                await self._check(follower)
        except NeedRebuild as e:
            log.warning("the projection is written anew: %s", e)
            self._stale, self._retry_at = True, 0.0
            return
        except Unavailable as e:
            self._say(f"Redis: {type(e).__name__}: {e}")
            self._stale = True
            self._retry_at = now + _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
            self._failures += 1
            return
        failpoint("projector.written")
        self._failures, self._retry_at = 0, 0.0
        self._say("")

    async def _check(self, follower: Follower[HotState]) -> None:
        """Raises NeedRebuild unless Redis is at our position, or where another projector of the pool has brought it."""
        seq, hash_ = await self.projection.head()
        ours = (follower.position, self._before)
        if (seq, hash_) != ours and not ours[0] < seq <= await follower.last_seq():
            raise NeedRebuild(f"the projection stands at {seq}, the ledger was read to {ours[0]}")

    async def _refresh(self, follower: Follower[HotState]) -> None:
        try:
            await self._check(follower)
        except NeedRebuild:
            await self.projection.rebuild(follower.position, self._before, follower.projection.rows())
            self.rebuilds += 1
            log.info("the projection was written anew at %d", follower.position)
        self._stale = False

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            (log.warning if problem else log.info)("projection: %s", problem or "follows the ledger")
        self.problem = problem
