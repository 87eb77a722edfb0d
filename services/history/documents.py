"""Keeps one document per job in MongoDB, in step with the ledger.

    window     records of up to 200 ms or 500 changed jobs: a job that changes five times is written once
    write      all changed documents in bulk, then the checkpoint: a crash between the two repeats the window
    repeat     each document knows the last record in it, and skips what it has seen

Everything that goes wrong (MongoDB away, emptied, restored, written by another process) has one remedy: forget what is
in memory and start again from the checkpoint that is in MongoDB. While it is away nothing is read, so nothing piles up.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence

from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.adapters.mongo.store import JobStore, ReaderPosition, StoreAway
from libs.core.projections.history import JobStory, UnknownJob, advance, job_events
from libs.ledger.chain import GENESIS, ChainEntry, Head
from libs.ledger.reader import LedgerReader
from schemas.ledger import JobQueued

log = logging.getLogger("baton.history")

_READ = 64  # records at a time: each may hold hundreds of events
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class StoreChanged(RuntimeError):
    """The checkpoint in MongoDB is not the one that we wrote: it was emptied or restored, or another history runs."""


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
        cache_jobs: int = 20_000,
    ) -> None:
        self.problem = "not read yet"
        self.name = f"documents-{pool}"
        self.position = 0
        self._js = js
        self._pool = pool
        self._store = store
        self._window_s = window_s
        self._window_jobs = window_jobs
        self._cache_jobs = cache_jobs
        self._cache: OrderedDict[str, JobStory] = OrderedDict()
        self._horizon = 0
        self._lag = Gauge("baton_history_documents_lag_records", "ledger records not in MongoDB yet", registry=registry)
        self._written = Counter("baton_history_documents_written", "documents replaced", registry=registry)
        self._restarts = Counter("baton_history_documents_restarts", "starts from the checkpoint", registry=registry)
        self._seconds = Histogram("baton_history_write_seconds", "time to write one window, s", registry=registry)

    async def run(self) -> None:
        """For ever. Raises LedgerStopped only: then the ledger is not the one that the documents were made from."""
        failures = 0
        while True:
            started = self.position
            try:
                await self._follow()
            except StoreAway as error:
                failures = 0 if self.position > started else failures + 1
                if self.problem != str(error):
                    log.warning("documents stop at record %d: %s", self.position, error)
                self.problem = str(error)
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            except StoreChanged as error:
                log.warning("%s; starting again from what MongoDB has", error)
            except UnknownJob as error:
                log.error("MongoDB has lost documents (%s); writing all of them again", error)
                await self._forget()

    async def _follow(self) -> None:
        self._restarts.inc()
        self._cache.clear()
        await self._store.prepare()
        before = await self._store.checkpoint(self.name)
        # Documents may be ahead of the checkpoint, up to here: until then even a job that is queued now may be stored.
        self._horizon = await self._store.last_seq()
        if before is not None and self._horizon < before.changed:
            raise UnknownJob(f"the newest is of record {self._horizon}, there was one of {before.changed}")
        reader = _reader_at(self._js, self._pool, before)
        self.position = reader.position
        try:
            while True:
                entries = await self._window(reader)
                self.problem = reader.problem
                self._lag.set(reader.lag() + len(entries))
                if entries:
                    before = await self._step(reader, entries, before)
        finally:
            await reader.close()

    async def _step(
        self, reader: LedgerReader, entries: Sequence[ChainEntry], before: ReaderPosition | None
    ) -> ReaderPosition:
        """Writes one window: documents, then the checkpoint, which is returned."""
        with self._seconds.time():
            changed = await self._write(entries) or (before.changed if before else 0)
            after = ReaderPosition(reader.head.seq, reader.head.hash, reader.position, changed)
            if not await self._store.move_checkpoint(self.name, before, after):
                raise StoreChanged(f"checkpoint {self.name} is not the one that was written at {self.position}")
        self.position = after.position
        self._lag.set(reader.lag())
        return after

    async def _window(self, reader: LedgerReader) -> list[ChainEntry]:
        entries = await reader.next(_READ, 1.0)
        end = time.monotonic() + self._window_s
        jobs = _touched(entries)
        while entries and len(jobs) < self._window_jobs and (left := end - time.monotonic()) > 0:
            more = await reader.next(_READ, left)
            jobs |= _touched(more)
            entries += more
        return entries

    async def _write(self, entries: Sequence[ChainEntry]) -> int:
        """Folds the records into their jobs' documents and stores those that changed. The last record that changed one,
        or 0."""
        known = await self._known(entries)
        changed: dict[str, JobStory] = {}
        for entry in entries:
            if not entry.valid:
                continue
            for job_id, events in job_events(entry.record).items():
                story = known.get(job_id)
                known[job_id] = new = advance(story, events, entry.record.t_us, entry.seq)
                if new is not story:
                    changed[job_id] = new
        stories = list(changed.values())
        for start in range(0, len(stories), self._window_jobs):
            await self._store.save(stories[start : start + self._window_jobs])
        self._written.inc(len(stories))
        self._remember(known)
        return max((story.document.seq for story in stories), default=0)

    async def _known(self, entries: Sequence[ChainEntry]) -> dict[str, JobStory]:
        """The stories of the jobs in `entries`: from memory, and from MongoDB what is not there."""
        wanted: dict[str, bool] = {}  # job -> whether it may be stored already
        for entry in entries:
            if entry.valid:
                for job_id, events in job_events(entry.record).items():
                    new = isinstance(events[0], JobQueued) and entry.seq > self._horizon
                    wanted.setdefault(job_id, not new)
        known = {job_id: self._cache[job_id] for job_id in wanted if job_id in self._cache}
        missing = [job_id for job_id, stored in wanted.items() if stored and job_id not in known]
        for start in range(0, len(missing), self._window_jobs):
            known |= await self._store.load(missing[start : start + self._window_jobs])
        return known

    def _remember(self, stories: dict[str, JobStory]) -> None:
        for job_id, story in stories.items():
            self._cache.pop(job_id, None)
            if not story.document.state.terminal:
                self._cache[job_id] = story
        while len(self._cache) > self._cache_jobs:
            self._cache.popitem(last=False)

    async def _forget(self) -> None:
        try:
            await self._store.forget_checkpoint(self.name)
        except StoreAway as error:  # the same document will be missed again
            self.problem = str(error)
            await asyncio.sleep(_PAUSES_S[-1])


def _reader_at(js: JetStreamContext, pool: str, checkpoint: ReaderPosition | None) -> LedgerReader:
    if checkpoint is None:
        return LedgerReader(js, pool, GENESIS)
    return LedgerReader(js, pool, Head(checkpoint.seq, checkpoint.hash), checkpoint.position)


def _touched(entries: Sequence[ChainEntry]) -> set[str]:
    return {job_id for entry in entries if entry.valid for job_id in job_events(entry.record)}
