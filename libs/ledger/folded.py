"""The writer's state: the fold of the ledger, advanced with each commit.

A writer never repairs its state. After any doubt it throws it away and folds again, from the last snapshot and every valid
record after it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from pydantic import ValidationError

from libs.bus.retry import retry_while_away
from libs.core.state.clock import LedgerClock
from libs.core.state.formats import FIRST
from libs.ledger.chain import GENESIS, ChainEntry, Head, LedgerStopped, encode
from libs.ledger.decider import Counters, D, DeciderFactory
from libs.ledger.pieces import Piece
from libs.ledger.reader import LedgerReader
from libs.ledger.restoring import RestoreWait
from libs.ledger.rolling import Rolling
from libs.ledger.saver import SnapshotSaver
from libs.ledger.segments import RecordsArchived, stored_at
from schemas.ledger import LedgerRecord

log = logging.getLogger("baton.ledger")

A = TypeVar("A")


class EncodedRecord(NamedTuple):
    """A record that continues the head, as it would be stored."""

    record: LedgerRecord
    payload: bytes
    digest: str


class FoldedLedger(Generic[D]):
    """The ledger of `pool` up to `position` (the last sequence read), whose last valid record is `head`.

    `decided_to` is the last input that it has decided, `recorded_to` that of the last record: behind it a fold goes on.
    `decider` may be ahead of both while a decision of it is being committed. `last_writer` wrote the last record.
    """

    def __init__(
        self,
        js: JetStreamContext,
        pool: str,
        factory: DeciderFactory[D],
        *,
        rolling: Rolling,
        saver: SnapshotSaver | None,
        counters: Counters,
    ) -> None:
        self.pool = pool
        self.decider = factory.new()
        self.head = GENESIS
        self.position = 0
        self.decided_to = 0
        self.recorded_to = 0
        self.last_writer = ""
        self.format = FIRST
        """What the last record that declares its format may say: none goes back behind it."""
        self.reader: LedgerReader | None = None
        self.restore = RestoreWait(js, pool, "the writer", self._newest)
        self._js = js
        self._factory = factory
        self._rolling = rolling
        self._saver = saver
        self._counters = counters
        self._clock: LedgerClock | None = None  # None: as the last record says, which was not asked yet
        self._voids_to = 0

    @property
    def clock(self) -> LedgerClock:
        """Ledger time, as of the last record or decision."""
        return self._clock if self._clock is not None else LedgerClock(self.decider.t_us)

    @clock.setter
    def clock(self, clock: LedgerClock) -> None:
        self._clock = clock

    async def refold(self) -> None:
        """The state is what the log says; records that were archived are waited for. Raises LedgerStopped, and what the decider
        raises."""
        self._counters.refolds += 1
        while True:
            try:
                await self._fold_anew()
                return
            except RecordsArchived as gone:
                await self.close()
                await self.restore.over(gone)

    async def _fold_anew(self) -> None:
        decider, reader = await self.retry_while_away(self._begin)
        self.reader = reader
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
        if self._clock is None:
            self._clock = await self.retry_while_away(self._stored_clock)

    def follow(self, entries: Sequence[ChainEntry]) -> None:
        """Takes in what another writer has committed."""
        assert self.reader is not None
        self._fold(self.decider, entries)
        self.head, self.position = self.reader.head, self.reader.position
        self.decided_to = self.recorded_to = self.decider.inbox_seq

    def encode(self, piece: Piece, writer: str, format: int) -> EncodedRecord:
        """The record that says `piece` next, decided while the ledger was of `format`."""
        clock = self.clock
        record = LedgerRecord(
            pool=self.pool,
            prev_seq=self.head.seq,
            prev_hash=self.head.hash,
            inbox_seq=piece.inbox_seq,
            t_us=clock.t_us,
            wall_us=clock.wall_us,
            clock=clock.mark,
            format=format,
            more=piece.more,
            writer=writer,
            events=piece.events,
        )
        return EncodedRecord(record, *encode(record))

    def committed(self, made: EncodedRecord) -> None:
        """`made` is the ledger's last record now."""
        self.position += 1
        self.head = Head(self.position, made.digest)
        self._told(made.record)
        self._count(made.record)
        self.decided_to = self.recorded_to = made.record.inbox_seq

    async def retry_while_away(self, ask: Callable[[], Awaitable[A]]) -> A:
        """What the broker answers, asked again while it is away."""

        def away(error: Exception, failures: int) -> None:
            log.warning("ledger of pool %s: the broker does not do it: %r", self.pool, error)

        return await retry_while_away(ask, away)

    async def settle(self) -> None:
        """Opens the next segment where a writer has sealed the last one and got no further."""
        await self.retry_while_away(partial(self._rolling.settle, self.head.seq, self.position))

    async def close(self) -> None:
        """Deletes the reader's consumer."""
        if self.reader is not None:
            await self.reader.close()

    async def _read(self, decider: D, reader: LedgerReader) -> None:
        """Folds up to the ledger's present end. Where a writer has sealed a segment and got no further, it is opened first."""
        settled = reader.head.seq
        while True:
            last = await self.retry_while_away(reader.last_seq)
            async for entries in reader.read_to(last):
                self._fold(decider, entries)
                if reader.sealed:
                    break
            if not reader.sealed or reader.head.seq == settled:
                return
            settled = reader.head.seq
            await self.retry_while_away(partial(self._rolling.settle, settled, reader.position))

    async def _stored_clock(self) -> LedgerClock:
        """The clock as the last valid record says it: a snapshot of the state has none."""
        if self.head.seq:
            try:
                stored = await stored_at(self._js, self.pool, self.head.seq)
                record = LedgerRecord.model_validate_json(stored or b"")
                self.format = max(self.format, record.format or FIRST)
                return LedgerClock.of(record)
            except ValidationError as error:
                log.warning("ledger of pool %s: record %d says no time: %r", self.pool, self.head.seq, error)
        return LedgerClock(self.decider.t_us)

    def _told(self, last: LedgerRecord) -> None:
        """What the last record says of its writer and its format."""
        self.last_writer = last.writer
        self.format = max(self.format, last.format or FIRST)

    async def _begin(self) -> tuple[D, LedgerReader]:
        decider, reader = await self._from_snapshot()
        await self._rolling.settle(reader.head.seq, reader.position)
        return decider, reader

    async def _from_snapshot(self) -> tuple[D, LedgerReader]:
        await self.close()
        self._clock = None
        if self._saver is not None:
            found = await self._saver.load(self._factory.load)
            if found is not None:
                return found.value, LedgerReader(self._js, self.pool, found.head, found.position)
        return self._factory.new(), LedgerReader(self._js, self.pool)

    async def _newest(self) -> int:
        return await self._saver.newest() if self._saver is not None else 0

    def _count(self, record: LedgerRecord) -> None:
        if self._saver is not None:
            self._saver.folded(len(record.events))

    def _fold(self, decider: D, entries: Sequence[ChainEntry]) -> None:
        for entry in entries:
            if entry.valid:
                decider.apply(entry.record, entry.seq)
                self._count(entry.record)
                self._clock = LedgerClock.of(entry.record)
                self._told(entry.record)
            elif entry.seq > self._voids_to:  # a refold sees old ones again
                self._counters.voids += 1
                self._voids_to = entry.seq
                log.error("ledger of pool %s: record %d is void: it %s", self.pool, entry.seq, entry.why)
