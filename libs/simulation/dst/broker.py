"""The simulated broker: subjects, streams, consumers and JetStream's API, as far as Baton uses nats-server.

It is one process of the simulation: frozen, it answers nobody; killed, it forgets connections and consumers in memory,
and keeps what is on its disk. `disk_s` is how slow the disk is, `full` that it takes nothing more.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from libs.simulation.dst.api import Api
from libs.simulation.dst.consumer import Consumer
from libs.simulation.dst.loop import SimHandle
from libs.simulation.dst.stream import StoredMessage, Stream
from libs.simulation.dst.subjects import Routes, meet

if TYPE_CHECKING:
    from libs.simulation.dst.client import SimClient
    from libs.simulation.dst.process import Process
    from libs.simulation.dst.world import World

_UNAVAILABLE = "JetStream system temporarily unavailable"
_IN_PROCESS = "duplicate message id is in process"
_TOO_LATE = 10071
_SWEEP_S = 5.0


class SimBrokerServer:
    """One life of the broker; `streams` and durable consumers are its disk and outlive it."""

    def __init__(self, world: "World", process: "Process", disk: "Disk") -> None:
        self.world = world
        self.process = process
        self.disk = disk
        self.routes = Routes()
        self.batches: dict[tuple[str, str], list[tuple[str, dict[str, str], bytes]]] = {}
        """Atomic batches that are not committed, by stream and id: in memory, where nats-server keeps them in files that it
        forgets at a restart."""
        self.in_process: set[tuple[str, int]] = set()
        """Messages, by stream and number, that a slow disk is still storing: a repeat of one is told so, as in a cluster."""
        self.api = Api(self)
        for stream in disk.streams.values():
            for consumer in list(disk.consumers[stream.name].values()):
                if consumer.config.get("mem_storage"):
                    del disk.consumers[stream.name][consumer.name]
                else:
                    consumer.reopened(self)
        self.after(_SWEEP_S, self._sweep)

    @property
    def now(self) -> float:
        return self.world.loop.now

    def wall_us(self) -> int:
        return self.process.wall_ns() // 1000

    def after(self, delay_s: float, call: Callable[..., Any], *args: Any) -> SimHandle:
        return self.process.call_at(self.now + delay_s, call, *args)

    # ------------------------------------------------------------------------------------------------------------ core

    def subscribe(self, client: "SimClient", sid: int, pattern: str, queue: str) -> None:
        self.routes.add((client.number, sid), pattern, queue, client)

    def unsubscribe(self, client: "SimClient", sid: int) -> None:
        self.routes.remove((client.number, sid))

    def gone(self, client: "SimClient") -> None:
        """A connection is closed or broken."""
        self.routes.remove_client(client.number)
        for consumers in self.disk.consumers.values():
            for consumer in consumers.values():
                consumer.drop_requests(f"{client._inbox}.")

    def publish(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """A message from a client."""
        if subject.startswith("$JS."):
            if subject.startswith("$JS.ACK."):
                self._acknowledge(subject, data)
            else:
                self.api.request(subject, reply, data)
            return
        stream = self.disk.stream_of(subject)
        heard = self.deliver(subject, reply, data, headers)
        if stream is not None:
            self._store(stream, subject, reply, data, headers)
        elif not heard and reply:
            self.deliver(reply, "", b"", {"Status": "503"})

    def deliver(
        self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None, shown: str | None = None
    ) -> bool:
        """To everybody who hears `subject`, of a queue to one. `shown` is the subject that the message says."""
        found = self.routes.of(subject)
        if not found:
            return False
        queues: dict[tuple[str, str], list[tuple[Any, int]]] | None = None
        for pattern, queue, client, sid in found:
            if queue:
                queues = queues if queues is not None else {}
                queues.setdefault((pattern, queue), []).append((client, sid))
            else:
                self._to(client, sid, shown or subject, reply, data, headers)
        for members in queues.values() if queues else ():
            client, sid = members[self.world.random.randrange(len(members))]
            self._to(client, sid, shown or subject, reply, data, headers)
        return True

    def _to(self, client: Any, sid: int, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        link = client.link
        if link is None:
            return
        net = self.world.net
        if net.troubled:
            copies, delay = net.fate()
            if delay:
                client.process.call_at(self.now + delay, client.delivered, sid, subject, reply, data, headers)
                return
            for _ in range(copies):
                link.send("down", client.delivered, sid, subject, reply, data, headers)
            return
        link.send("down", client.delivered, sid, subject, reply, data, headers)

    # --------------------------------------------------------------------------------------------------------- streams

    def _store(self, stream: Stream, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        if headers is not None and "Nats-Batch-Id" in headers and stream.config.get("allow_atomic"):
            self._batched(stream, subject, reply, data, headers)
            return
        if self.disk.full:
            self._acked(reply, {"error": {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}})
            return
        outcome = stream.store(subject, headers, data, self.wall_us())
        if isinstance(outcome, tuple):
            code, err_code, text = outcome
            if err_code == _TOO_LATE and stream.name.startswith(("LEDGER", "SEGMENT")):
                self.world.sometimes("a writer of the ledger came too late")
            self._acked(reply, {"error": {"code": code, "err_code": err_code, "description": text}})
            return
        if isinstance(outcome, int):
            if (stream.name, outcome) in self.in_process:
                self.world.sometimes("a message came again while the first of it was being stored")
                self._acked(reply, {"error": {"code": 409, "err_code": 10158, "description": _IN_PROCESS}})
            else:
                self._acked(reply, {"stream": stream.name, "seq": outcome, "duplicate": True})
            return
        self.world.stored(stream.name, outcome)
        if self.disk.slow_s:
            self.in_process.add((stream.name, outcome.seq))
            self.after(self.disk.slow_s, self._stored, stream, outcome, reply)
        else:
            self._stored(stream, outcome, reply)

    def _batched(self, stream: Stream, subject: str, reply: str, data: bytes, headers: dict[str, str]) -> None:
        """One message of an atomic batch: with the last one all are stored, or none."""
        key = (stream.name, headers["Nats-Batch-Id"])
        batch = self.batches.setdefault(key, [])
        if int(headers["Nats-Batch-Sequence"]) == len(batch) + 1:
            batch.append((subject, headers, data))
        if "Nats-Batch-Commit" not in headers:
            return
        del self.batches[key]
        problem = self._refusal(stream, batch, int(headers["Nats-Batch-Sequence"]))
        if problem is not None:
            code, err_code, text = problem
            self._acked(reply, {"error": {"code": code, "err_code": err_code, "description": text}})
            return
        for number, (of, held, payload) in enumerate(batch, 1):
            outcome = stream.store(of, held, payload, self.wall_us())
            assert isinstance(outcome, StoredMessage), "it was looked at before"
            self.world.stored(stream.name, outcome)
            answer = reply if number == len(batch) else ""
            if self.disk.slow_s:
                self.after(self.disk.slow_s, self._stored, stream, outcome, answer, len(batch))
            else:
                self._stored(stream, outcome, answer, len(batch))

    def _refusal(
        self, stream: Stream, batch: list[tuple[str, dict[str, str], bytes]], count: int
    ) -> tuple[int, int, str] | None:
        """Why a whole batch is not stored."""
        if len(batch) != count:
            return 400, 10176, "batch publish is incomplete"
        ids = [id_ for _, held, _ in batch if (id_ := held.get("Nats-Msg-Id")) is not None]
        if len(set(ids)) < len(ids) or any(stream.knows(id_, self.wall_us()) for id_ in ids):
            return 400, 10201, "batch publish contains duplicate message id"
        size = sum(len(data) + len(subject) + 64 for subject, _, data in batch)
        if self.disk.full or not stream.has_room(size):
            return 503, 10077, "maximum bytes exceeded"
        return None

    def _stored(self, stream: Stream, kept: StoredMessage, reply: str, count: int = 0) -> None:
        self.in_process.discard((stream.name, kept.seq))
        if reply and self.disk.denies and self.world.random.random() < self.disk.denies:
            self.world.sometimes("a message was stored, and its sender told that it was not")
            self._acked(reply, {"error": {"code": 503, "err_code": 10008, "description": _UNAVAILABLE}})
        else:
            more = f', "count": {count}' if count else ""
            self._told(reply, f'{{"stream": "{stream.name}", "seq": {kept.seq}{more}}}')
        for consumer in list(self.disk.consumers[stream.name].values()):
            if consumer.requests:
                consumer.pump()

    def _acked(self, reply: str, answer: dict[str, Any]) -> None:
        self._told(reply, json.dumps(answer))

    def _told(self, reply: str, answer: str) -> None:
        if reply:
            self.deliver(reply, "", answer.encode(), None)

    def _acknowledge(self, subject: str, data: bytes) -> None:
        parts = subject.split(".")
        consumer = self.consumer(parts[2], parts[3])
        if consumer is not None:
            consumer.answer(int(parts[5]), data or b"+ACK")

    def nak_delay_s(self, payload: bytes) -> float:
        body = payload[4:].strip()
        return float(json.loads(body).get("delay", 0)) / 1e9 if body else 0.0

    def consumer(self, stream: str, name: str) -> Consumer | None:
        return self.disk.consumers.get(stream, {}).get(name)

    def _sweep(self) -> None:
        """Ages, and consumers that nobody asks any more."""
        now_us = self.wall_us()
        for stream in self.disk.streams.values():
            stream.expire(now_us)
            consumers = self.disk.consumers[stream.name]
            for consumer in [c for c in consumers.values() if c.forgotten()]:
                del consumers[consumer.name]
        self.after(_SWEEP_S, self._sweep)


class Disk:
    """What outlives a broker: streams and consumers."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[str, dict[str, Consumer]] = {}
        self.full = False
        self.slow_s = 0.0
        self.denies = 0.0
        """How often a message is stored and its sender is told that it was not."""
        self.heard: dict[str, list[str]] = {}
        """Pattern -> names of the streams with a subject of it."""
        self._of: dict[str, Stream | None] = {}
        self._begin: dict[tuple[str, str], list[Stream]] = {}
        self.count = 0

    def add(self, config: dict[str, Any]) -> Stream:
        first = config.get("first_seq") or 1
        stream = self.streams[config["name"]] = Stream(config["name"], config, first_seq=first, last_seq=first - 1)
        self.consumers[stream.name] = {}
        self.changed()
        return stream

    def taken(self, config: dict[str, Any]) -> bool:
        """Whether another stream listens to a subject of this one."""
        wanted = config.get("subjects") or ()
        others = (stream for name, stream in self.streams.items() if name != config["name"])
        return any(meet(a, b) for other in others for a in other.config.get("subjects") or () for b in wanted)

    def remove(self, name: str) -> None:
        del self.streams[name], self.consumers[name]
        self.changed()

    def changed(self) -> None:
        """There are other streams, or other subjects."""
        self._of.clear()
        self._begin.clear()
        self.heard.clear()

    def stream_of(self, subject: str) -> Stream | None:
        if subject.startswith("_"):
            return None
        if subject in self._of:
            return self._of[subject]
        first, _, rest = subject.partition(".")
        second, _, rest = rest.partition(".")
        streams = self._alike(first, second) if rest else self.streams.values()
        found = next((stream for stream in streams if stream.takes(subject)), None)
        if len(self._of) < 10_000:
            self._of[subject] = found
        return found

    def _alike(self, first: str, second: str) -> list[Stream]:
        """Streams that may have subjects that begin so."""
        found = self._begin.get((first, second))
        if found is None:
            begins = f"{first}.{second}.>"
            found = self._begin[first, second] = [
                stream
                for stream in self.streams.values()
                if any(meet(begins, pattern) for pattern in stream.config.get("subjects") or ())
            ]
        return found

    def next_name(self) -> str:
        self.count += 1
        return f"e{self.count:05d}"
