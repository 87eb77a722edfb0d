"""Writes a pool's ledger: takes the inbox in order, has its decider decide, commits with one acknowledged publish.

The naive loop is: read inputs, decide, append, acknowledge the inputs. A crash between the last two decides twice. Here
there is nothing to acknowledge: a record says up to which input it decides, so consuming and deciding commit together,
and whoever starts (or is in doubt) folds the ledger and goes on behind the last record. No lock and no election: two
writers may run at any time, the broker refuses the one with the stale view, and should it ever accept both, the chain
makes the second record void for everybody.

Two writers that both decide everything would be correct and twice as slow. So a writer that was refused *follows*: it
folds what the other one commits, and takes over when an input has waited for `takeover_s` while the ledger stood still.
That is a matter of speed alone; no safety depends on any clock.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from pydantic import ValidationError

from libs.bus.patience import patiently
from libs.core.state.clock import LedgerClock
from libs.core.state.formats import NEWEST, may_emit
from libs.ledger.append import AppendOutcome, append
from libs.ledger.chain import GENESIS, ChainEntry, Head, LedgerStopped, encode
from libs.ledger.culprits import Culprits
from libs.ledger.dead import bury
from libs.ledger.decider import Counters, D, DeciderFactory, OnCommit, OnRefold
from libs.ledger.inputs import read_input
from libs.ledger.pieces import Piece, pieces
from libs.ledger.reader import LedgerReader
from libs.ledger.readers import Declarer
from libs.ledger.rolling import Rolling
from libs.ledger.saver import SaveCounters, SnapshotSaver
from libs.ledger.segments import name_of, readable, stored_at
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.tail import Stored, Tail
from libs.ledger.timing import timed
from libs.ports.host import failpoint
from schemas.inbox import Tick
from schemas.ledger import LedgerEvent, LedgerRecord, SegmentSealed
from schemas.subjects import inbox_stream

log = logging.getLogger("baton.ledger")

A = TypeVar("A")

MAX_RECORD_BYTES = 900 * 1024
"""A decision that is larger takes several records."""

_HEADER_BYTES = 1024
_RECORD_BYTES = 2048  # of a record beside its events: what its clock says, mostly
_INPUT_BYTES = 384 * 1024  # of one decision; records are about as large as what they decide
_MAX_SKIPPED = 10_000  # inputs without a record, after which an empty one is written: bounds what a restart reads again
_BUSY_S = 0.02  # inputs that come sooner than this after a commit are worth waiting for more of them
_ASK_S = 1.0  # how often a writer without commits asks whether somebody else wrote
_TICK_PATIENCE = 10  # ticks alone call for a takeover this many times later
_ROLL_AGAIN_S = 30.0  # a roll for which there was no room, or that was overtaken, is tried again after so long
_ROLL_SOON_S = 1.0  # one in which the broker did not answer: it may be back
_FULL_PAUSES_S = (0.5, 1.0, 2.0, 5.0)


class _Encoded(NamedTuple):
    record: LedgerRecord
    payload: bytes
    digest: str


class LedgerWriter(Generic[D]):
    """The writer of `pool`. `decider` is for read-only questions; it is replaced by a refold, and while a commit is under
    way it shows what is about to be committed. `head`, `position` (last sequence read) and `decided_to` (inbox sequence)
    say how far the log has come.

    `on_commit` hooks are awaited after each own commit, in order, before the next decision: keep them short.
    `on_refold` hooks are awaited whenever this writer has a state whose earlier commits it may not have announced (at
    the start, after doubt, at a takeover): tell everything that follows from the state. A hook that raises is logged and
    counted, and deciding goes on: what is committed stays so, whoever heard of it.
    """

    def __init__(
        self,
        js: JetStreamContext,
        pool: str,
        decider_factory: DeciderFactory[D],
        *,
        writer_id: str,
        snapshots: SnapshotStore | None = None,
        snapshot_name: str = "placement",
        snapshot_every: int = 5000,
        batch: int = 256,
        linger_ms: float = 2.0,
        takeover_s: float = 1.0,
        append_timeout_s: float = 5.0,
        allowed: Callable[[], int] = lambda: NEWEST,
        on_commit: Sequence[OnCommit[D]] = (),
        on_refold: Sequence[OnRefold[D]] = (),
    ) -> None:
        self.pool = pool
        self.writer_id = writer_id
        self.decider = decider_factory.new()
        self.head = GENESIS
        self.position = 0
        self.decided_to = 0  # inbox sequence; `decider` may be ahead of it while a commit is under way
        self.recorded_to = 0  # inbox sequence of the last record: what a fold of the ledger goes on behind
        self.settled = False
        """Whether `decider` shows what is committed, and nothing else."""
        self.role = "starting"
        self.ready = asyncio.Event()
        self.counters = Counters()
        self.on_commit = list(on_commit)
        self.on_refold = list(on_refold)
        self._allowed = allowed  # the newest format of the ledger that may be written
        self._declarer = Declarer(js, pool, snapshot_name, lambda: (self.position, self._resume()))
        self._js = js
        self._rolling = Rolling(js, pool)
        self._roll_due = False
        self._factory = decider_factory
        self._saver = (
            SnapshotSaver(snapshots, snapshot_name, decider_factory.version, every=snapshot_every)
            if snapshots is not None
            else None
        )
        self._batch = batch
        self._limit = batch
        self._linger_s = linger_ms / 1000
        self._takeover_s = takeover_s
        self._append_timeout_s = append_timeout_s
        self._unwritten = 0  # inputs skipped since the last record
        self._culprits = Culprits(pool)
        self._voids_to = 0
        self._clock: LedgerClock | None = None  # None: as the last record says, which was not asked yet
        self._last_writer = ""
        self._no_roll_before = 0.0
        self._full = ""
        self._full_turns = 0
        self._confirmed = 0.0  # when the stream was last known to hold nothing but what we have read
        self._reader: LedgerReader | None = None
        self._inbox: Tail | None = None

    @property
    def problem(self) -> str:
        """Why nothing can be decided at the moment; "" when all is well. For readiness checks."""
        tails = (self._inbox, self._reader)
        return self._full or next((tail.problem for tail in tails if tail is not None and tail.problem), "")

    @property
    def saves(self) -> SaveCounters:
        """What became of its snapshots."""
        return self._saver.counters if self._saver is not None else SaveCounters()

    @property
    def inbox_lag(self) -> int:
        """Inbox messages known to wait for a decision."""
        return self._inbox.lag if self._inbox is not None else 0

    async def run(self) -> None:
        """Until cancelled. May be run again afterwards: everything starts from the log.

        Raises LedgerStopped (see its subclasses) when going on would be wrong; what the decider raises, too.
        """
        declaring = asyncio.create_task(self._declarer.run(), name=f"declarations of {self.writer_id}")
        try:
            while True:
                await self._refold()
                if self._last_writer not in ("", self.writer_id) and self.counters.refused:
                    await self._follow()
                await self._lead()
        finally:
            self.role = "stopped"
            declaring.cancel()
            await self._declarer.leave()
            for tail in (self._inbox, self._reader):
                if tail is not None:
                    await tail.close()
            if self._saver is not None:
                await self._saver.close()

    def _resume(self) -> int:
        return self._saver.stored if self._saver is not None else 0

    # ------------------------------------------------------------------------------------------------------ refold

    async def _refold(self) -> None:
        """The state is what the log says: the last snapshot, and every valid record after it."""
        self.role = "folding"
        self.counters.refolds += 1
        decider, reader = await self._patiently(self._begin)
        self._reader = reader
        try:
            await self._read(decider, reader)
        except (LedgerStopped, NatsError, OSError):
            raise
        except Exception:
            if self._saver is not None:
                await self._saver.distrust()
            raise
        self.decider, self.head, self.position = decider, reader.head, reader.position
        self.decided_to = self.recorded_to = decider.inbox_seq
        self._clock = self._clock if self._clock is not None else await self._stored_clock()
        self._unwritten = 0
        self.settled = True
        await self._announce()

    async def _read(self, decider: D, reader: LedgerReader) -> None:
        """Folds up to the ledger's present end. Where a writer has sealed a segment and got no further, it is opened first."""
        settled = reader.head.seq
        while True:
            last = await self._patiently(reader.last_seq)
            async for entries in reader.read_to(last):
                self._fold(decider, entries)
                if reader.sealed:
                    break
            if not reader.sealed or reader.head.seq == settled:
                return
            settled = reader.head.seq
            await self._patiently(partial(self._rolling.settle, settled, reader.position))

    async def _patiently(self, ask: Callable[[], Awaitable[A]]) -> A:
        """What the broker answers, asked again while it is away."""

        def away(error: Exception, failures: int) -> None:
            log.warning("ledger of pool %s: the broker does not do it: %r", self.pool, error)

        return await patiently(ask, away)

    async def _stored_clock(self) -> LedgerClock:
        """The clock as the last valid record says it: a snapshot of the state has none."""
        if self.head.seq:
            try:
                stored = await stored_at(self._js, self.pool, self.head.seq)
                return LedgerClock.of(LedgerRecord.model_validate_json(stored or b""))
            except ValidationError as error:
                log.warning("ledger of pool %s: record %d says no time: %r", self.pool, self.head.seq, error)
        return LedgerClock(self.decider.t_us)

    async def _begin(self) -> tuple[D, LedgerReader]:
        decider, reader = await self._from_snapshot()
        await self._rolling.settle(reader.head.seq, reader.position)
        return decider, reader

    async def _from_snapshot(self) -> tuple[D, LedgerReader]:
        if self._reader is not None:
            await self._reader.close()
        self._clock = None
        if self._saver is not None:
            found = await self._saver.load(self._factory.load)
            if found is not None:
                return found.value, LedgerReader(self._js, self.pool, found.head, found.position)
        return self._factory.new(), LedgerReader(self._js, self.pool)

    def _fold(self, decider: D, entries: Sequence[ChainEntry]) -> None:
        for entry in entries:
            if entry.valid:
                decider.apply(entry.record, entry.seq)
                self._clock = LedgerClock.of(entry.record)
                self._last_writer = entry.record.writer
            elif entry.seq > self._voids_to:  # a refold sees old ones again
                self.counters.voids += 1
                self._voids_to = entry.seq
                log.error("ledger of pool %s: record %d is void: it %s", self.pool, entry.seq, entry.why)

    async def _announce(self) -> None:
        failpoint("writer.folded")
        for hook in self.on_refold:
            await self._call(hook(self.decider))
        self.ready.set()

    async def _call(self, hook: Awaitable[None]) -> None:
        try:
            await hook
        except Exception:
            self.counters.hook_failures += 1
            log.exception("ledger of pool %s: what follows a commit at %d failed", self.pool, self.position)

    # -------------------------------------------------------------------------------------------------------- lead

    async def _lead(self) -> None:
        """Decide and commit, until the log must be asked again."""
        self.role = "leading"
        loop = asyncio.get_running_loop()
        self._confirmed = loop.time()
        if self._reader is not None:
            await self._reader.close()
        await self._patiently(partial(self._rolling.settle, self.head.seq, self.position))
        if self._full and not await self._make_room():
            return
        self._inbox = inbox = Tail(self._js, inbox_stream(self.pool), self.decider.inbox_seq, may_expire=True)
        try:
            while True:
                stored = await self._gather(inbox)
                outcome = await self._decide(stored) if stored else AppendOutcome.SKIPPED
                if outcome is AppendOutcome.COMMITTED:
                    self._confirmed = loop.time()
                elif outcome is AppendOutcome.FULL:
                    await self._wait_for_room()
                    return
                elif outcome is not AppendOutcome.SKIPPED or await self._overtaken():
                    return
                if self._roll_due and not await self._roll():
                    return
        finally:
            self.counters.expired += inbox.expired
            await inbox.close()

    async def _wait_for_room(self) -> None:
        """The state has moved and must be folded again, which costs much: not more often than every few seconds."""
        self._full = "the ledger is full: give its stream more room (max_bytes)"
        await asyncio.sleep(_FULL_PAUSES_S[min(self._full_turns, len(_FULL_PAUSES_S) - 1)])
        self._full_turns += 1

    async def _gather(self, inbox: Tail) -> list[Stored]:
        """The inputs of the next decision: what waits already and, when it is busy, what comes within the linger."""
        stored = await inbox.messages(self._limit, _ASK_S, max_bytes=_INPUT_BYTES)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not stored or now - self._confirmed > _BUSY_S:
            return stored  # a lone message is not held up for company
        size = sum(len(s.payload) for s in stored)
        while len(stored) < self._limit and size < _INPUT_BYTES and (left := now + self._linger_s - loop.time()) > 0:
            more = await inbox.messages(self._limit - len(stored), left, max_bytes=_INPUT_BYTES - size)
            stored += more
            size += sum(len(s.payload) for s in more)
        return stored

    async def _decide(self, stored: Sequence[Stored]) -> AppendOutcome:
        """One decision about `stored`, committed if it has events. The decider has moved whatever the outcome is."""
        items = [self._culprits.read(message) for message in stored]
        before = self._clock if self._clock is not None else LedgerClock(self.decider.t_us)
        clock, found = timed(before, items)
        self._clock, self.settled = clock, False
        self.counters.clock_jumps += len(found)
        jumps = found if may_emit("clock.jumped", self._allowed()) else []
        try:
            events = [*jumps, *self.decider.decide(items, clock.t_us)]
            self._unwritten += len(stored)
            if not events and self._unwritten < _MAX_SKIPPED:
                self.counters.inputs += len(stored)
                self.counters.skipped += len(stored)
                self.decided_to = stored[-1].seq
                self._progressed()
                return AppendOutcome.SKIPPED
            first, rest = self._records(events, len(jumps), [message.seq for message in stored], clock)
        except Exception as error:
            if self._culprits.blame(error, stored):
                self._limit = len(stored) // 2
            self.counters.faults = self._culprits.faults
            return AppendOutcome.UNDECIDED
        # Before the commit: afterwards a crash could leave the rejection without its copy.
        teams = {
            item.seq: getattr(item.message, "team", "") for item in items
        }  # whose requests they were, admission says
        for message, reason, stack in self._culprits.rejected(stored, items, events, self.decider.faults):
            self.counters.rejected += 1
            await bury(self._js, inbox_stream(self.pool), message, reason, stack, teams.get(message.seq, ""))
        return await self._commit(first, rest, clock, len(stored))

    def _records(
        self, events: Sequence[LedgerEvent], before: int, inputs: Sequence[int], clock: LedgerClock
    ) -> tuple[_Encoded, list[Piece]]:
        """The first record of a decision, and what the others are to say, if one cannot hold all. `before`: events before
        those that the decider's record ends count. Raises InputTooLarge."""
        first, rest = self._encode(Piece(tuple(events), inputs[-1]), clock), list[Piece]()
        most = self._js._nc.max_payload - _HEADER_BYTES
        wanted = min(MAX_RECORD_BYTES, most)
        if len(first.payload) > wanted:
            rest = pieces(
                events,
                [(before + end.events, end.inbox_seq) for end in self.decider.record_ends],
                inputs,
                decided_to=self.decided_to,
                wanted=wanted - _RECORD_BYTES,
                most=most - _RECORD_BYTES,
            )
            first = self._encode(rest.pop(0), clock)
        return first, rest

    def _encode(self, piece: Piece, clock: LedgerClock) -> _Encoded:
        record = LedgerRecord(
            pool=self.pool,
            prev_seq=self.head.seq,
            prev_hash=self.head.hash,
            inbox_seq=piece.inbox_seq,
            t_us=clock.t_us,
            wall_us=clock.wall_us,
            clock=clock.mark,
            more=piece.more,
            writer=self.writer_id,
            events=piece.events,
        )
        return _Encoded(record, *encode(record))

    async def _commit(self, first: _Encoded, rest: Sequence[Piece], clock: LedgerClock, inputs: int) -> AppendOutcome:
        """One record after the other. Nobody hears of any before all are stored: the decider shows all of them."""
        made, left, look = first, deque(rest), False
        committed: list[tuple[int, LedgerRecord]] = []
        while True:
            failpoint("writer.decided")
            outcome = await append(
                self._js, self._rolling.subject, made.payload, made.digest, self.position, self._append_timeout_s
            )
            failpoint("writer.answered")
            if outcome is not AppendOutcome.COMMITTED:
                self.counters.refused += outcome is AppendOutcome.REFUSED
                self.counters.unclear += outcome is not AppendOutcome.REFUSED
                return outcome
            self._full, self._full_turns = "", 0
            self.position += 1
            self.head = Head(self.position, made.digest)
            self._last_writer = self.writer_id
            self.decided_to = self.recorded_to = made.record.inbox_seq
            self.counters.commits += 1
            self.counters.events += len(made.record.events)
            committed.append((self.position, made.record))
            look |= self._rolling.wrote(len(made.payload))
            if not left:
                break
            made = self._encode(left.popleft(), clock)
        self._unwritten = 0
        self.counters.inputs += inputs
        self._progressed()
        for seq, record in committed:
            for hook in self.on_commit:
                await self._call(hook(seq, record, self.decider))
        failpoint("writer.told")
        if self._saver is not None and self._saver.due(self.position):
            # Just committed, so the decider is exactly what the log up to `position` folds to; its parts stay so.
            self._saver.start(self.head, self.position, self.decider.dump())
        if look:  # `_overtaken` looks as well, when there is nothing to commit
            with suppress(NatsError, TimeoutError, OSError):
                self._roll_due = await self._rolling.look()
        return AppendOutcome.COMMITTED

    def _progressed(self) -> None:
        self.counters.faults = self._culprits.faults
        self._culprits.progressed(self.decided_to)
        self._limit = min(self._batch, self._limit * 2)
        self.settled = True

    async def _overtaken(self) -> bool:
        """Whether somebody else wrote while we had nothing to commit. Without asking, a writer that was paused for long
        would answer questions from an old state until its next commit is refused."""
        now = asyncio.get_running_loop().time()
        if now - self._confirmed < _ASK_S:
            return False
        self._confirmed = now
        try:
            info = await self._js.stream_info(self._rolling.open)
        except (NatsError, TimeoutError, OSError):
            return False
        self._roll_due = self._rolling.due(info)
        if info.state.last_seq == self.position:
            return False
        self.counters.refused += 1
        return True

    # -------------------------------------------------------------------------------------------------------- roll

    async def _make_room(self) -> bool:
        """Rolls because a record did not fit, however full the segment is; False when the log must be asked again."""
        with suppress(NatsError, TimeoutError, OSError):
            if (await self._js.stream_info(self._rolling.open)).state.messages:
                return await self._roll()
        return True  # an empty one: the next would be no larger

    async def _roll(self) -> bool:
        """Goes on in another segment; False when the log must be asked again. Where there is no room for it, in this one."""
        self._roll_due = False
        loop = asyncio.get_running_loop()
        if loop.time() < self._no_roll_before or not may_emit("segment.sealed", self._allowed()):
            return True
        self._no_roll_before = loop.time() + _ROLL_AGAIN_S
        first = self.position + 2
        try:
            if not await self._rolling.stage(first):
                return True
            this = (await readable(self._js, self.pool))[-1].first
            seal = SegmentSealed(first_seq=this, next=name_of(self.pool, first))
            clock = self._clock or LedgerClock(self.decider.t_us)
            sealing = self._encode(Piece((seal,), self.decided_to), clock)
            if await self._commit(sealing, [], clock, 0) is not AppendOutcome.COMMITTED:
                return False
            await self._rolling.finish(self.head.seq)
        except ConnectionClosedError:
            raise
        except (NatsError, TimeoutError, OSError) as error:
            log.warning(
                "ledger of pool %s: the roll into %s is not done yet: %r", self.pool, name_of(self.pool, first), error
            )
            self._no_roll_before = loop.time() + _ROLL_SOON_S
            return False
        self._no_roll_before = 0.0
        self._roll_due = False  # which the seal's commit may have said of the segment that it ended
        return True

    # ------------------------------------------------------------------------------------------------------ follow

    async def _follow(self) -> None:
        """Fold what the other writer commits, until it seems to have stopped."""
        self.role = "following"
        log.info("ledger of pool %s: %s follows %s", self.pool, self.writer_id, self._last_writer)
        loop = asyncio.get_running_loop()
        reader = self._reader
        assert reader is not None
        self._inbox = inbox = Tail(self._js, inbox_stream(self.pool), self.decider.inbox_seq, may_expire=True)
        waiting: deque[tuple[int, float]] = deque()  # inputs other than ticks: (sequence, when first seen)
        moved = loop.time()
        try:
            while True:
                if entries := await reader.next(256, min(0.1, max(0.01, self._takeover_s / 4))):
                    self._fold(self.decider, entries)
                    self.head, self.position = reader.head, reader.position
                    self.decided_to = self.recorded_to = self.decider.inbox_seq
                    moved = loop.time()
                now = loop.time()
                for message in await inbox.messages(256, 0.0) if len(waiting) < 4096 else ():
                    if not isinstance(read_input(message, self.pool).message, Tick):
                        waiting.append((message.seq, now))
                while waiting and waiting[0][0] <= self.decider.inbox_seq:
                    waiting.popleft()
                still = now - moved
                undecided = inbox.position > self.decider.inbox_seq
                if (waiting and min(still, now - waiting[0][1]) > self._takeover_s) or (
                    undecided and still > _TICK_PATIENCE * self._takeover_s
                ):
                    break
        finally:
            await inbox.close()
        self.counters.takeovers += 1
        log.warning("ledger of pool %s: %s takes over from %s", self.pool, self.writer_id, self._last_writer)
        await self._announce()
