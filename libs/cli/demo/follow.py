"""The demo's view of the growing ledger. Everything shown or awaited is a function of `Facts`."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from libs.client import Baton
from libs.ledger.growing import GrowingLedger
from libs.ledger.reader import LedgerReader
from libs.report.facts import Facts


class Stuck(RuntimeError):
    """Something did not happen in time. The text says what, and which logs to read."""


class DemoLedger(GrowingLedger):
    """What has happened so far, and waits that name the log to read when something does not happen."""

    def __init__(self, baton: Baton, logs: Path) -> None:
        self.facts = Facts()
        self._logs = logs
        super().__init__(LedgerReader(baton.nats.jetstream(), baton.place.pool), self.facts.apply)

    async def until(self, seen: Callable[[Facts], bool], what: str, *, within_s: float, blame: Sequence[str]) -> None:
        """Returns once `seen(facts)`.

        Raises Stuck after `within_s`; `blame`: processes whose logs may explain it. Raises LedgerStopped, KeyError when
        the ledger cannot be followed any more.
        """
        deadline = asyncio.get_running_loop().time() + within_s
        while not seen(self.facts):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                paths = " and ".join(str(self._logs / f"{name}.log") for name in blame)
                problem = f" (the ledger cannot be read: {self.problem})" if self.problem else ""
                raise Stuck(f"{what}: not seen within {within_s:g} s{problem}; read {paths}")
            await self.news(min(left_s, 1.0))
