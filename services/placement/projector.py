"""Keeps Redis at the ledger's present. A task of its own with a reader of its own, so Redis never delays placement.

It folds the ledger in memory. While Redis follows, each batch is one call; whatever goes wrong there (away, emptied,
rolled back, of another ledger) makes it *stale*, and a stale one is written anew as a whole from memory as soon as Redis
answers. So the state after any failure is the fold, and nothing has to be replayed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from libs.adapters.redis import NeedRebuild, Projection
from libs.adapters.redis.projection import Unavailable
from libs.core.projections.hot_state import Delta, HotState
from libs.ledger.chain import ChainEntry
from libs.ledger.reader import LedgerReader
from libs.ledger.snapshots import Snapshots

log = logging.getLogger("baton.projector")

SNAPSHOT = "projection"
T = TypeVar("T")

_PAUSES_S = (0.1, 0.25, 0.5, 1.0, 2.0)


class Projector:
    """`await Projector(pool, redis_url).run(js)` for ever. It raises only what the ledger raises (LedgerStopped).

    `problem` is "" while Redis follows, `rebuilds` counts how often it was written anew. Every `snapshot_every` records
    the fold is kept in the object store, so that a restart need not read the whole ledger.
    """

    def __init__(self, pool: str, redis_url: str, *, snapshot_every: int = 20_000) -> None:
        self.projection = Projection(redis_url, pool)
        self.rebuilds = 0
        self.problem = "not started"
        self._pool = pool
        self._snapshot_every = snapshot_every
        self._saved_at = 0
        self._state = HotState()
        self._before = ""  # hash of the last valid record that was folded
        self._stale = True
        self._failures = 0
        self._retry_at = 0.0

    _reader: LedgerReader
    _snapshots: Snapshots

    async def run(self, js: JetStreamContext) -> None:
        self._snapshots = Snapshots(js, self._pool)
        try:
            self._reader = await self._load(js)
            async for entries in self._reader.read_to(await self._last_seq()):
                self._fold(entries)
            async for entries in self._reader.follow(idle_s=0.5):
                before, batch = self._before, self._fold(entries)
                await self._write(before, batch)
                await self._save()
        except (KeyError, ValueError, TypeError) as e:
            # Placement folds the same ledger itself, so it would stop if the ledger were wrong: this fold is, and what
            # stands in Redis is only shown, so placement goes on without it and says so.
            log.exception("the projection stops")
            self.problem = f"stopped at {self._reader.position}: {e!r}"
        finally:
            await self.projection.close()

    async def _load(self, js: JetStreamContext) -> LedgerReader:
        """A reader behind what the newest snapshot holds, which becomes the state; from the beginning without one."""
        found = await self._patiently(lambda: self._snapshots.load(SNAPSHOT))
        if found is None:
            return LedgerReader(js, self._pool)
        head, position, data = found
        try:
            self._state = HotState.load(data)
        except ValueError as e:
            log.warning("the snapshot at %d is not used: %s", position, e)
            return LedgerReader(js, self._pool)
        self._saved_at, self._before = position, head.hash
        return LedgerReader(js, self._pool, head, position)

    async def _last_seq(self) -> int:
        return await self._patiently(self._reader.last_seq)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the broker answers, asked again while it is away."""
        while True:
            try:
                return await ask()
            except (NatsError, TimeoutError, OSError) as e:
                log.warning("the broker does not answer: %r", e)
                await asyncio.sleep(0.5)

    def _fold(self, entries: list[ChainEntry]) -> list[tuple[int, str, list[Delta]]]:
        batch = []
        for entry in entries:
            deltas: list[Delta] = []
            if entry.valid:
                deltas, self._before = self._state.apply(entry.record, entry.seq), entry.hash
            batch.append((entry.seq, self._before, deltas))
        return batch

    async def _write(self, before: str, batch: list[tuple[int, str, list[Delta]]]) -> None:
        now = asyncio.get_running_loop().time()
        try:
            if self._stale:
                if now < self._retry_at:
                    return
                await self._refresh()
            elif batch:
                if await self.projection.apply(batch, before) > self._reader.position:
                    await self._check()
            else:
                await self._check()
        except NeedRebuild as e:
            log.warning("the projection is written anew: %s", e)
            self._stale, self._retry_at = True, 0.0
            return
        except Unavailable as e:
            self._say(f"Redis: {e!r}")
            self._stale = True
            self._retry_at = now + _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
            self._failures += 1
            return
        self._failures, self._retry_at = 0, 0.0
        self._say("")

    async def _check(self) -> None:
        """Raises NeedRebuild unless Redis stands where we do, or where another projector of the pool has brought it."""
        seq, hash_ = await self.projection.head()
        ours = (self._reader.position, self._before)
        if (seq, hash_) != ours and not ours[0] < seq <= await self._last_seq():
            raise NeedRebuild(f"the projection stands at {seq}, the ledger was read to {ours[0]}")

    async def _refresh(self) -> None:
        try:
            await self._check()
        except NeedRebuild:
            await self.projection.rebuild(self._reader.position, self._before, self._state.rows())
            self.rebuilds += 1
            log.info("the projection was written anew at %d", self._reader.position)
        self._stale = False

    async def _save(self) -> None:
        if self._reader.position - self._saved_at < self._snapshot_every:
            return
        self._saved_at = self._reader.position
        try:
            await self._snapshots.save(SNAPSHOT, self._reader.head, self._reader.position, self._state.dump())
        except (NatsError, TimeoutError, OSError) as e:
            log.warning("no snapshot at %d: %r", self._saved_at, e)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            (log.warning if problem else log.info)("projection: %s", problem or "follows the ledger")
        self.problem = problem
