"""Pulls messages of a durable consumer without added latency: a message is handed over when it arrives.

nats-py's `fetch` asks twice, with and without waiting. A current broker waits at the first as well: a message that arrives then
is kept until the request ends, up to a whole `timeout` after it was stored, which cost a job in an idle cluster half a second.
It also makes two tasks and a timer for each message. Here one request is open at a time. It outlives the call that made it, as
in nats-py, so at most `batch` messages wait here while the caller is busy, and only for as long as `timeout` allows the broker
to send them. A message that is settled late is delivered again.
"""

import asyncio
import json
from typing import Any

from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import PubAck

from libs.bus.decaying_count import DecayingCount
from libs.bus.delivery import delivery
from libs.bus.push import push
from libs.bus.replies import Replies
from libs.ports.clock import until_turn

_MORE_S = 0.02
"""For messages that the broker has and was asked for, after the first; then what is here is enough. While somebody sends
without a pause it has more at any time."""
_GRACE_S = 0.5
"""After its end a request of which nothing was heard is forgotten."""
_MANY = 5
_LINGER_S = 0.005
_GLANCE_S = 0.005
_ENOUGH = 8
"""The batching window under load: while `_MANY` messages came recently, a message waits so long for others, or until there are
enough, because each batch has a fixed cost."""
_REFUSED_S = 0.1
_ENDED = ("404", "408")
"""Nothing there, or no time left: the usual ends of a request."""
_BEAT = "100"
_TO_SETTLE = "$JS.ACK."


class JetStream(JetStreamContext):
    """JetStream whose pull subscriptions are `Pull`, and whose publishes are sent and acknowledged in fewer turns of the event
    loop."""

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | None = None,
        stream: str | None = None,
        headers: dict[str, Any] | None = None,
        msg_ttl: float | None = None,
    ) -> PubAck:
        """As nats-py's."""
        if stream is not None or msg_ttl is not None:
            return await super().publish(subject, payload, timeout, stream, headers, msg_ttl)
        answer, reply_to = (await Replies.of(self._nc)).expect()
        try:
            await self._nc.publish(subject, payload, reply=reply_to, headers=headers)
            push(self._nc)
            async with asyncio.timeout(self._timeout if timeout is None else timeout):
                return await answer
        except TimeoutError:
            raise NatsTimeout from None
        finally:
            answer.cancel()  # of no effect on one that has come

    async def pull_subscribe_bind(self, *args: Any, **kwargs: Any) -> JetStreamContext.PullSubscription:
        made = await super().pull_subscribe_bind(*args, **kwargs)
        return Pull(self, made._sub, made._stream, made._consumer, made._deliver.encode())


class Pull(JetStreamContext.PullSubscription):
    """One subscription; `fetch` is not to be called twice at a time."""

    _asked = 0
    """Messages of the open request that are to come."""
    _until_s = 0.0
    _reconnects = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._recent_messages = DecayingCount()  # messages that were handed out

    async def fetch(self, batch: int = 1, timeout: float | None = 5.0, heartbeat: float | None = None) -> list[Msg]:
        """Up to `batch` messages: those that the broker has, else the next one that comes within `timeout` seconds.

        Raises nats.errors.TimeoutError when none comes, ConnectionClosedError, ValueError."""
        if batch < 1 or timeout is None or timeout <= 0:
            raise ValueError(f"batch is {batch} and timeout {timeout}: a pull has at least one message and an end")
        loop = asyncio.get_running_loop()
        end = loop.time() + min(timeout, until_turn(timeout))
        found: list[Msg] = []
        first_s = float("inf")
        while True:
            self._take(found, batch)
            now = loop.time()
            if found:
                first_s = min(first_s, now)
            if len(found) == batch or (found and not delivery(found[-1].reply).pending):
                fresh = len(found)
                until = min(now + _LINGER_S, end) if self._recent_messages.add(fresh, now) >= _MANY else now
                while len(found) < min(batch, _ENOUGH) and (left := until - loop.time()) > 0:
                    await asyncio.sleep(min(left, _GLANCE_S))  # one turn for all that comes meanwhile
                    self._take(found, batch)
                self._recent_messages.add(len(found) - fresh, loop.time())
                return found
            left = min(end, first_s + _MORE_S) - now
            try:
                if left <= 0:
                    raise NatsTimeout
                if not self._open(now):
                    await self._ask(batch - len(found), now, max(end - now, _MORE_S))
                refused = self._heard(await self._next(left), found)
            except NatsError:
                if found:
                    self._recent_messages.add(len(found), loop.time())
                    return found
                raise
            if refused:
                await asyncio.sleep(min(left, _REFUSED_S))

    def _take(self, found: list[Msg], batch: int) -> None:
        """What is here already."""
        queue = self._sub._pending_queue
        while len(found) < batch and not queue.empty():
            self._heard(self._taken(queue.get_nowait()), found)

    async def _next(self, wait_s: float) -> Msg:
        """As nats-py's `next_msg`, in one turn of the event loop: that makes two tasks, which take three more. Raises
        nats.errors.TimeoutError, ConnectionClosedError."""
        if self._nc.is_closed:
            raise ConnectionClosedError
        try:
            async with asyncio.timeout(wait_s):
                return self._taken(await self._sub._pending_queue.get())
        except TimeoutError:
            raise NatsTimeout from None

    def _taken(self, message: Msg) -> Msg:
        self._sub._pending_size -= len(message.data)
        self._sub._pending_queue.task_done()
        return message

    def _heard(self, message: Msg, found: list[Msg]) -> bool:
        """Takes a message, or what the broker says of the request; whether it refuses it. A message is what can be
        acknowledged: its headers are its sender's, who may write a status there."""
        if message.reply.startswith(_TO_SETTLE):
            self._asked -= 1
            found.append(message)
            return False
        status = (message.headers or {}).get("Status", _BEAT)
        if status != _BEAT:
            self._asked = 0
        return status != _BEAT and status not in _ENDED

    def _open(self, now: float) -> bool:
        """Whether the broker may still answer the last request."""
        return self._asked > 0 and now < self._until_s and self._nc.stats["reconnects"] == self._reconnects

    async def _ask(self, count: int, now: float, seconds: float) -> None:
        request = json.dumps({"batch": count, "expires": int(seconds * 1e9)}).encode()
        self._asked, self._until_s, self._reconnects = count, now + seconds + _GRACE_S, self._nc.stats["reconnects"]
        await self._nc.publish(self._nms, request, self._deliver)
