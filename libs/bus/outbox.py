"""Publish to JetStream so that every message is stored, once, through restarts of the server.

What is guaranteed: `publish_many` returns when the broker has acknowledged every message. A message that was sent and
not acknowledged in time is sent again with the same `Nats-Msg-Id`, so within the stream's duplicate window it is
stored once. What is not: an order across a retry (a message may be stored after a later one), and anything after an
exception (some may be stored: send all again, their ids are the same). Ids are sent as `libs.bus.ids` makes them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, OutboundBufferLimitError
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from libs.bus.batches import Batches
from libs.bus.ids import sent_headers
from libs.bus.in_progress import StillOwned
from libs.bus.messages import Outgoing, header_bytes
from libs.bus.metrics import PUBLISHED, RETRIED
from libs.bus.push import push
from libs.bus.replies import Replies

MAX_PAYLOAD_BYTES = 1_000_000
"""Just under 1 MiB, what a server takes unless it is told otherwise, headers included; a larger message would cost the
connection. Only grants are larger, and the ledger's writer asks its server what it takes."""

MAX_HEADER_BYTES = 65_535
"""A stream stores no more of headers, whatever the server takes."""

_ROUND_MESSAGES = 1_000
"""Of one try: what it leaves unacknowledged is sent again before what follows."""

_UNDER_WAY = 64
"""Sent and not acknowledged, at the most. The broker stores all that has come for a stream, with a sync each, before it hands
out or acknowledges any of it: of a thousand at once none would be read before the last is stored."""

_AGAIN_S = 16.0
"""So long after it was sent a message is sent again over the same connection, at the latest."""

_LEAST_MESSAGES = 32
"""Sent again after the broker had no room for more of their sender: else twice what it took."""

_RETRY = (NoStreamResponseError, ServiceUnavailableError)
_OF_SUBJECT = "maximum messages per subject"
_FULL = (10077, 10047, 10023, 10054)
"""Maximum bytes exceeded, insufficient storage, insufficient resources: waiting a little will not help. And a message that is
larger than is taken: only REQUESTS has such a limit, while it fills up (`libs.bus.request_size_limit`)."""
_IN_PROCESS = 10158
"""A message with the same id is on its way into the stream: it was sent twice before the servers of a cluster agreed."""


def is_full(error: BaseException) -> bool:
    """Whether the broker refused because a stream, or its whole store, is full."""
    return isinstance(error, APIError) and error.err_code in _FULL


def is_undecided(error: BaseException) -> bool:
    """Whether the broker said neither that it took a message nor that it will not: it is to be sent again."""
    if is_full(error):
        return False
    return isinstance(error, _RETRY) or (isinstance(error, APIError) and error.err_code == _IN_PROCESS)


def is_subject_full(error: BaseException) -> bool:
    """Whether the broker refused because the subject has its maximum number of messages: some must be processed first."""
    return is_full(error) and _OF_SUBJECT in str(getattr(error, "description", ""))


class NotStored(TimeoutError):
    """Messages were not acknowledged in time: the broker is away, or no stream takes the subject.

    `unstored` are the positions, in what was given to `publish_many`, of those that are not known to be stored.
    """

    def __init__(self, text: str, unstored: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.unstored = tuple(unstored)


class SubjectFull(NotStored):
    """The sender has the maximum number of waiting messages, and the retries ran out of time."""


class NotHeld(NotStored):
    """The input may have been redelivered to another process meanwhile: nothing more of its output is sent."""


class TooLarge(ValueError):
    """A message, or its headers, are larger than the broker stores: it never will be."""


class Outbox:
    """Acknowledged, retrying, de-duplicated publish. Cheap to make; calls may overlap."""

    def __init__(
        self,
        js: JetStreamContext,
        *,
        ack_timeout_s: float = 2.0,
        give_up_s: float = 60.0,
        batches: bool = False,
        asks: bool = True,
    ) -> None:
        """`batches`: many messages of a stream that allows it go as one (`libs.bus.batches`). `asks`: what a stream allows is
        asked first, which takes the right to; else a refusal tells it."""
        self.js = js
        self._batches = Batches(js, ack_timeout_s, asks=asks) if batches else None
        self._nats: Client = js._nc
        self._ack_timeout_s = ack_timeout_s
        self._again_s = ack_timeout_s
        self._give_up_s = give_up_s

    async def publish_many(self, items: Sequence[Outgoing], *, held: StillOwned | None = None) -> list[PubAck]:
        """The acknowledgements of `items`, in their order. `held` is asked before each try whether they may still be sent.

        Nothing is sent while the server is away: what the client buffers then is lost at the reconnect.
        Raises TooLarge before anything is sent; NotHeld; NotStored when some are still unacknowledged after `give_up_s`; the
        broker's APIError when it refuses one (stream full, wrong expected sequence); ConnectionClosedError.
        """
        for item in items:
            _check_size(item)
        deadline = asyncio.get_running_loop().time() + self._give_up_s
        acks: dict[int, PubAck] = {}
        for start in range(0, len(items), _ROUND_MESSAGES):
            await self._round(items, range(start, min(start + _ROUND_MESSAGES, len(items))), acks, deadline, held)
        return [acks[i] for i in range(len(items))]

    async def publish(self, item: Outgoing) -> PubAck:
        """`publish_many` of one."""
        return (await self.publish_many([item]))[0]

    async def _round(
        self,
        items: Sequence[Outgoing],
        positions: Sequence[int],
        acks: dict[int, PubAck],
        deadline: float,
        held: StillOwned | None,
    ) -> None:
        expected: _Expected = {}
        try:
            await self._tries(items, positions, expected, acks, deadline, held)
        finally:
            for sent in expected.values():
                sent.ack.cancel()  # of no effect on those that are done

    async def _tries(
        self,
        items: Sequence[Outgoing],
        positions: Sequence[int],
        expected: "_Expected",
        acks: dict[int, PubAck],
        deadline: float,
        held: StillOwned | None,
    ) -> None:
        todo = list(positions)
        pause = 0.05
        tried = _Attempted()
        batches = self._batches
        while True:
            attempted = len(todo)
            if held is not None and not held():
                unstored = [i for i in range(len(items)) if i not in acks]
                raise NotHeld(f"{len(unstored)} of {len(items)} messages were not sent in time", unstored)
            if self._nats.is_closed:
                raise ConnectionClosedError
            if self._nats.is_connected:
                unheard: list[int] = []
                if batches is not None:
                    todo, unheard = await batches.send(items, todo, acks)
                    # One that is not answered in time never may be; each message can wait for its own answer.
                    batches = None
                most = len(todo) if tried.most is None else tried.most
                now, later = todo[:most], todo[most:]
                tried = await self._attempt(items, now, expected, acks) if now else _Attempted()
                todo = sorted(tried.rest + later + unheard)
            if not todo:
                PUBLISHED.inc(len(positions))
                return
            if asyncio.get_running_loop().time() > deadline:
                unstored = [i for i in range(len(items)) if i not in acks]
                raise (SubjectFull if tried.most else NotStored)(
                    f"{len(unstored)} of {len(items)} messages not acknowledged (first: {items[todo[0]].subject}): "
                    "is NATS up, and does a stream take this subject? `baton provision` creates them",
                    unstored,
                )
            RETRIED.inc(len(todo))
            await asyncio.sleep(pause)
            pause = 0.05 if len(todo) < attempted else min(1.0, pause * 2)

    async def _attempt(
        self, items: Sequence[Outgoing], todo: Sequence[int], expected: "_Expected", acks: dict[int, PubAck]
    ) -> "_Attempted":
        """Sends `todo` once; tells those without an acknowledgement. One that is still expected of an earlier try counts: by a
        slow broker none comes in the time of one. Over the connection on which it is under way it is sent again later each time
        then: one that carries little would carry nothing else. Raises what the broker refused for good."""
        replies = await Replies.of(self._nats)
        loop = asyncio.get_running_loop()
        sent: list[asyncio.Future[PubAck]] = []
        try:
            async with asyncio.timeout(self._ack_timeout_s):
                for number, i in enumerate(todo):
                    if number >= _UNDER_WAY and number % (_UNDER_WAY // 2) == 0:  # woken for half of them, not for each
                        await asyncio.wait({sent[number - _UNDER_WAY // 2 - 1]})
                    if i not in expected:
                        expected[i] = _UnderWay(*replies.expect())
                    one, item = expected[i], items[i]
                    sent.append(one.ack)
                    if one.is_due(self._nats, loop.time(), self._again_s):
                        await self._nats.publish(
                            item.subject, item.payload, reply=one.reply_to, headers=sent_headers(self._nats, item)
                        )
                push(self._nats)
                await asyncio.wait(sent)
        except (TimeoutError, OutboundBufferLimitError):
            pass
        answered = [one for one in expected.values() if one.ack.done()]
        if any(one.times > 1 for one in answered):
            self._again_s = min(2 * self._again_s, _AGAIN_S)
        elif len(answered) == len(expected):
            self._again_s = max(self._again_s / 2, self._ack_timeout_s)
        return _collect(expected, todo, acks)


@dataclass(slots=True)
class _UnderWay:
    """A message that was not answered, or not sent yet: the acknowledgement to come, and the subject that it comes to."""

    ack: "asyncio.Future[PubAck]"
    reply_to: str
    times: int = 0
    """it was sent, over one connection."""
    _again_at: float = 0.0
    _connection: int = -1

    def is_due(self, nats: Client, now: float, again_s: float) -> bool:
        """Whether it is to be sent now; then it counts as sent."""
        connection = nats.stats["reconnects"]
        if self.ack.done() or (connection == self._connection and now < self._again_at):
            return False
        self.times = self.times + 1 if connection == self._connection else 1
        self._connection, self._again_at = connection, now + again_s
        return True


_Expected = dict[int, _UnderWay]


def _check_size(item: Outgoing) -> None:
    if len(item.payload) > MAX_PAYLOAD_BYTES:
        raise TooLarge(f"{item.subject}: {len(item.payload)} bytes; at most {MAX_PAYLOAD_BYTES} can be sent")
    if (size := header_bytes(item.headers)) > MAX_HEADER_BYTES:
        raise TooLarge(f"{item.subject}: its headers take {size} bytes; at most {MAX_HEADER_BYTES} are stored")


@dataclass(frozen=True, slots=True)
class _Attempted:
    """What became of one attempt: `rest` is to be sent again, at the next no more than `most`; None: all of it."""

    rest: list[int] = field(default_factory=list)
    most: int | None = None


def _collect(expected: _Expected, todo: Sequence[int], acks: dict[int, PubAck]) -> _Attempted:
    """Moves acknowledged messages into `acks`; returns the rest. Raises the first that is refused for good."""
    rest = []
    refusal: BaseException | None = None
    subject_full = False
    for i in todo:
        future = expected[i].ack if i in expected else None
        if future is None or not future.done():
            rest.append(i)
            continue
        del expected[i]
        if (error := future.exception()) is None:
            acks[i] = future.result()
        elif is_subject_full(error):
            rest.append(i)
            subject_full = True
        elif is_undecided(error):
            rest.append(i)
        else:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return _Attempted(rest, max(_LEAST_MESSAGES, 2 * (len(todo) - len(rest))) if subject_full else None)
