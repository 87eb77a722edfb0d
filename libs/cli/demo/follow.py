"""The demo's eyes: the ledger as it grows. Everything that is shown or waited for is a function of `Facts`."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from libs.client import Baton
from libs.ledger.growing import GrowingLedger
from libs.ledger.reader import LedgerReader
from libs.report.facts import Facts


class Stuck(RuntimeError):
    """Something that had to happen did not happen in time; the text says what, and which logs to read."""


class DemoLedger(GrowingLedger):
    """What happened so far, and waits that say which log explains it when something does not happen."""

    def __init__(self, baton: Baton, logs: Path) -> None:
        self.facts = Facts()
        self._logs = logs
        super().__init__(LedgerReader(baton.nats.jetstream(), baton.place.pool), self.facts.apply)

    async def until(self, seen: Callable[[Facts], bool], what: str, *, within_s: float, blame: Sequence[str]) -> None:
        """Returns once `seen(facts)`.

        Raises Stuck when that takes longer than `within_s`; `blame` are the processes whose logs explain it. Raises
        LedgerStopped, KeyError when the ledger cannot be followed any more.
        """
        deadline = asyncio.get_running_loop().time() + within_s
        while not seen(self.facts):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                paths = " and ".join(str(self._logs / f"{name}.log") for name in blame)
                problem = f" (the ledger cannot be read: {self.problem})" if self.problem else ""
                raise Stuck(f"{what}: not seen within {within_s:g} s{problem}; read {paths}")
            await self.news(min(left_s, 1.0))
