"""One team's requests in their order, as they are stored: an ephemeral consumer of the team's subjects, without acks.

A direct get for each look costs more: the broker counts what is left after it, and it waits for the stream's lock at
each message. A consumer is told by the broker, at once, and only of this team's. What is on its way and in memory is
bounded by `most` requests, and by a page of bytes that is asked for while less than a page is held. Whatever is irregular (a
lost delivery, a new connection, silence) ends the lane: it is opened again behind what was decided.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from libs.bus.dead import Received
from libs.bus.delivery import delivery
from libs.bus.messages import header_bytes
from libs.bus.settle import received_of
from schemas import subjects
from schemas.subjects import REQUESTS

_EXPIRES_S = 30.0
_HEARTBEAT_S = 1.0
_SILENCE_S = 5.0
_FORGET_S = 30.0
_API_S = 5.0
_ENDED = ("Batch Completed", "Message Size Exceeds MaxBytes")
"""One request for messages is over; the consumer lives."""


class TeamLane:
    """`held` are its requests that were read and not decided; `more`: how many the broker has behind them; `read`: the
    sequence of the last that was read. `news` is called when one has come."""

    def __init__(
        self, js: JetStreamContext, team: str, after: int, *, most: int, page: int, news: Callable[[], None]
    ) -> None:
        self.team = team
        self.held: deque[Received] = deque()
        self.read = after
        self.more = 0
        self.broken = ""
        self.heard_s = 0.0
        """When a request came last, or it was opened: seconds of the loop's clock."""
        self._js, self._most, self._page, self._news = js, most, page, news
        self._name = ""
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._reconnects = 0
        self._asked = 0  # asked for and not come
        self._delivered = 0
        self._alive_s = 0.0

    @property
    def bytes(self) -> int:
        """Of the requests that are held."""
        return sum(len(r.payload) + header_bytes(r.headers) for r in self.held)

    async def open(self) -> None:
        """Raises nats errors."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.read + 1,
            filter_subject=subjects.anyone(subjects.COMMAND, entity="job", team=self.team),
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_FORGET_S,
            mem_storage=True,
            num_replicas=1,
            max_deliver=1,
        )
        nats = self._js._nc
        self._reconnects = nats.stats["reconnects"]
        created = await self._js.add_consumer(REQUESTS, config, timeout=_API_S)
        self._name, self.more = created.name, created.num_pending or 0
        self._inbox = nats.new_inbox()
        self.heard_s = self._alive_s = asyncio.get_running_loop().time()
        self._subscription = await nats.subscribe(self._inbox, cb=self._heard)

    async def ask(self) -> None:
        """Asks for as many as there is room for, when that is half of it. Raises nats errors."""
        room = self._most - self._asked - len(self.held)
        if self.broken or room < self._most // 2 or self.bytes >= self._page:
            return
        request = {
            "batch": room,
            "expires": int(_EXPIRES_S * 1e9),
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
            "max_bytes": self._page,
        }
        self._asked += room
        subject = f"{self._js._prefix}.CONSUMER.MSG.NEXT.{REQUESTS}.{self._name}"
        await self._js._nc.publish(subject, json.dumps(request).encode(), reply=self._inbox)

    async def close(self) -> None:
        """Gives the consumer back; what is held is forgotten. Raises nats errors."""
        self.broken = self.broken or "closed"
        self.held.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None and self._js._nc.is_connected:
            await subscription.unsubscribe()
            await self._js._nc.publish(f"{self._js._prefix}.CONSUMER.DELETE.{REQUESTS}.{self._name}", b"")

    def check(self, now: float) -> None:
        """Whether it is still whole: `broken` says what is wrong."""
        if self._js._nc.stats["reconnects"] != self._reconnects:
            self.broken = self.broken or "the connection was made anew"
        elif self._asked > 0 and now - self._alive_s > _SILENCE_S:
            self.broken = self.broken or f"neither message nor heartbeat for {_SILENCE_S:g} s"

    async def _heard(self, message: Msg) -> None:
        self._alive_s = asyncio.get_running_loop().time()
        if self.broken:
            return
        if not message.reply.startswith("$JS.ACK."):
            self._status(message.headers or {})
            return
        told = delivery(message.reply)
        if told.consumer_seq != self._delivered + 1:
            self.broken = f"delivery {self._delivered + 1} was lost before {told.consumer_seq}"
            return
        self._delivered, self._asked = told.consumer_seq, self._asked - 1
        self.read, self.more, self.heard_s = told.seq, told.pending, self._alive_s
        self.held.append(received_of(message))
        self._news()

    def _status(self, headers: Mapping[str, str]) -> None:
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            if int(headers.get("Nats-Last-Consumer", 0)) > self._delivered:
                self.broken = "a delivery was lost"
            return
        self._asked -= int(headers.get("Nats-Pending-Messages", 0))
        if status != "408" and text not in _ENDED:
            self.broken = f"the broker ended the consumer: {status} {text}".strip()
