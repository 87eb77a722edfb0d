"""Advances the ledger's clock over inputs, and lets inputs wait for a tick after a pause.

After a pause of the whole system (a machine that slept, a control plane that was stopped) ledger time stays at the time before
the pause until the first tick (`LedgerClock.is_behind`). A node's report before that tick would be decided at the old time, and
one just after it at the present time: whether work that ended meanwhile is billed for the pause would depend on their order.
So inputs before the tick are decided together with it, or after `TICK_WAIT_S` if no tick comes.
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

TICK_WAIT_S = 10.0
"""After a start of the whole system the process that sends ticks is there within this time."""


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
    """The clock readings in the input: in a tick, and in the claim of the right to send ticks, which comes before the first."""
    match item.message:
        case Tick(readings=readings):
            return readings
        case GranterClaimed(readings=(_, *_) as readings):
            return tuple(readings)
    return None


class TickDeadline:
    """How long one writer's inputs still wait for a tick."""

    def __init__(self) -> None:
        self._until: float | None = None
        """The deadline, by the loop's clock; None: ledger time is not behind."""

    def left_s(self, clock: LedgerClock, items: Iterable[InboxItem]) -> float:
        """The seconds for which `items`, after which the ledger's clock is `clock`, may still wait. 0 if one of them claims the
        right to send ticks: no tick can come before that is decided."""
        if not clock.is_behind:
            self._until = None
            return 0.0
        now = asyncio.get_running_loop().time()
        self._until = now + TICK_WAIT_S if self._until is None else self._until
        claimed = any(isinstance(item.message, GranterClaimed) for item in items)
        return 0.0 if claimed else max(0.0, self._until - now)
