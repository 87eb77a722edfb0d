"""Publish to JetStream so that every message is stored, once, through restarts of the server.

What is guaranteed: `publish_many` returns when the broker has acknowledged every message. A message that was sent and
not acknowledged in time is sent again with the same `Nats-Msg-Id`, so within the stream's duplicate window it is
stored once. What is not: an order across a retry (a message may be stored after a later one), and anything after an
exception (some may be stored: send all again, their ids are the same).
"""

import asyncio
import time
from collections.abc import Sequence

from nats.errors import ConnectionClosedError, OutboundBufferLimitError
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import NoStreamResponseError, ServiceUnavailableError, TooManyStalledMsgsError

from libs.bus.messages import Outgoing
from libs.bus.metrics import PUBLISHED, RETRIED

MAX_PAYLOAD_BYTES = 1_000_000
"""Just under the server's 1 MiB, which counts headers as well; a larger message would cost the connection."""

_ROUND_MESSAGES = 1_000
"""Below the client's 4,000 pending acknowledgements, so that several publishers never starve each other."""

_RETRY = (NoStreamResponseError, ServiceUnavailableError)


class NotStored(TimeoutError):
    """Messages were not acknowledged in time: the broker is away, or no stream takes the subject.

    `unstored` are the positions, in what was given to `publish_many`, of those that are not known to be stored.
    """

    def __init__(self, text: str, unstored: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.unstored = tuple(unstored)


class TooLarge(ValueError):
    """A message is larger than the broker accepts."""


class Outbox:
    """Acknowledged, retrying, de-duplicated publish. One per connection is enough; calls may overlap."""

    def __init__(self, js: JetStreamContext, *, ack_timeout_s: float = 2.0, give_up_s: float = 60.0) -> None:
        self._js = js
        self._ack_timeout_s = ack_timeout_s
        self._give_up_s = give_up_s

    async def publish_many(self, items: Sequence[Outgoing]) -> list[PubAck]:
        """The acknowledgements of `items`, in their order.

        Nothing is sent while the server is away: what the client buffers then is lost at the reconnect.
        Raises TooLarge before anything is sent; NotStored when some are still unacknowledged after `give_up_s`; the
        broker's APIError when it refuses one (stream full, wrong expected sequence); ConnectionClosedError.
        """
        for item in items:
            if len(item.payload) > MAX_PAYLOAD_BYTES:
                raise TooLarge(f"{item.subject}: {len(item.payload)} bytes; at most {MAX_PAYLOAD_BYTES} can be sent")
        deadline = time.monotonic() + self._give_up_s
        acks: dict[int, PubAck] = {}
        for start in range(0, len(items), _ROUND_MESSAGES):
            await self._round(items, range(start, min(start + _ROUND_MESSAGES, len(items))), acks, deadline)
        return [acks[i] for i in range(len(items))]

    async def publish(self, item: Outgoing) -> PubAck:
        """`publish_many` of one."""
        return (await self.publish_many([item]))[0]

    async def _round(
        self, items: Sequence[Outgoing], positions: Sequence[int], acks: dict[int, PubAck], deadline: float
    ) -> None:
        todo = list(positions)
        pause = 0.05
        while True:
            sent = await self._send(items, todo) if self._js._nc.is_connected else {}
            try:
                if sent:
                    await asyncio.wait(sent.values(), timeout=self._ack_timeout_s)
                todo = _collect(sent, todo, acks)
            finally:
                for future in sent.values():
                    # Cancelling gives nats-py's permit back; a future that is forgotten keeps it for ever.
                    future.cancel()
            if not todo:
                PUBLISHED.inc(len(positions))
                return
            if time.monotonic() > deadline:
                unstored = [i for i in range(len(items)) if i not in acks]
                raise NotStored(
                    f"{len(unstored)} of {len(items)} messages not acknowledged (first: {items[todo[0]].subject}): "
                    "is NATS up, and does a stream take this subject? `baton provision` creates them",
                    unstored,
                )
            if self._js._nc.is_closed:
                raise ConnectionClosedError
            RETRIED.inc(len(sent))
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)

    async def _send(self, items: Sequence[Outgoing], todo: Sequence[int]) -> dict[int, "asyncio.Future[PubAck]"]:
        sent: dict[int, asyncio.Future[PubAck]] = {}
        try:
            # wait_stall= would wrap every message in a wait_for (30,000/s -> 4,000/s): the whole loop is bounded instead
            async with asyncio.timeout(self._ack_timeout_s):
                for i in todo:
                    item = items[i]
                    sent[i] = await self._js.publish_async(item.subject, item.payload, headers=dict(item.headers))
        except (TimeoutError, TooManyStalledMsgsError, OutboundBufferLimitError):
            # nats-py turns a cancellation into TooManyStalledMsgsError: find out whether it was ours or our caller's
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                for future in sent.values():
                    future.cancel()
                raise asyncio.CancelledError from None
        except BaseException:
            for future in sent.values():
                future.cancel()
            raise
        return sent


def _collect(sent: dict[int, "asyncio.Future[PubAck]"], todo: Sequence[int], acks: dict[int, PubAck]) -> list[int]:
    """Moves acknowledged messages into `acks`; returns the rest. Raises what the broker refused for good."""
    rest = []
    refusal: BaseException | None = None
    for i in todo:
        future = sent.get(i)
        if future is None or not future.done() or future.cancelled():
            rest.append(i)
        elif (error := future.exception()) is None:
            acks[i] = future.result()
        elif isinstance(error, _RETRY):
            rest.append(i)
        else:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return rest
