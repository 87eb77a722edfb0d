"""A pool's ledger in segments: each a stream of its own, one chain and one numbering through all of them.

    LEDGER-<pool>              the first, from sequence 1
    SEGMENT-<pool>-<first>     the others; the sequence of their first record is in their name, 20 digits

A segment ends with a record that says so (`segment.sealed`), so the chain itself tells where to go on. The next one begins
with the sequence behind it (the stream's `first_seq`), and its first record names the seal as the record before it.

No subject ever goes from one stream to another: each segment has its own, and its `what` says what the segment is. A server
of a cluster that was away learns of streams in any order; two that have one subject by turns overlap for it, it refuses the
newer one, and the whole cluster then drops that stream with all that was acknowledged.

To roll (the writer does, libs.ledger.rolling): a staged segment is made, so that there surely is room for it; the seal is
committed as any record; the old stream is sealed by the broker; the staged one begins to take records. After a crash
anywhere between, whoever folds the ledger next finds the seal and does the rest. A reader goes on only when the next segment
is open, and never reads behind a seal: what a broker may still have taken there is nobody's record.
"""

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo
from nats.js.errors import NotFoundError

from libs.bus import listing
from libs.ledger.chain import LedgerGap
from libs.ledger.tail import Stored, Tail
from schemas import subjects
from schemas.ledger import SegmentSealed

_SLACK_BYTES = 1024 * 1024
_SEGMENT = re.compile(r"SEGMENT-(?P<pool>.+)-(?P<first>\d{20})")
_KIND: Final = SegmentSealed.model_fields["kind"].default


class SegmentState(StrEnum):
    """What a segment's stream listens to says what it is."""

    OPEN = "record"
    SEALED = "sealed"
    STAGED = "staged"
    RESTORING = "restoring"


class RecordsArchived(LedgerGap):
    """`records` of the ledger, from `seq` on, are in no segment any more: they were archived."""

    def __init__(self, pool: str, seq: int, records: int) -> None:
        super().__init__(
            f"ledger of pool {pool} no longer has {seq} to {seq + records - 1} here, they were archived: restore them "
            "(`baton ledger restore`), or start from a newer snapshot"
        )
        self.seq, self.records = seq, records


class NoLedger(NotFoundError):
    """The pool has no ledger: no pool is called so, or its streams are not made yet."""

    def __init__(self, pool: str) -> None:
        super().__init__(code=404, err_code=10059, description=f"pool {pool} has no ledger")
        self.what = f"pool {pool} has no ledger here"
        self.fix = "name a pool that there is: --pool or BATON_POOL"


class NotOpenYet(NatsError):
    """The ledger was sealed a moment ago, and its next segment is not open yet: whoever writes next opens it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One stream. `first` is the sequence of its first record, `last` of its last message (`first` - 1: none)."""

    name: str
    first: int
    last: int
    bytes: int
    max_bytes: int
    state: SegmentState
    subject: str

    @property
    def kept(self) -> bool:
        """Its records are the ledger's."""
        return self.state in (SegmentState.OPEN, SegmentState.SEALED)


def name_of(pool: str, first: int) -> str:
    """The stream of the segment that begins with that sequence."""
    return subjects.ledger_stream(pool) if first == 1 else f"SEGMENT-{subjects.token(pool)}-{first:020}"


def records_of(pool: str, first: int) -> str:
    """Where the segment that begins with that sequence takes records."""
    return subjects.ledger(pool) if first == 1 else subjects.segment(SegmentState.OPEN.value, pool, first)


def as_sealed(config: StreamConfig, pool: str, first: int, used_bytes: int) -> StreamConfig:
    """Of the stream of a segment: no record more, another subject, and what it does not use given back to the others."""
    size = min(config.max_bytes or used_bytes, used_bytes + _SLACK_BYTES)
    parked = subjects.segment(SegmentState.SEALED.value, pool, first)
    return config.evolve(subjects=[parked], sealed=True, max_bytes=size)


def first_of(pool: str, name: str) -> int | None:
    """The first sequence of the pool's segment of that name; None for any other stream."""
    if name == subjects.ledger_stream(pool):
        return 1
    found = _SEGMENT.fullmatch(name)
    return int(found["first"]) if found is not None and found["pool"] == pool else None


def is_seal(payload: bytes) -> bool:
    """Whether a stored record is the last of its segment."""
    if _KIND.encode() not in payload:
        return False
    try:
        return any(event.get("kind") == _KIND for event in json.loads(payload)["events"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


async def segments(js: JetStreamContext, pool: str) -> list[Segment]:
    """All that there are, in order, staged ones too. Raises nats errors."""
    found: dict[int, Segment] = {}
    for pattern in (subjects.ledger(pool), subjects.segments(pool)):
        for info in map(StreamInfo.from_response, await listing.streams(js, pattern)):
            first = first_of(pool, str(info.config.name))
            if first is not None:
                first = max(first, info.config.first_seq or 1)  # of a first one that was restored in part
                found[first] = _segment(info, first)
    return [found[first] for first in sorted(found)]


async def readable(js: JetStreamContext, pool: str) -> list[Segment]:
    """Those with records that count. Raises NoLedger."""
    found = [segment for segment in await segments(js, pool) if segment.kept]
    if not found:
        raise NoLedger(pool)
    return found


def holding(found: Sequence[Segment], pool: str, seq: int) -> Segment:
    """The segment of the record `seq`, or where it will be. Raises RecordsArchived when it is not kept here any more."""
    for segment in reversed(found):
        if segment.first <= seq:
            return segment
    raise RecordsArchived(pool, seq, found[0].first - seq)


async def last_seq(js: JetStreamContext, pool: str) -> int:
    """The sequence of the last message in the ledger. Raises nats errors."""
    return (await readable(js, pool))[-1].last


class OpenSegment:
    """The stream that takes a pool's records. It is remembered: while it is open, to look at it is one question, however many
    segments there are."""

    def __init__(self, js: JetStreamContext, pool: str) -> None:
        self._js, self._pool = js, pool
        self._name = ""

    async def info(self) -> StreamInfo:
        """As it is now; in the middle of a roll, the sealed one. Raises nats errors."""
        if self._name:
            try:
                info = await self._js.stream_info(self._name)
            except NotFoundError:
                pass  # sealed, archived and deleted
            else:
                if not info.config.sealed:
                    return info
        self._name = (await readable(self._js, self._pool))[-1].name
        return await self._js.stream_info(self._name)


async def stored_at(js: JetStreamContext, pool: str, seq: int) -> bytes | None:
    """The payload of the message `seq`; None when it is not kept here (any more). Raises nats errors."""
    try:
        segment = holding(await readable(js, pool), pool, seq)
        return (await js.get_msg(segment.name, seq=seq)).data or b""
    except (LedgerGap, NotFoundError):
        return None


def _segment(info: StreamInfo, first: int) -> Segment:
    (subject,) = info.config.subjects or [""]
    state = SegmentState(subjects.what_of(subject))
    size = info.config.max_bytes or 0
    return Segment(str(info.config.name), first, info.state.last_seq, info.state.bytes, size, state, subject)


async def messages(js: JetStreamContext, pool: str, first: int, last: int) -> AsyncIterator[Stored]:
    """The messages `first` to `last` as they are stored, void ones too, out of all segments; a segment ends where the next
    begins. Raises LedgerStopped when some are not there."""
    found = await readable(js, pool)
    position = first - 1
    while position < last:
        segment = holding(found, pool, position + 1)
        end = min([last, *(later.first - 1 for later in found if later.first > segment.first)])
        if segment.last < end:
            raise LedgerGap(
                f"{segment.name} ends with {segment.last}, and should with {end}: restore it from the archive"
            )
        async for stored in messages_of(js, segment.name, position, end):
            yield stored
        position = end


async def messages_of(js: JetStreamContext, stream: str, position: int, end: int) -> AsyncIterator[Stored]:
    """The messages of one stream after `position`, up to `end`, which is there."""
    tail = Tail(js, stream, position)
    try:
        while position < end:
            for stored in await tail.messages(min(256, end - position), 1.0):
                position = stored.seq
                yield stored
    finally:
        await tail.close()
