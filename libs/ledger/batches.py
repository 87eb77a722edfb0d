"""Collects the inputs of a writer's next decision from the inbox.

Under load, inputs that arrive within the linger time are decided together, since each record has a fixed cost. After a pause of
the whole system, inputs wait for the next tick (`libs.ledger.timing`).
"""

import asyncio
from collections.abc import Callable

from libs.bus.decaying_count import DecayingCount
from libs.core.state.clock import LedgerClock
from libs.ledger.inputs import InboxItem
from libs.ledger.tail import Stored, Tail
from libs.ledger.timing import TickDeadline, timed
from libs.ports.clock import until_turn
from schemas.ledger import ClockJumped
from schemas.subjects import is_resume

_INPUT_BYTES = 384 * 1024  # of one decision; records are about as large as what they decide
_MOST_BEFORE_TICK = 16  # times a batch: what comes before the first tick after a pause is decided together with it
_BUSY_S = 0.1
_BUSY_EVENTS = 50
"""Above this event rate (events per `_BUSY_S`, some 125 jobs a second) inputs are batched: the first waits up to the linger
time for more. A client that sends one job after the other stays below it, and so waits for nothing."""
_ENOUGH_BYTES = 4096
"""A batch of so many bytes is decided at once: the fixed cost of its record is small beside it."""
_GLANCE_S = 0.005


def ends_batch(subject: str) -> bool:
    """Whether an input of this subject is the last of its decision, which then has its time: what was sent before a team is
    resumed is refused, and what was sent after it is not."""
    return is_resume(subject)


class InputBatches:
    """The batches of one writer. `batch`: the most inputs of a decision; `read` decodes one."""

    def __init__(self, batch: int, linger_s: float, read: Callable[[Stored], InboxItem]) -> None:
        self._batch = batch
        self.limit = batch
        """The most inputs of the next decision: fewer after a fault, to isolate the input that caused it."""
        self._linger_s = linger_s
        self._read = read
        self.recent_events = DecayingCount(_BUSY_S)
        self._tick_deadline = TickDeadline()

    async def gather(self, inbox: Tail, ask_s: float) -> list[Stored]:
        """The inputs of the next decision: what waits already and, under load, what arrives within the linger time.
        `ask_s`: how long to wait for the first one."""
        stored = await inbox.messages(self.limit, until_turn(ask_s), max_bytes=_INPUT_BYTES)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self.recent_events.add(0, now) + len(stored) < _BUSY_EVENTS:
            return stored
        size = sum(len(s.payload) for s in stored)
        while len(stored) < self.limit and size < _ENOUGH_BYTES and (left := now + self._linger_s - loop.time()) > 0:
            if stored and ends_batch(stored[-1].subject):
                break
            if not inbox.lag:
                await asyncio.sleep(min(left, _GLANCE_S))  # one turn for all that comes meanwhile, not one for each
            wait_s = max(0.0, now + self._linger_s - loop.time()) if inbox.lag else 0.0
            first_us = stored[0].time_us if stored else None
            if first_us is not None and inbox.is_beyond(first_us):
                break
            more = await inbox.messages(
                self.limit - len(stored), wait_s, max_bytes=_INPUT_BYTES - size, first_us=first_us
            )
            stored += more
            size += sum(len(s.payload) for s in more)
        return stored

    async def until_tick(
        self, inbox: Tail, stored: list[Stored], clock: LedgerClock, ask_s: float
    ) -> tuple[list[InboxItem], LedgerClock, list[ClockJumped]]:
        """The decoded inputs and the clock after them. While ledger time is behind, inputs up to the next tick are added."""
        items = [self._read(message) for message in stored]
        most = _MOST_BEFORE_TICK * self._batch if self.limit == self._batch else self.limit
        clock, jumps = timed(clock, items)
        while len(stored) < most and (left_s := self._tick_deadline.left_s(clock, items)):
            more = await inbox.messages(
                min(self._batch, most - len(stored)), min(left_s, until_turn(ask_s)), max_bytes=_INPUT_BYTES
            )
            news = [self._read(message) for message in more]
            clock, found = timed(clock, news)
            stored += more
            items += news
            jumps += found
        return items, clock, jumps

    def halve(self, failed: int) -> None:
        """A decision about so many inputs has failed."""
        self.limit = min(self._batch, failed) // 2

    def grow(self) -> None:
        """A decision has succeeded."""
        self.limit = min(self._batch, self.limit * 2)
