"""Reads a pool's ledger: in order, each record once, through broker restarts. Used by every service but the writer's.

reader = LedgerReader(js, pool, head, position)          # from a snapshot; without: from the beginning
async for entries in reader.follow():
    for entry in entries:
        if entry.valid:
            state.apply(entry.record, entry.seq)
    await store(reader.head, reader.position)            # an empty list now and then: time for periodic work
"""

from collections.abc import AsyncIterator, Collection, Sequence

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from libs.ledger.chain import GENESIS, ChainEntry, Head, LedgerRewound, UnknownRecord, judge
from libs.ledger.segments import NotOpenYet, OpenSegment, Segment, holding, is_seal, readable
from libs.ledger.tail import Tail
from schemas.ids import content_hash
from schemas.ledger import SegmentSealed
from schemas.subjects import ledger_stream


class LedgerReader:
    """A place in a pool's ledger.

    `head` is the last valid record, `position` the last sequence read, valid or void: a void record moves the second
    alone. `records` and `voids` count what was read. Whoever resumes must store and give back both. The ledger may lie in
    several streams (libs.ledger.segments); the reader goes from one to the next. `sealed`: it stands at the end of one.

    Raises, from all that reads: LedgerRewound (the stream is not the one that was read before), LedgerGap (records are
    gone), UnknownRecord (with `only`, never of other kinds than these). All are LedgerStopped: the service must end loudly. A
    broker that is away is waited for.
    """

    def __init__(
        self,
        js: JetStreamContext,
        pool: str,
        head: Head = GENESIS,
        position: int | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self.pool = pool
        self._only = only
        self.head = head
        self.position = head.seq if position is None else position
        if self.position < head.seq:
            raise ValueError(f"position {self.position} is before the head {head.seq}: store both together")
        self.records = 0
        self.voids = 0
        self.sealed = False
        self._js = js
        self._open = OpenSegment(js, pool)
        self._tail = Tail(js, ledger_stream(pool), self.position, where=self._segment)

    async def come(self, wait_s: float) -> bool:
        """Returns once an entry can be read, at the latest after `wait_s`: whether one surely can."""
        return await self._tail.come(wait_s)

    async def next(self, max_batch: int = 256, wait_s: float = 1.0) -> list[ChainEntry]:
        """The next entries, at most `max_batch`; empty when nothing came within `wait_s`."""
        entries: list[ChainEntry] = []
        for stored in await self._tail.messages(max_batch, wait_s):
            try:
                entry = judge(self.head, self.pool, stored.seq, stored.payload, stored.time_us, self._only)
            except UnknownRecord:
                await self._tail.close(self.position)
                if entries:
                    return entries  # what came before counts; the next call meets the unknown record again
                raise
            if entry.valid:
                self.head = entry.head
                self.records += 1
                self.sealed = self._seals(entry, stored.payload)
            else:
                self.voids += 1
            self.position = entry.seq
            entries.append(entry)
            if self.sealed:
                await self._tail.close(self.position)  # what was taken behind a seal is nobody's record
                break
        return entries

    def _seals(self, entry: ChainEntry, payload: bytes) -> bool:
        """Whether the segment ends here: a reader of some kinds must know it, too, though it is told of those alone."""
        if self._only is not None:
            return is_seal(payload)
        return any(isinstance(event, SegmentSealed) for event in entry.record.events)

    async def follow(self, *, max_batch: int = 256, idle_s: float = 1.0) -> AsyncIterator[list[ChainEntry]]:
        """For ever: lists of entries, and an empty list after each `idle_s` without news."""
        while True:
            yield await self.next(max_batch, idle_s)

    async def read_to(self, seq: int, *, max_batch: int = 256) -> AsyncIterator[list[ChainEntry]]:
        """Lists of entries until `position` is at least `seq`; waits for records that are not written yet."""
        while self.position < seq:
            if entries := await self.next(min(max_batch, seq - self.position), 1.0):
                yield entries

    async def last_seq(self) -> int:
        """The last sequence in the ledger now."""
        return (await self._open.info()).state.last_seq

    def lag(self) -> int:
        """Records known to be in the stream and not read yet. No question to the broker."""
        return max(0, self._tail.lag + self._tail.position - self.position)

    @property
    def problem(self) -> str:
        """Why nothing can be read at the moment; "" when all is well. For readiness checks."""
        return self._tail.problem

    async def close(self) -> None:
        """Give the consumer back. The reader may be used again: it goes on where it was."""
        await self._tail.close(self.position)

    async def _segment(self) -> str:
        """The stream to go on in.

        The head must still be in the ledger, and the same. Raises LedgerRewound: a restored stream may have grown past our
        position again; its records would all be void for us, silently and for ever. LedgerGap: archived. NotOpenYet: our
        head is a seal, and what follows it has not begun."""
        found = await readable(self._js, self.pool)
        stored = await self._head(found) if self.head.seq else None
        self.sealed = stored is not None and is_seal(stored)
        if not self.sealed:
            return holding(found, self.pool, self.position + 1).name
        for segment in found:
            if segment.first == self.head.seq + 1:
                return segment.name
        raise NotOpenYet(f"the ledger of pool {self.pool} was sealed at {self.head.seq}, and does not go on yet")

    async def _head(self, found: Sequence[Segment]) -> bytes | None:
        """Our head as it is stored; None when it was archived: the next record's link proves the same."""
        if self.head.seq < found[0].first:
            return None
        try:
            stored = await self._js.get_msg(holding(found, self.pool, self.head.seq).name, seq=self.head.seq)
        except NotFoundError:
            return None
        if content_hash(stored.data or b"") != self.head.hash:
            raise LedgerRewound(
                f"ledger of pool {self.pool}: record {self.head.seq} is not the one that was read "
                f"({self.head.hash[:12]}). The stream was made anew or restored from elsewhere; stop and find out which"
            )
        return stored.data or b""
