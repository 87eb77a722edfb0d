"""Reads a pool's ledger: in order, each record once, through broker restarts. Used by every service but the writer's.

reader = LedgerReader(js, pool, head, position)          # from a snapshot; without: from the beginning
async for entries in reader.follow():
    for entry in entries:
        if entry.valid:
            state.apply(entry.record, entry.seq)
    await store(reader.head, reader.position)            # an empty list now and then: time for periodic work
"""

from collections.abc import AsyncIterator

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from libs.ledger.chain import GENESIS, ChainEntry, Head, LedgerRewound, UnknownRecord, judge
from libs.ledger.tail import Tail
from schemas.ids import content_hash
from schemas.subjects import ledger_stream


class LedgerReader:
    """A place in a pool's ledger.

    `head` is the last valid record, `position` the last sequence read, valid or void: a void record moves the second
    alone. `records` and `voids` count what was read. Whoever resumes must store and give back both.

    Raises, from all that reads: LedgerRewound (the stream is not the one that was read before), LedgerGap (records are
    gone), UnknownRecord. All are LedgerStopped: the service must end loudly. A broker that is away is waited for.
    """

    def __init__(self, js: JetStreamContext, pool: str, head: Head = GENESIS, position: int | None = None) -> None:
        self.pool = pool
        self.head = head
        self.position = head.seq if position is None else position
        if self.position < head.seq:
            raise ValueError(f"position {self.position} is before the head {head.seq}: store both together")
        self.records = 0
        self.voids = 0
        self._js = js
        self._tail = Tail(js, ledger_stream(pool), self.position, check=self._same_ledger)

    async def next(self, max_batch: int = 256, wait_s: float = 1.0) -> list[ChainEntry]:
        """The next entries, at most `max_batch`; empty when nothing came within `wait_s`."""
        entries: list[ChainEntry] = []
        for stored in await self._tail.messages(max_batch, wait_s):
            try:
                entry = judge(self.head, self.pool, stored.seq, stored.payload, stored.time_us)
            except UnknownRecord:
                await self._tail.close(self.position)
                if entries:
                    return entries  # what came before counts; the next call meets the unknown record again
                raise
            if entry.valid:
                self.head = entry.head
                self.records += 1
            else:
                self.voids += 1
            self.position = entry.seq
            entries.append(entry)
        return entries

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
        """The last sequence in the stream now."""
        return (await self._js.stream_info(ledger_stream(self.pool))).state.last_seq

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

    async def _same_ledger(self) -> None:
        """The head is still in the stream, and the same. Raises LedgerRewound: a restored stream may have grown past
        our position again; its records would all be void for us, silently and for ever."""
        if self.head.seq == 0:
            return
        try:
            stored = await self._js.get_msg(ledger_stream(self.pool), seq=self.head.seq)
        except NotFoundError:
            return  # archived; the next record's link proves the same
        if content_hash(stored.data or b"") != self.head.hash:
            raise LedgerRewound(
                f"ledger of pool {self.pool}: record {self.head.seq} is not the one that was read "
                f"({self.head.hash[:12]}). The stream was made anew or restored from elsewhere; stop and find out which"
            )
