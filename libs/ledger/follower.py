"""Keeps a projection up to date with the ledger: load a snapshot, follow, save one at intervals. Every reader is this loop.

    follower = Follower(js, pool, Meter, name="quota_billing")
    await follower.run(after)         # for ever; `after(entries)` is awaited once per batch, an empty one now and then

A service gives its projection (`libs.ledger.projection`) and what to do after each batch. Where to begin, which records count,
when to save and how far it is are decided here. The order is fixed, because each step relies on those before it:

    start   the newest usable snapshot, or a new projection and the ledger's beginning; `begin` is called with which
    apply   valid records to `apply`, void ones to `skip`, in order, each once
    after   side effects: a crash before or during them repeats the batch, so they must be idempotent
    save    the state after all of that

A snapshot saves time and is never needed. One of another version, a broken one or a failed save costs a longer start, never
the service. Archived records that no snapshot reaches beyond are waited for (`libs.ledger.restoring`). A fault in the *ledger*
ends `run` with an error (LedgerStopped, and whatever `apply` raises). When `apply` raises, the snapshots are deleted too: if
the state was wrong and not the ledger, the next start repairs it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nats.js import JetStreamContext

from libs.bus.cancel import cancel
from libs.bus.decaying_count import DecayingCount
from libs.bus.retry import retry_while_away
from libs.core.state.formats import NEWEST
from libs.ledger.chain import GENESIS, ChainEntry, Head, LedgerStopped
from libs.ledger.projection import LedgerProjection
from libs.ledger.reader import LedgerReader
from libs.ledger.readers import ANY, Declarer
from libs.ledger.restoring import RestoreWait
from libs.ledger.saver import SaveCounters, SnapshotSaver
from libs.ledger.segments import RecordsArchived
from libs.ledger.snapshots import Restored, SnapshotStore
from libs.ports.host import failpoint

log = logging.getLogger("baton.ledger")

_GLANCE_S = 0.05
"""While records are gathered: how often it is looked whether there are enough."""

P = TypeVar("P", bound=LedgerProjection)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class FollowedEntry:
    """One message of the ledger that was taken in; `told` is what `apply` returned, None for a void one."""

    entry: ChainEntry
    told: Any


@dataclass(frozen=True, slots=True)
class Gather:
    """Makes batches larger: after the first records, wait `seconds` for more, or until there are `enough` (None: as many as
    are read at once). With `busy_s` only when the batch before ended no longer ago than that: a record that comes alone is
    not held up; with `busy_events`, too, only while about so many events come in `busy_s`: nor is who sends one job after the
    other, each when the one before has ended. With `busy_seconds` so long when the batch before ended no longer ago than
    `seconds`: records keep coming."""

    seconds: float
    enough: Callable[[Sequence[FollowedEntry]], bool] | None = None
    busy_s: float | None = None
    busy_seconds: float | None = None
    busy_events: int = 0

    def waits_s(self, since_s: float, events: float) -> float:
        """How long, `since_s` after the batch before, when so many `events` came in the last `busy_s`."""
        if self.busy_s is not None and (since_s > self.busy_s or events < self.busy_events):
            return 0.0
        return self.seconds if self.busy_seconds is None or since_s > self.seconds else self.busy_seconds


@dataclass(slots=True)
class FollowerCounters:
    """What a follower has done since it was made. `folded_anew`: starts from the ledger's beginning."""

    records: int = 0
    voids: int = 0
    unknown_events: int = 0
    folded_anew: int = 0


After = Callable[[Sequence[FollowedEntry]], Awaitable[None]]
Begin = Callable[[], Awaitable[None]]


class Follower(Generic[P]):
    """One reader of `pool`. `projection` is the state as of `position`; questions may read it at any time.

    `name` is the snapshot's in the store (one per projection and pool) and the follower's in logs and metrics. A
    projection that keeps its own position (history's documents, whose place is in MongoDB) gives `place` instead: the
    state and where it stands, None for the beginning. It is asked at each start, and nothing is saved here.

    `rest_s`: of a reader that nobody waits for. So long after a record has come it is left alone, and the processors are left
    to those who do what it says; what comes meanwhile is read with it. `busy_rest_s`: the same while records keep coming, that
    is after one that was read no longer ago than that. `hurry` ends either, and gathering.

    `only`: kinds of events; the projection gets these alone, and no other kind need be understood.

    `caught_up` is set once all that was in the ledger at the start has been applied; `began_at` is that last sequence,
    and `resumed_at` the position of the snapshot (0 without).
    """

    def __init__(
        self,
        js: JetStreamContext,
        pool: str,
        kind: type[P],
        *,
        name: str,
        snapshot_every: int = 5000,
        place: Callable[[], Awaitable[Restored[P] | None]] | None = None,
        gather: Gather | None = None,
        rest_s: float = 0.0,
        busy_rest_s: float = 0.0,
        max_batch: int = 256,
        idle_s: float = 1.0,
        only: Collection[str] | None = None,
    ) -> None:
        self._only = only
        self.pool = pool
        self.name = name
        self.projection = kind()
        self.caught_up = asyncio.Event()
        self.began_at = 0
        self.resumed_at = 0
        self.counters = FollowerCounters()
        self._js = js
        self._kind = kind
        self._saver = SnapshotSaver(SnapshotStore(js, pool), name, kind.version, every=snapshot_every)
        self._restore = RestoreWait(js, pool, name, self._newest)
        self._place = place
        self._gather = gather
        self._rest_s, self._busy_rest_s = rest_s, busy_rest_s
        self._max_batch = max_batch
        self._idle_s = idle_s
        self._reader: LedgerReader | None = None
        self._head, self._position = GENESIS, 0
        self._waits_for = "not read yet"
        self._applying = asyncio.Lock()
        self._done_s = float("-inf")  # when the last batch with records was done
        busy_s = gather.busy_s if gather is not None else 0.0
        self._recent_events = DecayingCount(busy_s) if busy_s else DecayingCount()
        self._hurried = asyncio.Event()

    @property
    def saves(self) -> SaveCounters:
        """What became of its snapshots."""
        return self._saver.counters

    @property
    def head(self) -> Head:
        """The last valid record that was applied."""
        return self._head

    @property
    def position(self) -> int:
        """The last sequence that was applied, valid or void. More may have been read while the projection stands still
        (`still`): were that counted, an answer made then would pass for the present until another record comes."""
        return self._position

    @property
    def lag(self) -> int:
        """Records known to be in the ledger and not applied yet."""
        if self._reader is None:
            return 0
        return max(0, self._reader.lag() + self._reader.position - self._position)

    @property
    def behind(self) -> bool:
        """More came than one batch takes: to rest would leave it ever further behind, and this state is old."""
        return self.lag >= self._max_batch

    @property
    def archived(self) -> int:
        """Records that it waits for, because they were archived; 0: none."""
        return self._restore.records

    @property
    def problem(self) -> str:
        """Why the projection is not the ledger's present; "" when it is, or follows closely. For readiness checks."""
        if self._restore.problem or self._reader is None or self._waits_for:
            return self._restore.problem or self._waits_for
        if self._reader.problem:
            return self._reader.problem
        return "" if self.caught_up.is_set() else f"{max(0, self.began_at - self.position)} ledger records to read"

    async def last_seq(self) -> int:
        """The last sequence in the ledger now; a broker that is away is waited for."""
        reader = self._reader if self._reader is not None else LedgerReader(self._js, self.pool)
        return await self._retry_while_away(reader.last_seq)

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """While the block runs nothing is applied, so that the projection may be read in a thread, or across an await."""
        async with self._applying:
            yield

    def hurry(self) -> None:
        """Somebody waits for what it has not read yet."""
        self._hurried.set()

    async def forget(self) -> None:
        """Drops the snapshots: what was made of the projection is lost, and the next `run` folds the ledger anew."""
        await self._saver.distrust()

    async def run(self, after: After | None = None, *, begin: Begin | None = None) -> None:
        """Until cancelled. `begin` is awaited once the projection is loaded, before the first record; once more after a wait
        for archived records.

        Raises LedgerStopped (libs.ledger.chain) when the ledger cannot be read on, and what `apply`, `after`, `begin` and
        `place` raise. May be run again afterwards: it starts anew. A broker that is away is waited for.
        """
        understands = NEWEST if self._only is None else ANY
        declarer = Declarer(self._js, self.pool, self.name, self._standing, understands)
        declaring: asyncio.Task[None] | None = None
        try:
            while True:
                reader = await self._start()
                declaring = declaring or asyncio.create_task(declarer.run(), name=f"declarations of {self.name}")
                if begin is not None:
                    await begin()
                try:
                    await self._follow(reader, after)
                except RecordsArchived as gone:
                    if reader.position != self.resumed_at:
                        raise  # in the midst of its work: the next start may have a newer snapshot
                    await reader.close()
                    await self._restore.over(gone)
        except _CannotFold as unfit:
            error = unfit.__cause__ or unfit
            error.add_note(f"{self.name} cannot fold record {unfit.seq} of pool {self.pool}")
            await self._distrust()
            raise error from error.__cause__
        finally:
            if declaring is not None:
                await cancel(declaring)
                await declarer.leave()
            await self._stop()

    # ------------------------------------------------------------------------------------------------------- start

    async def _start(self) -> LedgerReader:
        self.caught_up.clear()
        self._waits_for = "not read yet"
        found = await self._place() if self._place is not None else await self._retry_while_away(self._from_snapshot)
        if found is None:
            self.counters.folded_anew += 1
            found = Restored(GENESIS, 0, self._kind())
        self.projection, self._head = found.value, found.head
        self._position = self.resumed_at = found.position
        reader = LedgerReader(self._js, self.pool, found.head, found.position, self._only)
        self.began_at = await self._retry_while_away(reader.last_seq)
        self._reader = reader
        self._waits_for = ""
        return reader

    async def _from_snapshot(self) -> Restored[P] | None:
        return await self._saver.load(self._kind.load)

    async def _retry_while_away(self, ask: Callable[[], Awaitable[A]]) -> A:
        """What the broker answers, asked again while it is away."""

        def away(error: Exception, failures: int) -> None:
            if not failures:
                log.warning("%s of pool %s: the broker does not answer: %r", self.name, self.pool, error)
            if self._waits_for:
                self._waits_for = f"the broker does not answer: {error!r}"

        return await retry_while_away(ask, away)

    async def _newest(self) -> int:
        return await self._saver.newest() if self._place is None else 0

    # ------------------------------------------------------------------------------------------------------ follow

    async def _follow(self, reader: LedgerReader, after: After | None) -> None:
        self._note_place(reader)  # where nothing is to be read the first batch may be long in coming
        while True:
            steps = await self._batch(reader)
            self._note_place(reader)
            failpoint("follower.applied")
            if after is not None:
                await after(steps)
            if steps:
                self._done_s = asyncio.get_running_loop().time()
            failpoint("follower.done")
            await self._save_when_due()

    def _note_place(self, reader: LedgerReader) -> None:
        if reader.position >= self.began_at:
            self.caught_up.set()

    async def _batch(self, reader: LedgerReader) -> list[FollowedEntry]:
        if (self._rest_s or self._busy_rest_s) and self.caught_up.is_set() and not self.behind:
            await self._rest(reader)
        steps = await self._apply(await reader.next(self._max_batch, self._idle_s))
        if steps and self._gather is not None:
            await self._more(reader, self._gather, steps)
        if steps:
            self._hurried.clear()
        return steps

    async def _more(self, reader: LedgerReader, gather: Gather, steps: list[FollowedEntry]) -> None:
        """Adds what comes while it gathers to `steps`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = now + gather.waits_s(now - self._done_s, self._came(steps, now))
        while not self._enough(gather, steps) and not self._hurried.is_set() and (left := end - loop.time()) > 0:
            if not reader.lag():
                await asyncio.sleep(min(left, _GLANCE_S))  # one turn for all that comes meanwhile, not one for each
            try:
                more = await reader.next(self._max_batch, max(0.0, end - loop.time()) if reader.lag() else 0.0)
            except LedgerStopped:
                break  # what came before counts; the next call meets the fault again
            steps += (new := await self._apply(more))
            self._came(new, loop.time())

    def _came(self, steps: Sequence[FollowedEntry], now: float) -> float:
        """How many events came lately, with those of `steps`, which came just now."""
        return self._recent_events.add(sum(len(step.entry.record.events) for step in steps), now)

    async def _rest(self, reader: LedgerReader) -> None:
        if await reader.come(self._idle_s):
            busy = asyncio.get_running_loop().time() - self._done_s < self._busy_rest_s
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._rest_s, self._busy_rest_s) if busy else self._rest_s):
                    await self._hurried.wait()

    def _enough(self, gather: Gather, steps: Sequence[FollowedEntry]) -> bool:
        return gather.enough(steps) if gather.enough is not None else len(steps) >= self._max_batch

    async def _apply(self, entries: Sequence[ChainEntry]) -> list[FollowedEntry]:
        async with self._applying:
            return self._applied(entries)

    def _applied(self, entries: Sequence[ChainEntry]) -> list[FollowedEntry]:
        """Never awaits, so that other tasks see the projection only between two batches."""
        steps = []
        for entry in entries:
            told = None
            if entry.valid:
                try:
                    told = self.projection.apply(entry.record, entry.seq)
                except Exception as error:
                    raise _CannotFold(entry.seq) from error
                self._head = entry.head
                self._saver.folded(len(entry.record.events), entry.size)
                self.counters.records += 1
                self.counters.unknown_events += len(entry.unknown)
            else:
                self.projection.skip(entry.seq)
                self.counters.voids += 1
                log.warning("%s of pool %s: record %d is void: it %s", self.name, self.pool, entry.seq, entry.why)
            self._position = entry.seq
            steps.append(FollowedEntry(entry, told))
        return steps

    def _standing(self) -> tuple[int, int]:
        """Where it has read to, and where a restart would go on: at its place, or its last snapshot."""
        return self.position, self.position if self._place is not None else self._saver.stored

    # -------------------------------------------------------------------------------------------------------- save

    async def _save_when_due(self) -> None:
        """Following waits while the state is packed (other tasks go on between its parts), not while it is stored."""
        if self._place is None and self._saver.due(self.position):
            await self._saver.save(self.head, self.position, self.projection.dump())

    async def _distrust(self) -> None:
        """Drops the snapshots, because a record did not fit the state."""
        if self._place is None:
            await self._saver.distrust()

    async def _stop(self) -> None:
        """Deletes the consumer."""
        await self._saver.close()
        if self._reader is not None:
            await self._reader.close()


class _CannotFold(Exception):
    """`apply` raised at `seq`; the cause is what it raised."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq
