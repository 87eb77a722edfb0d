"""One pull consumer of the simulated broker: requests that wait, deliveries, acknowledgements, redeliveries, heartbeats."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from libs.simulation.dst.loop import SimHandle
from libs.simulation.dst.stream import StoredMessage, Stream

if TYPE_CHECKING:
    from libs.simulation.dst.broker import SimBrokerServer


@dataclass(slots=True)
class PullRequest:
    """A pull request: how many messages and bytes are still wanted, and where."""

    reply: str
    left: int
    bytes_left: int
    ends: float
    heartbeat_s: float
    timers: list[SimHandle] = field(default_factory=list)


@dataclass(slots=True)
class Waiting:
    """A delivered message that was not acknowledged."""

    deliveries: int
    due: float


class Consumer:
    """`position` is the last stream sequence that was delivered for the first time."""

    def __init__(self, server: "SimBrokerServer", stream: Stream, name: str, config: dict[str, Any]) -> None:
        self.server, self.stream, self.name, self.config = server, stream, name, config
        self.durable = bool(config.get("durable_name"))
        filters = config.get("filter_subjects") or ([config["filter_subject"]] if config.get("filter_subject") else [])
        self.filters = tuple(filters)
        start = int(config.get("opt_start_seq") or 1)
        policy = config.get("deliver_policy", "all")
        self.position = (start - 1) if policy == "by_start_sequence" else 0
        if policy == "new":
            self.position = stream.last_seq
        self.delivered = 0
        self.requests: deque[PullRequest] = deque()
        self.unacked: dict[int, Waiting] = {}
        self.again: deque[int] = deque()
        self.acked = config.get("ack_policy", "explicit") != "none"
        self.ack_wait_s = (config.get("ack_wait") or 30e9) / 1e9
        self._last_sent = 0.0
        self._sweeping = False
        self._idle: SimHandle | None = None
        self._forget_s = (config.get("inactive_threshold") or 0) / 1e9
        self._heard_at = server.now

    def reopened(self, server: "SimBrokerServer") -> None:
        """The broker was started again: nobody asks yet, and what was not acknowledged is due when it was."""
        self.server = server
        self.requests.clear()
        self._idle, self._sweeping, self._heard_at = None, False, server.now
        if self.unacked:
            self._sweep_later()

    # --------------------------------------------------------------------------------------------------------- requests

    def ask(self, reply: str, body: dict[str, Any]) -> None:
        server = self.server
        self._heard_at = server.now
        expires = (body.get("expires") or 0) / 1e9
        request = PullRequest(
            reply, int(body.get("batch", 1)), int(body.get("max_bytes") or 1 << 60), server.now + expires,
            (body.get("idle_heartbeat") or 0) / 1e9,
        )  # fmt: skip
        self.requests.append(request)
        self.pump()
        if request.left > 0 and request in self.requests:
            if not expires:
                self._end(request, "404", "No Messages")
                return
            request.timers.append(server.after(expires, self._expired, request))
            if request.heartbeat_s and self._idle is None:
                self._beat_later(request.heartbeat_s)

    def _expired(self, request: PullRequest) -> None:
        if request in self.requests:
            self._end(request, "408", "Request Timeout")

    def _end(self, request: PullRequest, status: str, text: str) -> None:
        if request in self.requests:
            self.requests.remove(request)
        for timer in request.timers:
            timer.cancel()
        headers = {"Status": status, "Description": text, "Nats-Pending-Messages": str(request.left),
                   "Nats-Pending-Bytes": "0"}  # fmt: skip
        self.server.deliver(request.reply, "", b"", headers)

    def _beat_later(self, heartbeat_s: float) -> None:
        self._idle = self.server.after(heartbeat_s, self._beat, heartbeat_s)

    def _beat(self, heartbeat_s: float) -> None:
        self._idle = None
        if not self.requests or self.server.consumer(self.stream.name, self.name) is not self:
            return
        if self.server.now - self._last_sent >= heartbeat_s * 0.99:
            headers = {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last-Consumer": str(self.delivered),
                       "Nats-Last-Stream": str(self.position)}  # fmt: skip
            self.server.deliver(self.requests[0].reply, "", b"", headers)
        self._beat_later(heartbeat_s)

    def drop_requests(self, replies_of: str) -> None:
        """A client is gone: nothing of its requests is answered."""
        for request in [r for r in self.requests if r.reply.startswith(replies_of)]:
            self.requests.remove(request)
            for timer in request.timers:
                timer.cancel()

    def close(self, text: str = "Consumer Deleted") -> None:
        for request in list(self.requests):
            self._end(request, "409", text)
        if self._idle is not None:
            self._idle.cancel()

    def forgotten(self) -> bool:
        """Whether nobody has asked for so long that an ephemeral consumer goes."""
        return not self.durable and not self.requests and self.server.now - self._heard_at > (self._forget_s or 5.0)

    # ------------------------------------------------------------------------------------------------------- deliveries

    def pump(self) -> None:
        """Delivers what there is to who asked."""
        while self.requests:
            kept, deliveries = self._next()
            if kept is None:
                return
            request = self.requests[0]
            if kept.size > request.bytes_left:
                if deliveries > 1:
                    self.again.appendleft(kept.seq)
                self._end(request, "409", "Message Size Exceeds MaxBytes")
                continue
            if deliveries == 1:
                self.position = kept.seq
            self._send(request, kept, deliveries)

    def _next(self) -> tuple[StoredMessage | None, int]:
        while self.again:
            seq = self.again.popleft()
            waiting, kept = self.unacked.get(seq), self.stream.messages.get(seq)
            if waiting is not None and kept is not None:
                return kept, waiting.deliveries + 1
            self.unacked.pop(seq, None)
        if self.acked and len(self.unacked) >= (self.config.get("max_ack_pending") or 1000):
            return None, 0
        if self.position >= self.stream.last_seq:
            return None, 0
        return next(self.stream.after(self.position, self.filters), None), 1

    def _send(self, request: PullRequest, kept: StoredMessage, deliveries: int) -> None:
        self.delivered += 1
        request.left -= 1
        request.bytes_left -= kept.size
        self._last_sent = self._heard_at = self.server.now
        if self.acked:
            self.unacked[kept.seq] = Waiting(deliveries, self.server.now + self.ack_wait_s)
            self._sweep_later()
        pending = self.stream.last_seq - max(self.position, self.stream.first_seq - 1)
        reply = (
            f"$JS.ACK.{self.stream.name}.{self.name}.{deliveries}.{kept.seq}.{self.delivered}."
            f"{kept.time_us * 1000}.{pending}"
        )
        self.requests.rotate(-1)  # who asked gets messages in turns
        if request.left <= 0:
            self.requests.remove(request)
            for timer in request.timers:
                timer.cancel()
        self.server.deliver(request.reply, reply, kept.data, kept.headers, shown=kept.subject)

    # -------------------------------------------------------------------------------------------------- acknowledgements

    def answer(self, seq: int, payload: bytes) -> None:
        """What a client says of a message that it got."""
        waiting = self.unacked.get(seq)
        if waiting is None:
            return
        if payload.startswith(b"-NAK"):
            delay = self.server.nak_delay_s(payload)
            waiting.due = self.server.now + delay
            if delay <= 0:
                self.again.append(seq)
                self.pump()
            else:
                self.server.after(delay, self._sweep)
        elif payload.startswith(b"+WPI"):
            waiting.due = self.server.now + self.ack_wait_s
        else:
            del self.unacked[seq]
            self.pump()

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self.server.after(self.ack_wait_s / 4, self._sweep_on)

    def _sweep_on(self) -> None:
        self._sweeping = False
        self._sweep()
        if self.unacked:
            self._sweep_later()

    def _sweep(self) -> None:
        now = self.server.now
        for seq, waiting in self.unacked.items():
            if waiting.due <= now and seq not in self.again:
                waiting.due = now + self.ack_wait_s
                self.again.append(seq)
        self.pump()

    def info(self) -> dict[str, Any]:
        floor = min(self.unacked, default=self.position + 1) - 1
        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "config": self.config,
            "delivered": {"consumer_seq": self.delivered, "stream_seq": self.position},
            "ack_floor": {"consumer_seq": 0, "stream_seq": floor},
            "num_ack_pending": len(self.unacked),
            "num_redelivered": 0,
            "num_waiting": len(self.requests),
            "num_pending": sum(1 for _ in self.stream.after(self.position, self.filters)),
        }
