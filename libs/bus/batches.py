"""Atomic batches (NATS ADR-50): many messages of one stream, stored together or not at all, and synced together.

A broker that syncs before it acknowledges (`sync_interval: always`) syncs for each single message, however many are under way:
on a busy machine that is what a stream can do. A batch is synced as one, and acknowledged as one. It is used where streams
allow it (`libs.bus.table`); what is refused as a batch is sent one by one by the outbox, which then learns why, of each.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import OutboundBufferLimitError
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from libs.bus.ids import sent_headers
from libs.bus.messages import Outgoing, header_bytes
from libs.bus.replies import Replies
from libs.bus.table import atomic_stream_of

BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"

_NOT_ALLOWED = 10174
_FEWEST = 8
"""A batch costs the broker a few syncs of its own."""
_MOST = 256
"""The broker takes a thousand; while it stores a batch the stream stands still for others."""
_MOST_BYTES = 4 * 1024 * 1024


class Batches:
    """Sends batches on one connection."""

    def __init__(self, js: JetStreamContext, ack_timeout_s: float, *, asks: bool = True) -> None:
        """`asks`: whether the connection may ask what a stream allows; else the first batch shows it."""
        self._js = js
        self._asks = asks
        self._nats: Client = js._nc
        self._ack_timeout_s = ack_timeout_s
        self._allowed: dict[str, bool] = {}

    async def send(
        self, items: Sequence[Outgoing], positions: Sequence[int], acks: dict[int, PubAck]
    ) -> tuple[list[int], list[int]]:
        """Sends those of `items` at `positions` that can go in batches, and puts the acknowledgements of what is stored into
        `acks`. The positions that are to be sent one by one, and those of which the broker said nothing."""
        single: list[int] = []
        by_stream: dict[str, list[int]] = {}
        for i in positions:
            by_stream.setdefault(atomic_stream_of(items[i].subject), []).append(i)
        waiting: list[tuple[str, list[int], asyncio.Future[PubAck]]] = []
        replies = await Replies.of(self._nats)
        try:
            async with asyncio.timeout(self._ack_timeout_s):
                for stream, found in by_stream.items():
                    if len(found) < _FEWEST or not await self._allows(stream):
                        single += found
                        continue
                    for batch in _cut(items, found):
                        waiting.append((stream, batch, await self._publish(items, batch, replies)))
                if waiting:
                    await asyncio.wait([future for _, _, future in waiting])
        except (TimeoutError, OutboundBufferLimitError):
            pass
        finally:
            for *_, future in waiting:  # also of who is cancelled: what the broker refuses then is nobody's error
                if not future.cancel() and not future.cancelled():
                    future.exception()
        begun = {i for _, batch, _ in waiting for i in batch}.union(single)
        unheard = [i for i in positions if i not in begun]
        for stream, batch, future in waiting:
            if future.cancelled():
                unheard += batch
            elif future.exception() is not None:
                self._learn(stream, future.exception())
                single += batch
            elif future.result().batch_size != len(
                batch
            ):  # a broker that knows no batches has stored the last message alone
                self._allowed[stream] = False
                single += batch
            else:
                acks |= _each(batch, future.result())
        return sorted(single), unheard

    async def _publish(
        self, items: Sequence[Outgoing], batch: Sequence[int], replies: Replies
    ) -> "asyncio.Future[PubAck]":
        future, reply_to = replies.expect()
        name = reply_to.rpartition(".")
        named = {BATCH_ID: f"{name[0].rpartition('.')[2]}-{name[2]}"}
        for number, i in enumerate(batch, 1):
            last = {BATCH_COMMIT: "1"} if number == len(batch) else {}
            headers = sent_headers(self._nats, items[i]) | named | {BATCH_SEQUENCE: str(number)} | last
            reply = reply_to if last else ""
            await self._nats.publish(items[i].subject, items[i].payload, reply=reply, headers=headers)
        return future

    async def _allows(self, stream: str) -> bool:
        """Whether the stream takes batches; asked once. A broker before 2.12 shows no such setting."""
        if not stream:
            return False
        if not self._asks:
            return self._allowed.get(stream, True)
        if stream not in self._allowed:
            try:
                self._allowed[stream] = bool((await self._js.stream_info(stream)).config.allow_atomic)
            except (NotFoundError, ServiceUnavailableError, APIError, NatsError):
                return False
        return self._allowed[stream]

    def _learn(self, stream: str, refusal: BaseException | None) -> None:
        if isinstance(refusal, APIError) and refusal.err_code == _NOT_ALLOWED:
            self._allowed[stream] = False


def _cut(items: Sequence[Outgoing], positions: Sequence[int]) -> Iterator[list[int]]:
    """In pieces that the broker takes as one batch."""
    batch: list[int] = []
    size = 0
    for i in positions:
        more = len(items[i].payload) + header_bytes(items[i].headers)
        if batch and (len(batch) == _MOST or size + more > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(i)
        size += more
    if batch:
        yield batch


def _each(batch: Sequence[int], last: PubAck) -> dict[int, PubAck]:
    """The acknowledgement of each message: they were stored one after the other, with nothing between them."""
    first = last.seq - len(batch) + 1
    return {i: PubAck(last.stream, first + n, domain=last.domain) for n, i in enumerate(batch)}
