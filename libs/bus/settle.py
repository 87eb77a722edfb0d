"""What becomes of a message that cannot be processed: decided once, for every consumer that acknowledges.

Each message of a batch is decided by itself, so a bad one never holds up the others:

1. *decided*: what follows from it is stored, then it is acknowledged.
2. *malformed* (`Malformed`): it will never be readable. A dead letter, then it is terminated.
3. *transient* (`Transient`, a broken connection, a timeout): delivered again after a growing pause; a dead letter
   after `MAX_DELIVERIES`.
4. *bug* (anything else): delivered again as well, a dead letter after `MAX_BUG_DELIVERIES`.
5. *crashed* (delivered so often that its handler must be killing the process): a dead letter, without a try.
6. *parked* (`NoRoom`, or what follows cannot be stored): delivered again after a growing pause, however often that takes. Such
   a delivery reached no decision and does not count (`libs.bus.uncounted`). At most `PARKED` are kept so, for the broker hands
   out nothing more when too many are unsettled; from there on whoever is `NoRoom` is told so: that is its answer.

A dead letter is stored before its message is terminated, so nothing is lost. When the broker stores nothing at all,
nothing is acknowledged, the batch comes again however often that takes, and the derived ids make the second time
harmless: neither an outage nor a full stream turns good messages into dead letters.
"""

import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from libs.bus.broker import Broker, Pulled
from libs.bus.cursors import Cursors
from libs.bus.dead import Received, dead_letter, replayed
from libs.bus.delivery import delivery
from libs.bus.in_progress import FreezeDetector, StillOwned, keep_in_progress
from libs.bus.messages import Malformed, Outgoing
from libs.bus.metrics import BATCH_SECONDS, PARKED_NOW, SETTLED
from libs.bus.outbox import NotHeld, NotStored, Outbox
from libs.bus.table import consumer_config, durable_of
from libs.bus.uncounted import UncountedDeliveries
from libs.ports import clock
from libs.ports.host import failpoint
from schemas.subjects import service_inbox

__all__ = ["Malformed", "NoRoom", "Received", "Transient", "consume", "dead_letter", "received_of", "replayed"]

log = logging.getLogger("baton.settle")

MAX_DELIVERIES = 6
MAX_BUG_DELIVERIES = 3
CRASH_DELIVERIES = 20
_SLOW_S, _REMEMBERED_SLOW = 1.0, 1000
"""Who takes so much of the processor (before it first waits for something) is what the process stood still over, if it did; so
many are remembered."""
PARKED = 1_000
_ELSEWHERE_S = 300.0  # one that was put off and has not come back was given to another process
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pause before the next delivery, by the number of deliveries so far."""

_PARKED, _UNSTORED = "parked", "unstored"


class Transient(RuntimeError):
    """It may work in a moment: something that is needed is away."""


class NoRoom(RuntimeError):
    """There is no room for what would follow. `answer` is what its sender is told when it cannot wait here any longer."""

    def __init__(self, why: str, answer: Sequence[Outgoing] = ()) -> None:
        super().__init__(why)
        self.answer = list(answer)


Decide = Callable[[Received], Awaitable[list[Outgoing]] | list[Outgoing]]
BatchSize = Callable[[Sequence[Msg]], Awaitable[int]]
"""Of the messages that are left of a batch: how many of the first are decided next, at least one."""
LaidAside = Callable[[Received, str], list[Outgoing]]
"""Given a message that cannot be processed and the reason: what is stored of it."""


@dataclass(slots=True)
class _Delivery:
    """One message of a batch: what follows from it, and how it is to be settled."""

    msg: Msg
    received: Received
    out: list[Outgoing] = field(default_factory=list)
    outcome: str = "decided"
    pause_s: float | None = None
    deliveries: int = 1
    """Those that count."""

    @property
    def uncounted(self) -> bool:
        """This delivery reached no decision."""
        return self.outcome in (_PARKED, _UNSTORED)

    def again(self, outcome: str) -> None:
        self.out = []
        self.outcome = outcome
        self.pause_s = PAUSES_S[min(self.received.deliveries, len(PAUSES_S)) - 1]

    def bury(self, out: list[Outgoing], outcome: str) -> None:
        self.out = out
        self.outcome = outcome
        self.pause_s = None


def consume(
    broker: Broker,
    *,
    stream: str,
    durable: str,
    origin: str,
    decide: Decide,
    outbox: Callable[[], Outbox],
    batch: int = 256,
    batch_size: BatchSize | None = None,
    laid_aside: LaidAside | None = None,
) -> None:
    """Registers a pull consumer on a provisioned durable: batches in, `decide` per message, outputs stored, then acks.

    `origin` is the service's name, for dead letters. `decide` returns what follows from a message; it may be async and
    may raise Malformed or Transient. `outbox` gives the outbox once the service is connected. `batch_size` says how many of a
    batch's messages are decided and stored together; while it waits, they are kept. `laid_aside` gives what is stored of a
    message that cannot be processed; by default its dead letter. Raises KeyError when the durable is not
    in the table of `libs.bus.table`, which also says what it filters.
    """
    entry = durable_of(stream, durable)
    shell = _Shell(origin, durable, decide, outbox, batch_size, laid_aside)
    broker.pulls(
        Pulled(
            stream=stream,
            durable=durable,
            subject=entry.filter_subjects[0],
            config=consumer_config(entry),
            inbox_prefix=f"{service_inbox(origin)}.",
            batch=batch,
            take=shell.on_batch,
        )
    )


def received_of(msg: Msg) -> Received:
    """A JetStream message as plain data."""
    told = delivery(msg.reply)
    return Received(
        subject=msg.subject,
        headers=msg.headers or {},
        payload=msg.data,
        stream=told.stream,
        stream_seq=told.seq,
        time_us=told.time_us,
        deliveries=told.deliveries,
    )


class _Shell:
    """Everything around `decide`."""

    def __init__(
        self,
        origin: str,
        durable: str,
        decide: Decide,
        outbox: Callable[[], Outbox],
        batch_size: BatchSize | None = None,
        laid_aside: LaidAside | None = None,
    ) -> None:
        self._batch_size = batch_size
        self._laid_aside = laid_aside or (lambda received, reason: [dead_letter(origin, received, reason)])
        self._origin = origin
        self._durable = durable
        self._decide = decide
        self._outbox = outbox
        self._uncounted: UncountedDeliveries | None = None
        self._freezes = FreezeDetector()
        self._parked: OrderedDict[int, float] = OrderedDict()  # stream sequence -> when it was put off last
        self._slow: set[int] = set()  # of the batch at hand: what took this process long, by stream sequences
        self._stood: OrderedDict[int, int] = OrderedDict()  # stream sequence -> how often its batch was lost over it

    async def on_batch(self, messages: Sequence[Msg]) -> None:
        left = list(messages)
        self._slow.clear()
        try:
            if self._uncounted is None:
                self._uncounted = UncountedDeliveries(Cursors(self._outbox().js, self._origin), self._durable)
            uncounted = self._uncounted
            async with keep_in_progress(left, self._freezes) as held:
                while left:
                    count = len(left) if self._batch_size is None else await self._batch_size(left)
                    with BATCH_SECONDS.labels(self._durable).time():
                        await self._handle(left[:count], uncounted, held)
                    del left[:count]
        except NotHeld as e:
            log.warning("%s: %d of a batch were given to another process: %s", self._origin, len(left), e)
            lost = list(map(received_of, left))
            for one in lost:
                self._count_standstill(one)
            await uncounted.discount(one for one in lost if one.stream_seq not in self._stood)
        except (NatsError, OSError) as e:
            # Whatever was not acknowledged is delivered again after ack_wait.
            log.warning("%s: a batch of %d could not be acknowledged: %s", self._origin, len(messages), e)
        except Exception:
            log.exception("%s: settling a batch of %d failed", self._origin, len(messages))

    async def _handle(self, messages: Sequence[Msg], uncounted: UncountedDeliveries, held: StillOwned) -> None:
        found = [_Delivery(m, received_of(m)) for m in messages]
        await uncounted.recall(case.received for case in found)
        cases = [await self._decided(case, uncounted.counted(case.received)) for case in found]
        failpoint("settle.decided")
        await self._store(cases, held)
        failpoint("settle.stored")
        await uncounted.discount(case.received for case in cases if case.uncounted)
        for case in cases:
            await _settle(case)
            self._note(case, uncounted)
        PARKED_NOW.labels(self._durable).set(len(self._parked))

    def _note(self, case: _Delivery, uncounted: UncountedDeliveries) -> None:
        """Counts a case that was settled."""
        SETTLED.labels(self._durable, case.outcome).inc()
        seq, now = case.received.stream_seq, clock.boot_s()
        self._parked.pop(seq, None)
        if case.uncounted:
            self._parked[seq] = now
        elif case.pause_s is None:
            uncounted.settled(case.received)
            self._stood.pop(seq, None)
        while self._parked and next(iter(self._parked.values())) < now - _ELSEWHERE_S:
            self._parked.popitem(last=False)

    async def _decided(self, case: _Delivery, deliveries: int) -> _Delivery:
        """`deliveries` are those that count."""
        case.deliveries = deliveries
        if deliveries > CRASH_DELIVERIES or self._stood.get(case.received.stream_seq, 0) >= MAX_BUG_DELIVERIES:
            reason = f"delivered {deliveries} times and never settled"
            case.bury(self._laid_aside(case.received, reason), "crashed")
            return case
        began_s = time.thread_time()
        try:
            try:
                result = self._decide(case.received)
            finally:
                if time.thread_time() - began_s > _SLOW_S:
                    self._slow.add(case.received.stream_seq)
            case.out = list(await result if inspect.isawaitable(result) else result)
        except Malformed as e:
            case.bury(self._laid_aside(case.received, str(e)), "malformed")
        except NoRoom as e:
            self._busy(case, e)
        except Exception as e:
            self._failed(case, e)
        return case

    def _count_standstill(self, received: Received) -> None:
        """Who stands still over a message is no frozen process: that it was given to another one is the message's doing."""
        seq = received.stream_seq
        if seq in self._slow:
            self._stood[seq] = self._stood.pop(seq, 0) + 1
            while len(self._stood) > _REMEMBERED_SLOW:
                self._stood.popitem(last=False)

    def _busy(self, case: _Delivery, error: NoRoom) -> None:
        """Parked where there is room for it, else answered."""
        seq = case.received.stream_seq
        if error.answer and seq not in self._parked and len(self._parked) >= PARKED:
            case.out, case.outcome = error.answer, "busy"
            return
        self._parked.setdefault(seq, clock.boot_s())
        case.again(_PARKED)

    def _failed(self, case: _Delivery, error: Exception) -> None:
        passing = isinstance(error, Transient | NatsError | OSError | TimeoutError)
        received = case.received
        if not passing:
            log.error("%s: a bug met %s (%s)", self._origin, received.cause, received.subject, exc_info=error)
        if case.deliveries < (MAX_DELIVERIES if passing else MAX_BUG_DELIVERIES):
            case.again("retried")
        else:
            why = f"given up after {case.deliveries} deliveries: {type(error).__name__}: {error}"
            case.bury(self._laid_aside(received, why), "exhausted" if passing else "bug")

    async def _store(self, cases: Sequence[_Delivery], held: StillOwned) -> None:
        """Stores what follows from the batch; a case whose outputs cannot be stored is to come again. Raises NotHeld."""
        items = [(case, item) for case in cases for item in case.out]
        try:
            await self._outbox().publish_many([item for _, item in items], held=held)
        except NotHeld:
            raise
        except NotStored as e:
            log.warning("%s: %s", self._origin, e)
            unstored = {id(items[i][0]) for i in e.unstored}
            for case in cases:
                if id(case) in unstored:
                    case.again(_UNSTORED)
        except (NatsError, ValueError, OSError) as e:
            # One output that the broker refuses must not hold up the others: each case by itself.
            log.warning("%s: storing a batch failed (%s), storing one by one", self._origin, e)
            for case in cases:
                await self._store_one(case, held)

    async def _store_one(self, case: _Delivery, held: StillOwned) -> None:
        for last in (False, True):
            try:
                await self._outbox().publish_many(case.out, held=held)
                return
            except NotHeld:
                raise
            except (NatsError, NotStored, ValueError, OSError) as e:
                # Refused for good by its own size or headers: a bug of `decide`. Its dead letter is the second try.
                if last or not isinstance(e, ValueError):
                    case.again(_UNSTORED)
                    return
                self._failed(case, e)


async def _settle(case: _Delivery) -> None:
    if case.pause_s is not None:
        await case.msg.nak(delay=case.pause_s)
    elif case.outcome in ("decided", "busy"):
        await case.msg.ack()
    else:
        await case.msg.term()
