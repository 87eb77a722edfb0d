"""A reader of an older version beside the present writer: it declares what it understands, and no more may be written.

It is what 0.1.0 would be if it declared itself; `tests/ledger/test_readers.py` runs the real one, which does not.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from libs.bus.connect import connect
from libs.bus.table import READERS_BUCKET
from libs.core.state.formats import FIRST, FORMAT_OF
from libs.ledger.reader import LedgerReader
from libs.ledger.readers import Declarer
from libs.service.app import Tasks
from schemas.subjects import ledger_stream

if TYPE_CHECKING:
    from libs.simulation.dst.world import World


class OlderReader:
    """Reads the ledger of `pool` until `until`, s of the simulation; then it is stopped in good order, and never comes back.

    A newer kind that it meets before is a violation, unless it came too late to be known when the first record was written, or
    the broker's clock was set: declarations expire by it.
    """

    def __init__(self, world: "World", pool: str, until: float) -> None:
        self._world, self._pool, self._until = world, pool, until
        self._left = False
        self._declared = False
        """It was known before anything was written."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        nats = await connect("sim://broker", name="older", die_on_close=True)
        reader = LedgerReader(nats.jetstream(), self._pool)
        declarer = Declarer(nats.jetstream(), self._pool, "older", lambda: (reader.position, 0), FIRST)
        tasks = Tasks()
        async with tasks.until_stopped():
            await declarer.declare()
            self._declared = self._declared or (
                self._is_known() and self._world.disk.streams[ledger_stream(self._pool)].last_seq == 0
            )
            self._world.sometimes("an older version read along")
            declaring = asyncio.create_task(declarer.run())
            tasks.start("older reader", self._read(reader))
            await asyncio.sleep(max(0.0, self._until - self._world.loop.now))
            declaring.cancel()
            self._left = True
            await declarer.leave()
            self._world.note("the older reader leaves")
            self._world.retire("older")
            yield

    def _is_known(self) -> bool:
        """A declaration that the broker did not hear is made again later, and nobody is told."""
        stored = self._world.disk.streams[f"KV_{READERS_BUCKET}"].by_subject
        return any(
            subject.startswith(f"$KV.{READERS_BUCKET}.{self._pool}.older.") and seqs for subject, seqs in stored.items()
        )

    async def _read(self, reader: LedgerReader) -> None:
        async for entries in reader.follow():
            for entry in entries:
                newer = [e.kind for e in entry.record.events if entry.valid and FORMAT_OF[e.kind] > FIRST]
                if newer and self._declared and not self._left and not self._world.offset_of("broker"):
                    self._world.violated("older", f"record {entry.seq} has {newer[0]}, which a reader does not know")
