"""Writes a pool's ledger: takes the inbox in order, has its decider decide, commits with one acknowledged publish.

The naive loop is: read inputs, decide, append, acknowledge the inputs. A crash between the last two decides twice. Here there
is nothing to acknowledge: a record names the last input that it decides, so consuming and deciding commit together, and a
writer that starts (or is in doubt) folds the ledger and continues behind the last record. No lock and no election: two writers
may run at any time, the broker refuses the one with the stale view, and should it ever accept both, the hash chain makes the
second record void for every reader.

Two writers that both decide everything would be correct and twice as slow. So a writer that was refused *follows*: it folds
what the other one commits, and takes over when an input has waited for `takeover_s` without a new record. That affects speed
alone; no safety depends on any clock.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Generic

from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext

from libs.bus.cancel import cancel
from libs.bus.messages import payload_room
from libs.bus.retry import UNAVAILABLE
from libs.core.state.formats import FIRST, NEWEST, may_emit
from libs.ledger.append import AppendOutcome, append
from libs.ledger.batches import InputBatches, ends_batch
from libs.ledger.chain import Head, remember
from libs.ledger.dead import bury
from libs.ledger.decider import Counters, D, DeciderFactory, OnCommit, OnRefold
from libs.ledger.folded import EncodedRecord, FoldedLedger
from libs.ledger.inbox_lag import InboxLag
from libs.ledger.inputs import InboxItem
from libs.ledger.pieces import RECORD_BYTES, Piece, pieces
from libs.ledger.poison import PoisonInputs
from libs.ledger.readers import Declarer
from libs.ledger.rolling import Rolling
from libs.ledger.saver import SaveCounters, SnapshotSaver
from libs.ledger.sealer import unknown_ledger
from libs.ledger.segments import name_of, readable
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.standby import follow
from libs.ledger.tail import Stored, Tail
from libs.ports.host import failpoint, present_host
from schemas.inbox import ClosePeriod
from schemas.ledger import LedgerEvent, LedgerRecord, SegmentSealed
from schemas.subjects import inbox_stream

log = logging.getLogger("baton.ledger")

MAX_RECORD_BYTES = 900 * 1024
"""A decision that is larger takes several records."""

_SPAN_US = 1_000_000  # in which those of one decision were stored: it has one time, until which is billed what they end
_MAX_SKIPPED = 10_000  # inputs without a record, after which an empty one is written: bounds what a restart reads again
_ASK_S = 1.0  # how often a writer without commits asks whether somebody else wrote
_ROLL_AGAIN_S = 30.0  # a roll for which there was no room, or that was overtaken, is tried again after so long
_ROLL_SOON_S = 1.0  # one in which the broker did not answer: it may be back
_FULL_PAUSES_S = (0.5, 1.0, 2.0, 5.0)


class LedgerWriter(Generic[D]):
    """The writer of `pool`. What the ledger says is `libs.ledger.folded`; here is what becomes of it.

    `allowed` says which format all readers understand (`libs.core.state.formats`); the decider asks `format`, as each record
    that the writer makes declares it.

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
        linger_ms: float = 10.0,
        takeover_s: float = 1.0,
        append_timeout_s: float = 5.0,
        allowed: Callable[[], int] = lambda: NEWEST,
        on_commit: Sequence[OnCommit[D]] = (),
        on_refold: Sequence[OnRefold[D]] = (),
    ) -> None:
        self.pool = pool
        self.writer_id = writer_id
        self.settled = False
        """Whether `decider` shows what is committed, and nothing else."""
        self.role = "starting"
        self.ready = asyncio.Event()
        self.counters = Counters()
        self.on_commit = list(on_commit)
        self.on_refold = list(on_refold)
        self._allowed = allowed
        self._format = FIRST
        """That of the decision under way: all of its records declare it."""
        self._declarer = Declarer(js, pool, snapshot_name, lambda: (self.position, self._resume()))
        self._js = js
        self._rolling = Rolling(js, pool)
        self._roll_due = False
        self._saver = (
            SnapshotSaver(snapshots, snapshot_name, decider_factory.version, every=snapshot_every)
            if snapshots is not None
            else None
        )
        self._ledger = FoldedLedger(
            js, pool, decider_factory, rolling=self._rolling, saver=self._saver, counters=self.counters
        )  # fmt: skip
        self._takeover_s = takeover_s
        self._append_timeout_s = append_timeout_s
        self._unwritten = 0  # inputs skipped since the last record
        self._poison = PoisonInputs(pool)
        self._batches = InputBatches(batch, linger_ms / 1000, self._poison.read)
        self._lag = InboxLag(js, inbox_stream(pool))
        self._no_roll_before = 0.0
        self._full = ""
        self._full_turns = 0
        self._confirmed = 0.0  # when the stream was last known to hold nothing but what we have read
        self._inbox: Tail | None = None

    @property
    def decider(self) -> D:
        """For read-only questions. A refold replaces it; while a commit is under way it shows what is about to be committed."""
        return self._ledger.decider

    @property
    def head(self) -> Head:
        """The last valid record."""
        return self._ledger.head

    @property
    def position(self) -> int:
        """The last sequence that was read."""
        return self._ledger.position

    @property
    def decided_to(self) -> int:
        """The last inbox sequence that is decided; `decider` may be ahead of it while a commit is under way."""
        return self._ledger.decided_to

    @property
    def recorded_to(self) -> int:
        """The inbox sequence of the last record: what a fold of the ledger goes on behind."""
        return self._ledger.recorded_to

    @property
    def format(self) -> int:
        """The newest format of the ledger that may be written now. One that a record declares is there for good, whatever this
        process has been told of its readers."""
        return max(self._allowed(), self._ledger.format)

    @property
    def problem(self) -> str:
        """Why nothing can be decided at the moment; "" when all is well. For readiness checks."""
        tails = (self._inbox, self._ledger.reader)
        return (
            self._ledger.restore.problem
            or self._full
            or next((tail.problem for tail in tails if tail is not None and tail.problem), "")
        )

    @property
    def archived(self) -> int:
        """Records that it waits for, because they were archived; 0: none."""
        return self._ledger.restore.records

    @property
    def saves(self) -> SaveCounters:
        """What became of its snapshots."""
        return self._saver.counters if self._saver is not None else SaveCounters()

    async def run(self) -> None:
        """Until cancelled. May be run again afterwards: everything starts from the log.

        Raises LedgerStopped (see its subclasses) when going on would be wrong; what the decider raises, too.
        """
        declaring = asyncio.create_task(self._declarer.run(), name=f"declarations of {self.writer_id}")
        try:
            while True:
                await self._refold()
                if self._ledger.last_writer not in ("", self.writer_id) and self.counters.refused:
                    await self._follow()
                await self._lead()
        finally:
            self.role = "stopped"
            await cancel(declaring)
            await self._declarer.leave()
            if self._inbox is not None:
                await self._inbox.close()
            await self._ledger.close()
            if self._saver is not None:
                await self._saver.close()

    def _resume(self) -> int:
        return self._saver.stored if self._saver is not None else 0

    # ------------------------------------------------------------------------------------------------------ refold

    async def _refold(self) -> None:
        """Folds the state from the log anew, and announces it."""
        self.role = "folding"
        await self._ledger.refold()
        self._unwritten = 0
        self.settled = True
        await self._announce()

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
        await self._ledger.close()
        await self._ledger.settle()
        if self._full and not await self._make_room():
            return
        stream, after = inbox_stream(self.pool), self.decider.inbox_seq
        self._inbox = inbox = Tail(self._js, stream, after, may_expire=True, span_us=_SPAN_US, ends=ends_batch)
        try:
            while True:
                stored = await self._batches.gather(inbox, _ASK_S)
                outcome = await self._decide(inbox, stored) if stored else AppendOutcome.SKIPPED
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

    async def _decide(self, inbox: Tail, stored: list[Stored]) -> AppendOutcome:
        """One decision about `stored`, committed if it has events. The decider's state has changed whatever the outcome is."""
        items, clock, found = await self._batches.until_tick(inbox, stored, self._ledger.clock, _ASK_S)
        self._log_unknown(items)
        for place, item in enumerate(items):
            if isinstance(item.message, ClosePeriod):
                looks = partial(unknown_ledger, self._js, self.pool, self.head, item.message.period)
                why = await self._ledger.retry_while_away(looks)
                items[place] = replace(item, message=None, error=why) if why else item
        far = await self._lag.is_far(stored[-1].time_us)
        self.counters.late += far
        self._ledger.clock, self.settled = clock, False
        self.counters.clock_jumps += len(found)
        self._format = self.format
        jumps = found if may_emit("clock.jumped", self._format) else []
        try:
            decided = self.decider.decide(items, clock.t_us, behind=far or clock.is_behind, jumps=jumps)
            events = [*jumps, *decided]
            self._batches.recent_events.add(len(events), asyncio.get_running_loop().time())
            self._unwritten += len(stored)
            if not events and self._unwritten < _MAX_SKIPPED:
                self.counters.inputs += len(stored)
                self.counters.skipped += len(stored)
                self._ledger.decided_to = stored[-1].seq
                self._progressed()
                return AppendOutcome.SKIPPED
            first, rest = self._records(events, len(jumps), [message.seq for message in stored])
        except Exception as error:
            if self._poison.blame(error, stored):
                self._batches.halve(len(stored))
            self.counters.faults = self._poison.faults
            return AppendOutcome.UNDECIDED
        # Before the commit: afterwards a crash could leave the rejection without its copy.
        teams = {
            item.seq: getattr(item.message, "team", "") for item in items
        }  # whose requests they were, admission says
        rejected = self._poison.rejected(stored, events, self.decider.faults)
        if rejected and await self._moved():  # whoever wrote may have taken what an old state makes us reject
            return AppendOutcome.REFUSED
        for message, reason, stack in rejected:
            self.counters.rejected += 1
            await bury(self._js, inbox_stream(self.pool), message, reason, stack, teams.get(message.seq, ""))
        return await self._commit(first, rest, len(stored))

    def _log_unknown(self, items: Sequence[InboxItem]) -> None:
        """Logs unknown kinds once, because a newer agent sends them again and again; the counter has the rest."""
        for item in items:
            if item.unknown and not self.counters.unknown_observations:
                kinds = ", ".join(sorted({kind[:40] for kind in item.unknown[:8]}))
                log.warning(
                    "input %d on %s contains kinds that only a newer version knows (%s): they are ignored",
                    item.seq, item.subject, kinds,
                )  # fmt: skip
            self.counters.unknown_observations += len(item.unknown)

    def _records(
        self, events: Sequence[LedgerEvent], before: int, inputs: Sequence[int]
    ) -> tuple[EncodedRecord, list[Piece]]:
        """The first record of a decision, and the content of further ones if one cannot hold all. `before`: the number of
        events before those that the decider's record ends count. Raises InputTooLarge."""
        first, rest = self._encode(Piece(tuple(events), inputs[-1])), list[Piece]()
        most = payload_room(self._js._nc.max_payload)
        wanted = min(MAX_RECORD_BYTES, most)
        if len(first.payload) > wanted:
            rest = pieces(
                events,
                [(before + end.events, end.inbox_seq) for end in self.decider.record_ends],
                inputs,
                decided_to=self.decided_to,
                wanted=wanted - RECORD_BYTES,
                most=most - RECORD_BYTES,
            )
            first = self._encode(rest.pop(0))
        return first, rest

    def _encode(self, piece: Piece) -> EncodedRecord:
        return self._ledger.encode(piece, self.writer_id, self._format)

    async def _commit(self, first: EncodedRecord, rest: Sequence[Piece], inputs: int) -> AppendOutcome:
        """Appends one record after the other. None is announced before all are stored: the decider shows all of them."""
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
            self._ledger.committed(made)
            if present_host() is None:  # the readers of a simulation are one process with it, and read what is stored
                remember(made.record, made.payload, made.digest)
            self.counters.commits += 1
            self.counters.events += len(made.record.events)
            committed.append((self.position, made.record))
            look |= self._rolling.wrote(len(made.payload))
            if not left:
                break
            made = self._encode(left.popleft())
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
            with suppress(*UNAVAILABLE):
                self._roll_due = await self._rolling.look()
        return AppendOutcome.COMMITTED

    def _progressed(self) -> None:
        self.counters.faults = self._poison.faults
        self._poison.progressed(self.decided_to)
        self._batches.grow()
        self.settled = True

    async def _overtaken(self) -> bool:
        """Whether another writer has written while this one had nothing to commit. Without this check a writer that was frozen
        for long would answer questions from an old state until its next commit is refused."""
        now = asyncio.get_running_loop().time()
        if now - self._confirmed < _ASK_S:
            return False
        self._confirmed = now
        return await self._moved()

    async def _moved(self) -> bool:
        """Whether another writer has written since this one read."""
        try:
            info = await self._js.stream_info(self._rolling.open)
        except UNAVAILABLE:
            return False
        self._roll_due = self._rolling.due(info)
        if info.state.last_seq == self.position:
            return False
        self.counters.refused += 1
        return True

    # -------------------------------------------------------------------------------------------------------- roll

    async def _make_room(self) -> bool:
        """Rolls because a record did not fit, however full the segment is; False when the log must be read again."""
        with suppress(*UNAVAILABLE):
            if (await self._js.stream_info(self._rolling.open)).state.messages:
                return await self._roll()
        return True  # an empty one: the next would be no larger

    async def _roll(self) -> bool:
        """Starts the next segment, or stays in this one if the broker has no space for another; False when the log must be read
        again."""
        self._roll_due = False
        loop = asyncio.get_running_loop()
        if loop.time() < self._no_roll_before or not may_emit("segment.sealed", self.format):
            return True
        self._no_roll_before = loop.time() + _ROLL_AGAIN_S
        first = self.position + 2
        try:
            if not await self._rolling.stage(first):
                return True
            this = (await readable(self._js, self.pool))[-1].first
            self._format = self.format
            seal = SegmentSealed(first_seq=this, next=name_of(self.pool, first))
            sealing = self._encode(Piece((seal,), self.decided_to))
            if await self._commit(sealing, [], 0) is not AppendOutcome.COMMITTED:
                return False
            await self._rolling.finish(self.head.seq)
        except ConnectionClosedError:
            raise
        except UNAVAILABLE as error:
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
        """Folds what the other writer commits, until it seems to have stopped."""
        self.role = "following"
        log.info("ledger of pool %s: %s follows %s", self.pool, self.writer_id, self._ledger.last_writer)
        self._inbox = inbox = Tail(self._js, inbox_stream(self.pool), self.decider.inbox_seq, may_expire=True)
        try:
            await follow(self._ledger, inbox, self._takeover_s)
        finally:
            await inbox.close()
        self.counters.takeovers += 1
        log.warning("ledger of pool %s: %s takes over from %s", self.pool, self.writer_id, self._ledger.last_writer)
        await self._announce()
