"""Follows one stream in order, without acknowledgements, without gaps and without duplicates, through broker restarts.

The naive way is `js.subscribe(ordered_consumer=True)` or `fetch` in a loop. The first loses its consumer with the
broker and learns of it late; `fetch` creates a subscription, a task and a timer each time. This does what both do, by
hand: an ordered consumer (`libs/bus/ordered.py`) that starts behind the last message read, and is made anew when it is broken.
A gap in the *stream's* numbers alone means that the messages are gone. At the bound (`ahead` messages or 8 MiB per request)
nothing more is asked for until the caller has taken some.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from libs.bus.delivery import Delivery
from libs.bus.ordered import SILENCE_S, OrderedConsumer
from libs.bus.retry import UNAVAILABLE
from libs.core.state.formats import NEWEST
from libs.ledger.chain import LedgerGap, LedgerRewound
from libs.ports.clock import until_turn

log = logging.getLogger("baton.ledger")

MARK = "baton-format"
"""Of a consumer: the newest format of the ledger that its reader understands (`libs.ledger.readers`)."""
_AWAY_S = 1.0  # a look that comes so long after the last one is late
_LOOK_S = _AWAY_S / 2  # so often it is looked whether the consumer is still there: no less, or each look is late
_MAX_BYTES = 8 * 1024 * 1024
_PAUSES_S = (0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of the stream; `time_us` is when the broker stored it, microseconds since the epoch."""

    seq: int
    subject: str
    headers: dict[str, str]
    payload: bytes
    time_us: int


class _Reading:
    """One consumer, and what it has delivered and nobody has taken."""

    def __init__(self, js: JetStreamContext, stream: str, after: int) -> None:
        self.queue: deque[tuple[Delivery, Msg]] = deque()
        self.news = asyncio.Event()
        self.looked = 0.0
        self.consumer = OrderedConsumer(js, stream, after, self._take, self.news.set)

    def _take(self, told: Delivery, message: Msg) -> None:
        self.queue.append((told, message))
        self.news.set()


class Tail:
    """Messages of `stream` after `position`. `expired` counts messages that retention took before they were read.

    With `may_expire` false such a loss raises LedgerGap instead. `check` is awaited whenever the consumer is (re)made;
    what it raises, `messages` raises. `where`, if given, is asked before that for the stream of the message after `position`:
    what is read may lie in several streams, one after the other. The messages of one batch were stored within `span_us`;
    what `messages` returns ends behind one that `ends` a batch.
    """

    def __init__(
        self,
        js: JetStreamContext,
        stream: str,
        position: int,
        *,
        may_expire: bool = False,
        check: Callable[[], Awaitable[None]] | None = None,
        where: Callable[[], Awaitable[str]] | None = None,
        ahead: int = 2048,
        span_us: int | None = None,
        ends: Callable[[str], bool] = lambda subject: False,
    ) -> None:
        self.stream = stream
        self.position = position
        self.expired = 0
        self.opened = 0
        self.problem = ""
        self._js = js
        self._nc = js._nc
        self._may_expire = may_expire
        self._check = check
        self._where = where
        self._ahead = ahead
        self._span_us = span_us
        self._ends = ends
        self._known_last = position
        self._reading: _Reading | None = None

    @property
    def lag(self) -> int:
        """Messages that are known to be in the stream and were not returned yet."""
        known = self._known_last
        if self._reading is not None and self._reading.queue:
            told = self._reading.queue[-1][0]
            known = max(known, told.seq + told.pending)
        return max(0, known - self.position)

    def is_beyond(self, first_us: int) -> bool:
        """Whether the next message was stored too long after `first_us` to be in one batch with that one."""
        reading = self._reading
        if reading is None or not reading.queue or self._span_us is None:
            return False
        return reading.queue[0][0].time_us - first_us > self._span_us

    async def messages(
        self, limit: int, wait_s: float, *, max_bytes: int = _MAX_BYTES, first_us: int | None = None
    ) -> list[Stored]:
        """The next messages, at most `limit`, and one or no more than `max_bytes` of payload; empty when none came
        within `wait_s`. A broker that is away is waited for as long; `problem` then says what is wrong. `first_us`: they are
        added to a batch whose first message was stored then; empty when none may be.

        Raises:
            LedgerRewound: the stream ends before what was already read.
            LedgerGap: messages are missing for good.
            ConnectionClosedError: the client was closed.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        failures = 0
        while True:
            _heed_cancellation()
            reading = self._reading
            if reading is None:
                failures = 0 if await self._reopen() else failures + 1
                left = end - loop.time()
                if failures and left <= 0:
                    return []
                if failures:
                    await asyncio.sleep(min(left, _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]))
                continue
            await self._ask(reading)
            # From here to the return nothing is awaited: a cancelled caller has either all of a batch or none of it.
            if (batch := self._take(reading, limit, max_bytes, first_us)) or (
                first_us is not None and self.is_beyond(first_us)
            ):
                return batch
            if reason := _why_dead(reading, loop.time()):
                await self._drop(reason)
                continue
            if reading.queue:
                await self._explain_gap(reading)
                continue
            left = end - loop.time()
            if left <= 0:
                await asyncio.sleep(0)  # a caller that polls without waiting must not keep the messages from coming in
                return self._take(reading, limit, max_bytes, first_us) if self._reading is reading else []
            await _news(reading, min(left, until_turn(_LOOK_S)))

    async def come(self, wait_s: float) -> bool:
        """Returns once a message lies here, at the latest after `wait_s`: whether one does. It is not looked at yet."""
        reading = self._reading
        if reading is None or reading.consumer.broken:
            return False
        await self._ask(reading)
        if not reading.queue:
            await _news(reading, min(wait_s, until_turn(_LOOK_S)))
        return bool(reading.queue)

    async def close(self, position: int | None = None) -> None:
        """Give the consumer back to the broker. The tail can be used again, and then goes on after `position`."""
        if position is not None:
            self.position = position
        await self._drop("")

    # ------------------------------------------------------------------------------------------------ the consumer

    async def _reopen(self) -> bool:
        if self._nc.is_closed:
            raise ConnectionClosedError
        try:
            if self._where is not None:
                self.stream = await self._where()
            info = await self._js.stream_info(self.stream)
            self._examine(info)
            if self._check is not None:
                await self._check()
            reading = _Reading(self._js, self.stream, self.position)
            await reading.consumer.open(metadata={MARK: str(NEWEST)})
            self._reading = reading
        except UNAVAILABLE as error:
            self._say(f"stream {self.stream} cannot be read: {error!r}")
            return False
        if self.problem:
            log.warning("stream %s is read again from %d", self.stream, self.position + 1)
        self.problem = ""
        self.opened += 1
        return True

    def _examine(self, info: StreamInfo) -> None:
        first, last = info.state.first_seq, info.state.last_seq
        self._known_last = max(last, self.position)
        if last < self.position:
            raise LedgerRewound(
                f"stream {self.stream} ends at {last}, but {self.position} was already read: the broker lost its tail. "
                "Stop, restore the stream from its copy, then start again"
            )
        if first > self.position + 1:
            self._lost(self.position + 1, first - 1)

    def _lost(self, start: int, end: int) -> None:
        if not self._may_expire:
            raise LedgerGap(
                f"stream {self.stream} no longer has {start} to {end}: start from a newer snapshot, or restore the part"
            )
        self.expired += end - start + 1
        self.position = end
        log.error("stream %s: messages %d to %d expired before they were read", self.stream, start, end)

    async def _ask(self, reading: _Reading) -> None:
        try:
            await reading.consumer.ask(self._ahead, len(reading.queue), _MAX_BYTES)
        except (NatsError, OSError) as error:
            reading.consumer.end(repr(error))

    async def _drop(self, reason: str) -> None:
        reading, self._reading = self._reading, None
        if reading is None:
            return
        if reason:
            self._say(f"stream {self.stream}: {reason}")
        await reading.consumer.close()

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    # ------------------------------------------------------------------------------------------------- the messages

    def _take(self, reading: _Reading, limit: int, max_bytes: int, first_us: int | None) -> list[Stored]:
        """Messages from the queue up to a jump of the stream's numbers: what is behind it stays in the queue."""
        out: list[Stored] = []
        size = 0
        while reading.queue and len(out) < limit:
            (_, _, seq, _, time_us, pending), message = reading.queue[0]
            size += len(message.data)
            if seq != self.position + 1 or (out and size > max_bytes):
                break
            first_us = time_us if first_us is None else first_us
            if self._span_us is not None and time_us - first_us > self._span_us:
                break
            reading.queue.popleft()
            self.position = seq
            self._known_last = max(self._known_last, seq + pending)
            out.append(Stored(seq, message.subject, message.headers or {}, message.data, time_us))
            if self._ends(message.subject):
                break
        return out

    async def _explain_gap(self, reading: _Reading) -> None:
        """The stream's numbers jump. Fine only if everything before has left the stream from the front."""
        seq = reading.queue[0][0].seq
        if seq <= self.position:
            raise LedgerRewound(f"stream {self.stream} delivered {seq} after {self.position}: it was made anew")
        try:
            first = (await self._js.stream_info(self.stream)).state.first_seq
        except UNAVAILABLE as error:
            reading.consumer.end(repr(error))
            return
        if first < seq:
            raise LedgerGap(
                f"stream {self.stream} has no message {self.position + 1} to {seq - 1}, though it begins at {first}: "
                "something deleted them, or the broker lost them. Stop and restore the stream"
            )
        self._lost(self.position + 1, seq - 1)


def _why_dead(reading: _Reading, now: float) -> str:
    consumer = reading.consumer
    if now - reading.looked > _AWAY_S:  # we were busy elsewhere: what came meanwhile may not be read yet
        consumer.heard_s = max(consumer.heard_s, now - SILENCE_S + _AWAY_S)
    reading.looked = now
    consumer.check(now)
    return consumer.broken


async def _news(reading: _Reading, wait_s: float) -> None:
    """Returns when something has come, at the latest after `wait_s`: the caller looks what there is. All readers wait here most
    of the time, so it is a timer and no `asyncio.timeout`, which ends by an exception."""
    reading.news.clear()
    timer = asyncio.get_running_loop().call_later(wait_s, reading.news.set)
    try:
        await reading.news.wait()
    finally:
        timer.cancel()


def _heed_cancellation() -> None:
    """Whoever is being cancelled ends here. `asyncio.wait_for` of Python 3.11, in every request of nats-py, returns its
    result and forgets the cancellation when both come at once; a loop over requests would then never end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
