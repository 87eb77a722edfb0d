"""Follows one stream in order, without acknowledgements, without gaps and without duplicates, through broker restarts.

The naive way is `js.subscribe(ordered_consumer=True)` or `fetch` in a loop. The first loses its consumer with the
broker and learns of it late; `fetch` creates a subscription, a task and a timer each time. This does what both do, by
hand: one ephemeral pull consumer (memory, no acks) that starts behind the last message read, one subscription with a
callback that only appends to a queue, and pull requests that keep a bounded number of messages on their way. The broker
numbers what it delivers, so a lost delivery shows as a gap in *its* numbers, and the consumer is made anew; a gap in
the *stream's* numbers alone means that the messages are gone. At the bound (`ahead` messages or 8 MiB per request)
nothing more is asked for until the caller has taken some.
"""

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamInfo

from libs.bus.delivery import delivery
from libs.bus.patience import AWAY
from libs.core.state.formats import NEWEST
from libs.ledger.chain import LedgerGap, LedgerRewound
from libs.ports.clock import until_turn

log = logging.getLogger("baton.ledger")

MARK = "baton-format"
"""Of a consumer: the newest format of the ledger that its reader understands (`libs.ledger.readers`)."""
_HEARTBEAT_S = 2.4  # one may be late; each wakes the broker and a process
_SILENCE_S = 5.0  # no message and no heartbeat for so long: the consumer is gone
_AWAY_S = 1.0  # a look that comes so long after the last one is late
_LOOK_S = _AWAY_S / 2  # so often it is looked whether the consumer is still there: no less, or each look is late
_EXPIRES_S = 30.0
_MAX_BYTES = 8 * 1024 * 1024
_FORGET_S = 30.0  # the broker drops a consumer that nobody asks for so long
_API_S = 5.0
_REQUEST_ENDED = ("Batch Completed", "Message Size Exceeds MaxBytes")  # one request is over; the consumer lives
_PAUSES_S = (0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of the stream; `time_us` is when the broker stored it, microseconds since the epoch."""

    seq: int
    subject: str
    headers: dict[str, str]
    payload: bytes
    time_us: int


@dataclass(slots=True)
class _Consumer:
    """One life of the consumer. Late messages of an earlier life go to its own queue, and nowhere else."""

    name: str
    reconnects: int
    subscription: Subscription | None = None
    inbox: str = ""
    queue: deque[Msg] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0  # messages asked for and not yet delivered
    delivered: int = 0  # the consumer sequence of the last message
    heard: float = 0.0
    looked: float = 0.0
    broken: str = ""


class Tail:
    """Messages of `stream` after `position`. `expired` counts messages that retention took before they were read.

    With `may_expire` false such a loss raises LedgerGap instead. `check` is awaited whenever the consumer is (re)made;
    what it raises, `messages` raises. `where`, if given, is asked before that for the stream of the message after `position`:
    what is read may lie in several streams, one after the other.
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
        self._known_last = position
        self._consumer: _Consumer | None = None

    @property
    def lag(self) -> int:
        """Messages that are known to be in the stream and were not returned yet."""
        return max(0, self._known_last - self.position)

    async def messages(self, limit: int, wait_s: float, *, max_bytes: int = _MAX_BYTES) -> list[Stored]:
        """The next messages, at most `limit`, and one or no more than `max_bytes` of payload; empty when none came
        within `wait_s`. A broker that is away is waited for as long; `problem` then says what is wrong.

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
            consumer = self._consumer
            if consumer is None:
                failures = 0 if await self._reopen() else failures + 1
                left = end - loop.time()
                if failures and left <= 0:
                    return []
                if failures:
                    await asyncio.sleep(min(left, _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]))
                continue
            await self._ask(consumer)
            # From here to the return nothing is awaited: a cancelled caller has either all of a batch or none of it.
            if batch := self._take(consumer, limit, max_bytes):
                return batch
            if reason := self._why_dead(consumer, loop.time()):
                await self._drop(reason)
                continue
            if consumer.queue:
                await self._explain_gap(consumer)
                continue
            left = end - loop.time()
            if left <= 0:
                await asyncio.sleep(0)  # a caller that polls without waiting must not keep the messages from coming in
                return self._take(consumer, limit, max_bytes) if self._consumer is consumer else []
            await _news(consumer, min(left, until_turn(_LOOK_S)))

    async def come(self, wait_s: float) -> bool:
        """Returns once a message lies here, at the latest after `wait_s`: whether one does. It is not looked at yet."""
        consumer = self._consumer
        if consumer is None or consumer.broken:
            return False
        await self._ask(consumer)
        if not consumer.queue:
            await _news(consumer, min(wait_s, until_turn(_LOOK_S)))
        return bool(consumer.queue)

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
            self._consumer = await self._open()
        except AWAY as error:
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

    async def _open(self) -> _Consumer:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.position + 1,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_FORGET_S,
            mem_storage=True,
            num_replicas=1,
            max_deliver=1,
            metadata={MARK: str(NEWEST)},
        )
        reconnects = self._nc.stats["reconnects"]
        created = await self._js.add_consumer(self.stream, config, timeout=_API_S)
        consumer = _Consumer(created.name, reconnects, inbox=self._nc.new_inbox())
        loop = asyncio.get_running_loop()
        consumer.heard = loop.time()

        async def heard(message: Msg) -> None:
            consumer.heard = loop.time()
            if message.reply.startswith("$JS.ACK."):
                consumer.asked -= 1
                consumer.queue.append(message)
                consumer.news.set()
            else:
                _status(consumer, message.headers or {})

        consumer.subscription = await self._nc.subscribe(consumer.inbox, cb=heard)
        return consumer

    async def _ask(self, consumer: _Consumer) -> None:
        # Half a window at a time: more requests cost more, fewer let the pipe run dry.
        room = self._ahead - consumer.asked - len(consumer.queue)
        if room < self._ahead // 2:
            return
        request = {
            "batch": room,
            "expires": int(_EXPIRES_S * 1e9),
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
            "max_bytes": _MAX_BYTES,
        }
        subject = f"{self._js._prefix}.CONSUMER.MSG.NEXT.{self.stream}.{consumer.name}"
        consumer.asked += room
        try:
            await self._nc.publish(subject, json.dumps(request).encode(), reply=consumer.inbox)
        except (NatsError, OSError) as error:
            consumer.broken = consumer.broken or repr(error)

    def _why_dead(self, consumer: _Consumer, now: float) -> str:
        if consumer.broken:
            return consumer.broken
        if self._nc.is_closed:
            return "the connection was closed"
        if self._nc.stats["reconnects"] != consumer.reconnects:
            return "the connection was made anew"
        if now - consumer.looked > _AWAY_S:  # we were busy elsewhere: what came meanwhile may not be read yet
            consumer.heard = max(consumer.heard, now - _SILENCE_S + _AWAY_S)
        consumer.looked = now
        if now - consumer.heard > _SILENCE_S:
            return f"neither message nor heartbeat for {_SILENCE_S:g} s"
        return ""

    async def _drop(self, reason: str) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        if reason:
            self._say(f"stream {self.stream}: {reason}")
        with contextlib.suppress(*AWAY):
            if consumer.subscription is not None:
                await consumer.subscription.unsubscribe()
            if self._nc.is_connected:  # a courtesy: the broker forgets it by itself after _FORGET_S
                delete = f"{self._js._prefix}.CONSUMER.DELETE.{self.stream}.{consumer.name}"
                await self._nc.publish(delete, b"")

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    # ------------------------------------------------------------------------------------------------- the messages

    def _take(self, consumer: _Consumer, limit: int, max_bytes: int) -> list[Stored]:
        """Messages from the queue up to the first irregularity: a lost delivery (the consumer is then broken) or a jump
        of the stream's numbers (the message stays in the queue)."""
        out: list[Stored] = []
        size = 0
        while consumer.queue and len(out) < limit:
            message = consumer.queue[0]
            _, _, seq, delivered, time_us, pending = delivery(message.reply)
            if delivered != consumer.delivered + 1:
                consumer.broken = consumer.broken or f"delivery {consumer.delivered + 1} was lost before {delivered}"
                break
            size += len(message.data)
            if seq != self.position + 1 or (out and size > max_bytes):
                break
            consumer.queue.popleft()
            consumer.delivered = delivered
            self.position = seq
            self._known_last = max(self._known_last, seq + pending)
            out.append(Stored(seq, message.subject, message.headers or {}, message.data, time_us))
        return out

    async def _explain_gap(self, consumer: _Consumer) -> None:
        """The stream's numbers jump. Fine only if everything before has left the stream from the front."""
        seq = delivery(consumer.queue[0].reply).seq
        if seq <= self.position:
            raise LedgerRewound(f"stream {self.stream} delivered {seq} after {self.position}: it was made anew")
        try:
            first = (await self._js.stream_info(self.stream)).state.first_seq
        except AWAY as error:
            consumer.broken = repr(error)
            return
        if first < seq:
            raise LedgerGap(
                f"stream {self.stream} has no message {self.position + 1} to {seq - 1}, though it begins at {first}: "
                "something deleted them, or the broker lost them. Stop and restore the stream"
            )
        self._lost(self.position + 1, seq - 1)


async def _news(consumer: _Consumer, wait_s: float) -> None:
    """Returns when something has come, at the latest after `wait_s`: the caller looks what there is. All readers wait here most
    of the time, so it is a timer and no `asyncio.timeout`, which ends by an exception."""
    consumer.news.clear()
    timer = asyncio.get_running_loop().call_later(wait_s, consumer.news.set)
    try:
        await consumer.news.wait()
    finally:
        timer.cancel()


def _heed_cancellation() -> None:
    """Whoever is being cancelled ends here. `asyncio.wait_for` of Python 3.11, in every request of nats-py, returns its
    result and forgets the cancellation when both come at once; a loop over requests would then never end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _status(consumer: _Consumer, headers: dict[str, str]) -> None:
    """A message without payload from the broker: heartbeat, or the end of one request, or of the consumer."""
    status = headers.get("Status", "")
    text = headers.get("Description", "")
    if status == "100":
        # A lost delivery is seen at the next one. Of the last delivery before a quiet time only the heartbeat tells.
        sent = int(headers.get("Nats-Last-Consumer", 0))
        if sent > consumer.delivered + len(consumer.queue):
            consumer.broken = consumer.broken or f"delivery {sent} was lost"
            consumer.news.set()
        return
    consumer.asked -= int(headers.get("Nats-Pending-Messages", 0))
    if status != "408" and text not in _REQUEST_ENDED:
        consumer.broken = f"the broker ended the consumer: {status} {text}".strip()
    consumer.news.set()
