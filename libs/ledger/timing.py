"""The ledger's clock over inputs, and how long they wait for one that says what time it is.

After a pause of everything (a machine that slept, a control plane that was stopped) ledger time is that of before it until the
first tick (`LedgerClock.is_behind`). What a node reports sooner would be decided at the time of before, and another report, a
moment later, at the present: what ended meanwhile would be billed for the pause or not by which of them came first. So what
comes before the tick is decided together with it. Where none comes, because nobody sends any, it is decided after `PATIENCE_S`.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import asdict

from libs.core.state.clock import LedgerClock
from libs.ledger.inputs import InboxItem
from schemas.clock import BootReading, MeasuredBy
from schemas.inbox import GranterClaimed, Tick
from schemas.ledger import ClockJumped

log = logging.getLogger("baton.ledger")

PATIENCE_S = 10.0
"""After a start of everything who claims the right to tick is there within that."""


def timed(clock: LedgerClock, items: Iterable[InboxItem]) -> tuple[LedgerClock, list[ClockJumped]]:
    """The clock after these inputs, and how the broker's clock jumped meanwhile."""
    jumps: list[ClockJumped] = []
    for item in items:
        readings = _readings(item)
        if readings is None:
            clock = clock.input(item.time_us)
            continue
        clock, jump = clock.tick(item.time_us, readings)
        if jump is not None:
            log.warning("the broker's clock jumped at input %d: %s", item.seq, jump)
            jumps.append(ClockJumped(**asdict(jump), estimated=jump.measured is MeasuredBy.WALL))
    return clock, jumps


def _readings(item: InboxItem) -> tuple[BootReading, ...] | None:
    """What clocks read, if it says so: a tick does, and a claim of the right to tick, which comes before the first one."""
    match item.message:
        case Tick(readings=readings):
            return readings
        case GranterClaimed(readings=(_, *_) as readings):
            return tuple(readings)
    return None


class TickPatience:
    """Of one writer: how long its inputs still wait for a tick."""

    def __init__(self) -> None:
        self._until: float | None = None
        """Of the loop's clock; None: ledger time is not behind."""

    def left_s(self, clock: LedgerClock, items: Iterable[InboxItem]) -> float:
        """So long those that bring the ledger's clock to `clock` may wait for more, s. Not where a process of before claims
        the right to tick: no tick comes sooner than that is decided."""
        if not clock.is_behind:
            self._until = None
            return 0.0
        now = asyncio.get_running_loop().time()
        self._until = now + PATIENCE_S if self._until is None else self._until
        claimed = any(isinstance(item.message, GranterClaimed) for item in items)
        return 0.0 if claimed else max(0.0, self._until - now)
