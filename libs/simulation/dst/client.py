"""A client of the simulated broker: what services use of nats-py's, on its own messages and its own JetStream context."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from nats.aio.msg import Msg
from nats.errors import BadSubscriptionError, ConnectionClosedError, MaxPayloadError, NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from nats.js.errors import APIError, ServiceUnavailableError
from nats.js.object_store import ObjectStore

from libs.simulation.dst.objects import SimObjects

if TYPE_CHECKING:
    from libs.simulation.dst.net import Link, SimNet
    from libs.simulation.dst.process import Process

MAX_PAYLOAD = 1024 * 1024
_RECONNECT_S = 0.25


class _Version:
    major, minor, patch = 2, 15, 1


class _Nuid:
    """Unique and the same in each run."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._count = prefix, 0

    def next(self) -> bytearray:
        self._count += 1
        return bytearray(f"{self._prefix}{self._count:06d}", "ascii")


class SimSubscription:
    """Messages of one subject, in order: to the callback one after the other, or to `next_msg`."""

    def __init__(self, client: "SimClient", sid: int, subject: str, queue: str, cb: Any) -> None:
        self.client, self.sid, self.subject, self.queue, self.cb = client, sid, subject, queue, cb
        self.pending: deque[Msg] = deque()
        self._busy = self._works = False
        self._waiter: asyncio.Future[None] | None = None
        self.open = True

    def told(self, reply: str) -> bool:
        """Whether a message is one that was not asked for: neither from a stream nor an answer."""
        return not self.subject.startswith(self.client._inbox) and not reply.startswith("$JS.ACK.")

    def arrived(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        if not self.open:
            return
        self.pending.append(Msg(self.client, subject, reply, data, headers))  # type: ignore[arg-type]
        if self.cb is None or self._works:
            if not self._busy:
                self._wake()
        else:
            self._works = self._busy = True
            self.client.process.world.loop.create_task(self._work())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _work(self) -> None:
        """One task for all messages, as nats-py has."""
        process = self.client.process
        try:
            while self.open:
                self._busy = True
                while self.pending and self.open:
                    try:
                        await self.cb(self.pending.popleft())
                    except Exception as error:
                        # nats-py hands it to error_cb, which logs it; a callback that raises is somebody's bug.
                        process.world.raised(process, error)
                self._busy = False
                self._waiter = process.world.loop.create_future()
                await self._waiter
        finally:
            self._works = self._busy = False

    async def next_msg(self, timeout: float | None = 1.0) -> Msg:
        if not self.pending:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._waiter
            except TimeoutError:
                raise NatsTimeout from None
        return self.pending.popleft()

    async def unsubscribe(self, limit: int = 0) -> None:
        if self.client.is_closed:
            raise ConnectionClosedError
        if not self.open:
            raise BadSubscriptionError
        self.open = False
        self._wake()
        self.client.forget(self)


class SimClient:
    """The connection of one process. It reconnects for ever; what it sends meanwhile is lost."""

    def __init__(self, net: "SimNet", process: "Process", name: str, number: int, inbox_prefix: str | None) -> None:
        self._net = net
        self.process = process
        self.name = name
        self.number = number
        self.is_closed = False
        self.max_payload = MAX_PAYLOAD
        self.stats = {"reconnects": 0}
        self.last_error: Exception | None = None
        self.subscriptions: dict[int, SimSubscription] = {}
        self.link: Link | None = None
        self.connected_server_version = _Version()
        self._nuid = _Nuid(f"n{number:04d}")
        self._inbox = f"{inbox_prefix or '_INBOX'}.c{number}"
        self._replies = f"{self._inbox}.r"
        self._waiting: dict[str, asyncio.Future[Msg | None]] = {}
        self._count = 0
        self._sid = 0
        self._up = asyncio.Event()

    # ------------------------------------------------------------------------------------------------------- connection

    @property
    def is_connected(self) -> bool:
        return self.link is not None and self.link.open and not self.is_closed

    async def first_connection(self, wait_s: float) -> None:
        self._dial()
        try:
            async with asyncio.timeout(wait_s):
                await self._up.wait()
        except TimeoutError:
            from libs.bus.connect import BusUnavailable

            self.is_closed = True
            raise BusUnavailable(f"no NATS server answered within {wait_s:g} s") from None

    def _dial(self) -> None:
        if self.is_closed or not self.process.alive or self.is_connected:
            return
        if not self._net.reachable(self.process.machine):
            self.process.call_at(self._net.world.loop.now + _RECONNECT_S, self._dial)
            return
        self.link = link = self._net.link(self)
        if self._up.is_set():
            self.stats["reconnects"] += 1
        self._up.set()
        broker = self._net.broker
        link.send("up", broker.subscribe, self, 0, f"{self._replies}.*", "")
        for sub in self.subscriptions.values():
            link.send("up", broker.subscribe, self, sub.sid, sub.subject, sub.queue)

    def disconnected(self) -> None:
        """The link broke."""
        self.link = None
        if not self.is_closed and self.process.alive:
            self.process.call_at(self._net.world.loop.now + _RECONNECT_S, self._dial)

    def killed(self) -> None:
        """Its process died."""
        self.is_closed = True
        if self.link is not None:
            self.link.left = self._net.world.random.random() < 0.5
            self.link.reset()

    async def flush(self, timeout: float = 10) -> None:
        """One round trip: the broker knows of all that was sent."""
        try:
            await self.request("$SIM.PING", b"", timeout)
        except NoRespondersError:
            return

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.killed()

    async def drain(self) -> None:
        await self.close()

    # --------------------------------------------------------------------------------------------------------- messages

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        if self.is_closed:
            raise ConnectionClosedError
        if len(payload) > self.max_payload:
            raise MaxPayloadError
        self._send(subject, payload, reply, headers)

    def _send(self, subject: str, payload: bytes, reply: str, headers: dict[str, Any] | None) -> None:
        link = self.link
        if link is None or not link.open:
            return
        held = dict(headers) if headers else None
        net = self._net
        net.world.trace(self.process.name, subject, payload)
        if net.troubled:
            copies, delay = net.fate()
            if delay:  # on another way: it overtakes nothing, and is overtaken
                broker = net.broker_process
                if broker is not None:
                    broker.call_at(net.world.loop.now + delay, net.broker.publish, subject, reply, payload, held)
                return
            for _ in range(copies):
                link.send("up", net.broker.publish, subject, reply, payload, held)
            return
        link.send("up", net.broker.publish, subject, reply, payload, held)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        if self.is_closed:
            raise ConnectionClosedError
        if len(payload) > self.max_payload:
            raise MaxPayloadError
        self._count += 1
        reply = f"{self._replies}.{self._count}"
        loop = self._net.world.loop
        answer: asyncio.Future[Msg | None] = loop.create_future()
        self._waiting[reply] = answer
        self._send(subject, payload, reply, headers)
        timer = loop.call_later(timeout, _too_late, answer)
        try:
            message = await answer
        finally:
            timer.cancel()
            self._waiting.pop(reply, None)
        if message is None:
            raise NatsTimeout
        if not message.data and message.headers and message.headers.get("Status") == "503":
            raise NoRespondersError
        return message

    async def subscribe(
        self, subject: str, queue: str = "", cb: Callable[[Msg], Awaitable[None]] | None = None, **_: Any
    ) -> SimSubscription:
        if self.is_closed:
            raise ConnectionClosedError
        self._sid += 1
        sub = self.subscriptions[self._sid] = SimSubscription(self, self._sid, subject, queue, cb)
        if self.link is not None:
            self.link.send("up", self._net.broker.subscribe, self, sub.sid, subject, queue)
        return sub

    def forget(self, sub: SimSubscription) -> None:
        self.subscriptions.pop(sub.sid, None)
        if self.link is not None:
            self.link.send("up", self._net.broker.unsubscribe, self, sub.sid)

    def new_inbox(self) -> str:
        self._count += 1
        return f"{self._inbox}.i{self._count}"

    def delivered(self, sid: int, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """A message from the broker."""
        if sid == 0:
            future = self._waiting.pop(subject, None)
            if future is not None and not future.done():
                future.set_result(Msg(self, subject, reply, data, headers))  # type: ignore[arg-type]
            return
        sub = self.subscriptions.get(sid)
        if sub is not None:
            if self.process.overrun and sub.told(reply):
                return
            sub.arrived(subject, reply, data, dict(headers) if headers else None)

    def jetstream(self, **_: Any) -> "SimJetStream":
        return SimJetStream(self)


def _too_late(answer: "asyncio.Future[Msg | None]") -> None:
    if not answer.done():
        answer.set_result(None)


class SimJetStream(JetStreamContext):
    """nats-py's own context, but for two things: its object store reads through a push consumer, and this one by direct gets;
    what it says of a stream is read once as long as the broker's answer stays the same."""

    def __init__(self, client: SimClient) -> None:
        super().__init__(client)  # type: ignore[arg-type]

    async def stream_info(self, name: str, subjects_filter: str | None = None) -> StreamInfo:
        question = json.dumps({"subjects_filter": subjects_filter}).encode() if subjects_filter else b""
        try:
            reply = await self._nc.request(f"{self._prefix}.STREAM.INFO.{name}", question, self._timeout)
        except NoRespondersError:
            raise ServiceUnavailableError from None
        return stream_info(reply.data)

    async def object_store(self, bucket: str) -> ObjectStore:
        return SimObjects(name=bucket, stream=f"OBJ_{bucket}", js=self)


def stream_info(payload: bytes) -> StreamInfo:
    """As nats-py reads it. Raises APIError as it does."""
    answer = json.loads(payload)
    if "error" in answer:
        APIError.from_error(answer["error"])
    return StreamInfo.from_response(answer)
