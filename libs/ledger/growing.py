"""Follows a pool's ledger as it grows, for code that waits for an event in it: the demo, scenarios."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from libs.bus.cancel import cancel
from libs.ledger.reader import LedgerReader
from schemas.ledger import LedgerRecord


class GrowingLedger:
    """Follows the ledger from its beginning while the block lasts."""

    def __init__(self, reader: LedgerReader, apply: Callable[[LedgerRecord, int, int], object]) -> None:
        """`apply` is given each valid record, its sequence, and when it was stored (us)."""
        self._reader = reader
        self._apply = apply
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow(), name="follow the ledger")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        await cancel(self._task)
        await self._reader.close()

    @property
    def problem(self) -> str:
        """Why no records come (the broker is unavailable); "" if it is available."""
        return self._reader.problem

    async def news(self, wait_s: float) -> None:
        """Returns when new records have been read, or after `wait_s`. Raises what ended the following of the ledger:
        LedgerStopped, and what `apply` raised."""
        assert self._task is not None
        if self._task.done():
            self._task.result()
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._news.wait()

    async def _follow(self) -> None:
        try:
            async for entries in self._reader.follow():
                for entry in entries:
                    if entry.valid:
                        self._apply(entry.record, entry.seq, entry.time_us)
                if entries:
                    self._news.set()
        finally:
            self._news.set()  # whoever waits must see that it is over
