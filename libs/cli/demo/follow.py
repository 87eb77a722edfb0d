"""The demo's eyes: the ledger as it grows. Everything that is shown or waited for is a function of `Facts`."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from libs.bus.cancel import cancel
from libs.client import Baton
from libs.ledger.reader import LedgerReader
from libs.report.facts import Facts


class Stuck(RuntimeError):
    """Something that had to happen did not happen in time; the text says what, and which logs to read."""


class GrowingLedger:
    """Follows the pool's ledger from its beginning while the block lasts."""

    def __init__(self, baton: Baton, logs: Path) -> None:
        self.facts = Facts()
        self._logs = logs
        self._reader = LedgerReader(baton.nats.jetstream(), baton.place.pool)
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

    async def until(self, seen: Callable[[Facts], bool], what: str, *, within_s: float, blame: Sequence[str]) -> None:
        """Returns once `seen(facts)`.

        Raises Stuck when that takes longer than `within_s`; `blame` are the processes whose logs explain it. Raises
        LedgerStopped, KeyError when the ledger cannot be followed any more.
        """
        assert self._task is not None
        deadline = asyncio.get_running_loop().time() + within_s
        while not seen(self.facts):
            if self._task.done():
                self._task.result()
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                paths = " and ".join(str(self._logs / f"{name}.log") for name in blame)
                problem = f" (the ledger cannot be read: {self._reader.problem})" if self._reader.problem else ""
                raise Stuck(f"{what}: not seen within {within_s:g} s{problem}; read {paths}")
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, 1.0)):
                    await self._news.wait()

    async def _follow(self) -> None:
        try:
            async for entries in self._reader.follow():
                for entry in entries:
                    if entry.valid:
                        self.facts.apply(entry.record, entry.seq, entry.time_us)
                if entries:
                    self._news.set()
        finally:
            self._news.set()  # whoever waits must see that it is over
