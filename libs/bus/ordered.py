"""An ordered consumer: the messages of a stream behind a sequence, in order, once each, without acknowledgements.

It is ephemeral, in the broker's memory, and pulled: one subscription, and requests that keep a bounded number of messages in
flight. The broker numbers its deliveries, so a lost one shows as a gap in *these* numbers, or in what a heartbeat says was
sent last. Any irregularity (a lost delivery, a new connection, silence) ends the consumer: `broken` says why, and its owner
opens another behind what was read. Late messages go to the old one only.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from libs.bus.delivery import Delivery, delivery
from libs.bus.retry import UNAVAILABLE

SILENCE_S = 5.0
"""No message and no heartbeat for so long, though some were asked for: the consumer is gone."""
_HEARTBEAT_S = 2.4  # one may be late; each wakes the broker and a process
_EXPIRES_S = 30.0
_FORGET_S = 30.0  # the broker drops a consumer that nobody asks for so long
_API_S = 5.0
_REQUEST_ENDED = ("Batch Completed", "Message Size Exceeds MaxBytes")  # one request is over; the consumer lives


class OrderedConsumer:
    """One life of it, of `stream` behind `after`. `take` is handed each message with what the broker says of it; `news` is
    called when a request is over, or a delivery was lost."""

    def __init__(
        self,
        js: JetStreamContext,
        stream: str,
        after: int,
        take: Callable[[Delivery, Msg], None],
        news: Callable[[], None],
    ) -> None:
        self.broken = ""
        self.heard_s = 0.0
        """When a message or a heartbeat came last, or it was opened: seconds of the loop's clock."""
        self._js, self._stream, self._after, self._take, self._news = js, stream, after, take, news
        self._nc = js._nc
        self._name = self._inbox = ""
        self._subscription: Subscription | None = None
        self._reconnects = 0
        self._asked = 0  # asked for and not delivered
        self._delivered = 0  # the consumer's number of the last message

    async def open(self, *, subject: str = "", metadata: Mapping[str, str] | None = None) -> int:
        """How many messages the broker has for it, of `subject` alone if one is given. Raises nats errors."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._after + 1,
            filter_subject=subject or None,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_FORGET_S,
            mem_storage=True,
            num_replicas=1,
            max_deliver=1,
            metadata=dict(metadata) if metadata else None,
        )
        self._reconnects = self._nc.stats["reconnects"]
        created = await self._js.add_consumer(self._stream, config, timeout=_API_S)
        self._name, self._inbox = created.name, self._nc.new_inbox()
        self.heard_s = asyncio.get_running_loop().time()
        self._subscription = await self._nc.subscribe(self._inbox, cb=self._heard)
        return created.num_pending or 0

    async def ask(self, most: int, held: int, max_bytes: int) -> None:
        """Asks for so many that `most` are on their way or `held`. Half of them at a time: more requests cost more, fewer let
        the pipe run dry. Raises nats errors."""
        room = most - held - self._asked
        if self.broken or room < most // 2:
            return
        request = {
            "batch": room,
            "expires": int(_EXPIRES_S * 1e9),
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
            "max_bytes": max_bytes,
        }
        self._asked += room
        subject = f"{self._js._prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        await self._nc.publish(subject, json.dumps(request).encode(), reply=self._inbox)

    def check(self, now: float) -> None:
        """Whether it is still whole at `now`, by the loop's clock."""
        if self.broken:
            return
        if self._nc.is_closed:
            self.broken = "the connection was closed"
        elif self._nc.stats["reconnects"] != self._reconnects:
            self.broken = "the connection was made anew"
        elif self._asked > 0 and now - self.heard_s > SILENCE_S:
            self.broken = f"neither message nor heartbeat for {SILENCE_S:g} s"

    def end(self, why: str) -> None:
        """Nothing that comes after this is taken."""
        self.broken = self.broken or why

    async def close(self) -> None:
        """Gives it back to the broker: a courtesy, it is forgotten after a while anyway."""
        self.broken = self.broken or "closed"
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        with suppress(*UNAVAILABLE):
            await subscription.unsubscribe()  # also without a connection, or the next one subscribes to it again
            if self._nc.is_connected:
                await self._nc.publish(f"{self._js._prefix}.CONSUMER.DELETE.{self._stream}.{self._name}", b"")

    async def _heard(self, message: Msg) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        if self.broken:
            return
        if not message.reply.startswith("$JS.ACK."):
            self._status(message.headers or {})
            return
        told = delivery(message.reply)
        if told.consumer_seq != self._delivered + 1:
            self.end(f"delivery {self._delivered + 1} was lost before {told.consumer_seq}")
            self._news()
            return
        self._delivered, self._asked = told.consumer_seq, self._asked - 1
        self._take(told, message)

    def _status(self, headers: Mapping[str, str]) -> None:
        """A message without payload from the broker: heartbeat, or the end of one request, or of the consumer."""
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            # A lost delivery is seen at the next one. Of the last delivery before a quiet time only the heartbeat tells.
            sent = int(headers.get("Nats-Last-Consumer", 0))
            if sent > self._delivered:
                self.end(f"delivery {sent} was lost")
                self._news()
            return
        self._asked -= int(headers.get("Nats-Pending-Messages", 0))
        if status != "408" and text not in _REQUEST_ENDED:
            self.end(f"the broker ended the consumer: {status} {text}".strip())
        self._news()
