"""The ledger's clock over a batch of inputs."""

import logging
from collections.abc import Iterable
from dataclasses import asdict

from libs.core.state.clock import LedgerClock
from libs.ledger.inputs import InboxItem
from schemas.clock import MeasuredBy
from schemas.inbox import Tick
from schemas.ledger import ClockJumped

log = logging.getLogger("baton.ledger")


def timed(clock: LedgerClock, items: Iterable[InboxItem]) -> tuple[LedgerClock, list[ClockJumped]]:
    """The clock after these inputs, and how the broker's clock jumped meanwhile."""
    jumps: list[ClockJumped] = []
    for item in items:
        if not isinstance(item.message, Tick):
            clock = clock.input(item.time_us)
            continue
        clock, jump = clock.tick(item.time_us, item.message.readings)
        if jump is not None:
            log.warning("the broker's clock jumped at input %d: %s", item.seq, jump)
            jumps.append(ClockJumped(**asdict(jump), estimated=jump.measured is MeasuredBy.WALL))
    return clock, jumps
