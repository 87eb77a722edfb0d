"""Keeps one document per job in MongoDB, in step with the ledger.

    window     records of up to 200 ms (1 s while they keep coming) or 500 changed jobs: a job that changes five times is
               written once
    write      all changed documents in bulk, then the checkpoint: a crash between the two repeats the window
    repeat     each document knows the last record in it, and skips what it has seen

Everything that goes wrong (MongoDB away, emptied, restored, written by another process) has one remedy: forget what is
in memory and start again from the checkpoint that is in MongoDB. While it is away nothing is read, so nothing piles up.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence

from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter, Histogram

from libs.adapters.mongo.store import JobStore, ReaderPosition, StoreAway
from libs.core.projections.history import JobChanges, JobStory, UnknownJob, advance
from libs.ledger.chain import GENESIS, Head
from libs.ledger.follower import FollowedEntry, Follower, Gather
from libs.ledger.snapshots import Restored
from libs.ports.host import failpoint
from schemas.ledger import JobQueued
from services.history.outage import StoreOutage

log = logging.getLogger("baton.history")

IDLE_S = 2.0
"""While no record comes, MongoDB is asked so often whether it still has what was written."""
_REST_S = 0.02
"""Nobody waits for a document before its window is over."""
_BUSY_WINDOWS = 5
"""A window is so many times as long while records keep coming: a job of a second or two is then written once less."""
_BEGINNING = ReaderPosition(GENESIS.seq, GENESIS.hash, 0)
_READ = 64  # records at a time: each may hold hundreds of events


class StoreChanged(RuntimeError):
    """The checkpoint in MongoDB is not the one that we wrote: it was emptied or restored, or another history runs."""


class StoryCache:
    """Of jobs that have not ended those that changed last: so many, and so many characters as they are stored. Most have some
    thousands, and a wide gang's has millions."""

    def __init__(self, jobs: int, size: int) -> None:
        self._jobs, self._most = jobs, size
        self._stories: OrderedDict[str, tuple[JobStory, int]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._stories)

    def story(self, job_id: str) -> JobStory | None:
        found = self._stories.get(job_id)
        return None if found is None else found[0]

    def keep(self, story: JobStory, size: int) -> None:
        """In the place of what was kept of its job; nothing of one that has ended, or is larger than there is room at all."""
        self.size -= self._stories.pop(story.document.job_id, (story, 0))[1]
        if not story.document.state.terminal and size <= self._most:
            self._stories[story.document.job_id] = story, size
            self.size += size
        while len(self._stories) > self._jobs or self.size > self._most:
            self.size -= self._stories.popitem(last=False)[1][1]

    def clear(self) -> None:
        self._stories.clear()
        self.size = 0


class Documents:
    """The loop. `problem` is "" while all is well, for the readiness check."""

    def __init__(
        self,
        js: JetStreamContext,
        pool: str,
        store: JobStore,
        registry: CollectorRegistry,
        *,
        window_s: float = 0.2,
        window_jobs: int = 500,
        cache_jobs: int = 4_000,
        cache_mib: float = 32,
    ) -> None:
        self.name = f"documents-{pool}"
        self._pool = pool
        self.position = 0
        self.follower = Follower(
            js, pool, JobChanges, name="history-documents", place=self._place, max_batch=_READ, idle_s=IDLE_S,
            gather=Gather(window_s, self._enough, busy_seconds=_BUSY_WINDOWS * window_s), rest_s=min(_REST_S, window_s),
        )  # fmt: skip
        self._store = store
        self._window_jobs = window_jobs
        self._cached = StoryCache(cache_jobs, round(cache_mib * 2**20))
        self._horizon = 0
        self._before = _BEGINNING
        self._outage = StoreOutage("documents")
        self._written = Counter("baton_history_documents_written", "documents replaced", registry=registry)
        self._restarts = Counter("baton_history_documents_restarts", "starts from the checkpoint", registry=registry)
        self._seconds = Histogram("baton_history_write_seconds", "time to write one window, s", registry=registry)

    @property
    def problem(self) -> str:
        return self._outage.problem or self.follower.problem

    async def run(self) -> None:
        """For ever. Raises LedgerStopped only: then the ledger is not the one that the documents were made from."""
        while True:
            try:
                await self._follow()
            except StoreAway as error:
                await self._outage.wait(error, self.position)
            except StoreChanged as error:
                log.warning("%s; starting again from what MongoDB has", error)
            except UnknownJob as error:
                log.error("MongoDB has lost documents (%s); writing all of them again", error)
                await self._forget()

    async def _follow(self) -> None:
        self._restarts.inc()
        self._cached.clear()
        await self._store.prepare(self.name)
        await self.follower.run(self._after)

    async def _place(self) -> Restored[JobChanges] | None:
        """Where MongoDB stands; None: at the beginning. That is written down, too: a MongoDB that is emptied before the first
        window's checkpoint would else look as it did, and what it had of that window would be missing for good."""
        before = await self._store.checkpoint(self.name)
        # Documents may be ahead of the checkpoint, up to here: until then even a job that is queued now may be stored.
        self._horizon = await self._store.last_seq(self._pool)
        if before is not None and self._horizon < before.changed:
            raise UnknownJob(f"the newest is of record {self._horizon}, there was one of {before.changed}")
        if before is None:
            before = _BEGINNING
            if not await self._store.move_checkpoint(self.name, None, before):
                raise StoreChanged(f"checkpoint {self.name} was written by another process")
        self._before, self.position = before, before.position
        return Restored(Head(before.seq, before.hash), before.position, JobChanges()) if before.position else None

    def _enough(self, steps: Sequence[FollowedEntry]) -> bool:
        return len({job for step in steps for job in step.told or ()}) >= self._window_jobs

    async def _after(self, steps: Sequence[FollowedEntry]) -> None:
        """Writes one window: documents, then the checkpoint."""
        self._outage.over()
        if not steps:
            # An emptied MongoDB must not stay empty until the next record: nothing may happen for days.
            if await self._store.checkpoint(self.name) != self._before:
                raise StoreChanged(f"checkpoint {self.name} is not the one that was written at {self.position}")
            return
        before, follower = self._before, self.follower
        with self._seconds.time():
            changed = await self._write(steps) or before.changed
            failpoint("documents.saved")
            after = ReaderPosition(follower.head.seq, follower.head.hash, follower.position, changed)
            if not await self._store.move_checkpoint(self.name, before, after):
                raise StoreChanged(f"checkpoint {self.name} is not the one that was written at {self.position}")
        self._before, self.position = after, after.position

    async def _write(self, steps: Sequence[FollowedEntry]) -> int:
        """Folds the records into their jobs' documents and stores those that changed. The last record that changed one,
        or 0."""
        known = await self._known(steps)
        changed: dict[str, JobStory] = {}
        for step in steps:
            for job_id, events in (step.told or {}).items():
                story = known.get(job_id)
                known[job_id] = new = advance(story, events, step.entry.record.t_us, step.entry.seq, self._pool)
                if new is not story:
                    changed[job_id] = new
        stories = list(changed.values())
        for start in range(0, len(stories), self._window_jobs):
            some = stories[start : start + self._window_jobs]
            sizes = await self._store.save(some)
            for story in some:
                self._cached.keep(story, sizes[story.document.job_id])
        self._written.inc(len(stories))
        return max((story.document.seq for story in stories), default=0)

    async def _known(self, steps: Sequence[FollowedEntry]) -> dict[str, JobStory]:
        """The stories of the jobs in `steps`: from memory, and from MongoDB what is not there."""
        wanted: dict[str, bool] = {}  # job -> whether it may be stored already
        for step in steps:
            for job_id, events in (step.told or {}).items():
                new = isinstance(events[0], JobQueued) and step.entry.seq > self._horizon
                wanted.setdefault(job_id, not new)
        known = {job_id: story for job_id in wanted if (story := self._cached.story(job_id)) is not None}
        missing = [job_id for job_id, stored in wanted.items() if stored and job_id not in known]
        for start in range(0, len(missing), self._window_jobs):
            known |= await self._store.load(missing[start : start + self._window_jobs])
        return known

    async def _forget(self) -> None:
        try:
            await self._store.forget_checkpoint(self.name)
        except StoreAway as error:  # the same document will be missed again
            await self._outage.wait(error, self.position)
