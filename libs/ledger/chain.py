"""The rule that every reader shares: a record counts if and only if it continues the chain. Pure.

A record names the last valid record before it by sequence and by the SHA-256 of its payload as stored. Whatever the
broker accepts (two writers after a split, a forged publish), readers that start from the same head agree on which
records are valid, without asking anybody. What does not continue the chain is *void*: skipped, counted, never applied.

Whether a record is void depends on the link alone, so that versions of Baton that know its contents and versions that do
not agree. Every version therefore keeps the fields `prev_seq` and `prev_hash`. A record that continues the
chain must be understood in full, or the reader stops: skipping it would make two histories. The one exception are events
that the later version itself marked `skippable`: they are passed over, and the rest of the record counts. Hashes are of
the stored bytes, so the chain goes on through what was passed over.
"""

import json
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from schemas.base import validator
from schemas.ids import content_hash
from schemas.ledger import EVENT_KINDS, LEDGER_VERSION, LedgerRecord, UnknownEvent


class LedgerStopped(RuntimeError):
    """The service must stop and say so, because to go on would be wrong. The subclasses say why."""


class LedgerRewound(LedgerStopped):
    """The broker's stream is behind, or other than, what was already read: its tail was lost, or restored otherwise."""


class LedgerGap(LedgerStopped):
    """Messages between two others are missing and cannot be read any more."""


class UnknownRecord(LedgerStopped):
    """A record that continues the chain holds something that this version does not know."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last valid record: its stream sequence and its hash (64 hex digits). `GENESIS` before the first."""

    seq: int
    hash: str


GENESIS = Head(0, "")


class ChainLink(BaseModel):
    """What every version of a record has: the name of the record before it."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    prev_seq: int
    prev_hash: str


class _PoolLink(ChainLink):
    pool: str


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """One message of the ledger stream. Apply `record` only when `valid`; otherwise `why` says what is wrong with it.

    `hash` is of the payload as stored, `time_us` the broker's timestamp in microseconds. A void payload that is no
    record at all has a `record` without events, by writer "unreadable", with the link that it has, if any. `unknown`
    are events of kinds that this version does not know and may pass over; they are not among the record's. `size`: bytes as
    stored; 0: not told.
    """

    seq: int
    record: LedgerRecord
    hash: str
    time_us: int
    valid: bool
    why: str = ""
    unknown: tuple[UnknownEvent, ...] = ()
    size: int = 0

    @property
    def head(self) -> Head:
        """The head of the chain after this entry, when it is valid."""
        return Head(self.seq, self.hash)


class Decoded:
    """The records that this process decoded last, by their hash: history reads each twice. Bounded by their payloads' bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._records: OrderedDict[str, tuple[LedgerRecord, int]] = OrderedDict()

    def get(self, digest: str) -> LedgerRecord | None:
        found = self._records.get(digest)
        return found[0] if found is not None else None

    def put(self, digest: str, record: LedgerRecord, size: int) -> None:
        if digest in self._records:
            return
        self._records[digest] = (record, size)
        self._left -= size
        while self._left < 0:
            self._left += self._records.popitem(last=False)[1][1]


_DECODED_BYTES = 1024 * 1024
_decoded = Decoded(_DECODED_BYTES)

_record, _of_parsed = validator(LedgerRecord).validate_json, validator(LedgerRecord).validate_python
_link = validator(ChainLink).validate_json
_pool_link = TypeAdapter(_PoolLink).validator.validate_json


def continues(head: Head, record: LedgerRecord | ChainLink) -> bool:
    """Whether `record` names `head` as the record before it."""
    return record.prev_seq == head.seq and record.prev_hash == head.hash


def break_before(head: Head, entry: ChainEntry) -> str:
    """What is wrong with the ledger before a void message that goes on from something that is not here; "" when nothing is.

    A void message by itself is no fault: a writer that came too late names an older record. One that names the last valid
    record with another hash, or a message that is void, or one to come, shows that a record was changed, left out or moved.
    """
    link = entry.record
    if not entry.valid and link.prev_seq == head.seq and link.prev_hash != head.hash:
        return (
            f"message {entry.seq} follows a record {head.seq} with the hash {link.prev_hash[:16]}, and the one that is here "
            f"has {head.hash[:16]}: record {head.seq} was changed, or this is forged"
        )
    if not entry.valid and link.prev_seq > head.seq:
        return (
            f"message {entry.seq} follows record {link.prev_seq}, and the chain ends with {head.seq} here: "
            f"record {head.seq + 1} was changed, left out, or moved"
        )
    return ""


def next_head(head: Head, pool: str, seq: int, payload: bytes) -> Head:
    """The head after the message at `seq`, by the chain alone: whether the record is understood does not matter here."""
    try:
        link = _pool_link(payload)
    except ValidationError:
        return head
    return Head(seq, content_hash(payload)) if continues(head, link) and link.pool == pool else head


def judge(
    head: Head, pool: str, seq: int, payload: bytes, time_us: int, only: Collection[str] | None = None
) -> ChainEntry:
    """Read one stored message of `pool`'s ledger at `head`.

    With `only` (kinds of events) the record has these events alone, and nothing else in it need be understood.

    Raises UnknownRecord when it continues the chain and is not understood in full: another `v`, or an event of an
    unknown kind that is not marked skippable.
    """
    digest = content_hash(payload)
    unknown: tuple[UnknownEvent, ...] = ()
    try:
        record = _decode(payload, digest) if only is None else _only_these(payload, digest, only)
    except ValidationError as error:
        problem, link = _describe(error), _link_of(payload)
        if link is None or not continues(head, link):
            return _void(pool, seq, digest, time_us, f"is no record that continues the chain ({problem})", link)
        record, unknown = _passing_over(pool, seq, payload, problem)
    why = ""
    if not continues(head, record):
        why = (
            f"names {record.prev_seq} {record.prev_hash[:12]!r} as the record before it; "
            f"the last valid one is {head.seq} {head.hash[:12]!r}"
        )
    elif record.pool != pool:
        why = f"is of pool {record.pool!r}, not {pool!r}"
    return ChainEntry(seq, record, digest, time_us, not why, why, unknown, len(payload))


def _decode(payload: bytes, digest: str) -> LedgerRecord:
    record = _decoded.get(digest)
    if record is None:
        record = _record(payload)
        _decoded.put(digest, record, len(payload))
    return record


def remember(record: LedgerRecord, payload: bytes, digest: str) -> None:
    """Who has made a record need not decode it again: `payload` is how it is stored."""
    _decoded.put(digest, record, len(payload))


def _only_these(payload: bytes, digest: str, only: Collection[str]) -> LedgerRecord:
    """The record with events of these kinds alone. Whoever follows few kinds need not have the others validated: it takes a
    third of the time. What another reader of this process has decoded in full is there already."""
    record = _decoded.get(digest)
    if record is None:
        return _narrowed(payload, only)
    events = tuple(event for event in record.events if event.kind in only)
    return record if len(events) == len(record.events) else record.model_copy(update={"events": events})


def _narrowed(payload: bytes, only: Collection[str]) -> LedgerRecord:
    """The record with events of these kinds alone. Raises ValidationError when it is none."""
    try:
        body = from_json(payload)
        events = [event for event in body["events"] if event["kind"] in only]
        narrowed = body | {"events": events, "v": LEDGER_VERSION}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return cast(LedgerRecord, _record(payload))
    return cast(LedgerRecord, _of_parsed(narrowed))


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'payload'}: {first['msg']}"[:500]


def _link_of(payload: bytes) -> ChainLink | None:
    try:
        return cast(ChainLink, _link(payload))
    except ValidationError:
        return None


def _void(pool: str, seq: int, digest: str, time_us: int, why: str, link: ChainLink | None) -> ChainEntry:
    prev_seq, prev_hash = (max(0, link.prev_seq), link.prev_hash) if link is not None else (0, "")
    blank = LedgerRecord(
        pool=pool, prev_seq=prev_seq, prev_hash=prev_hash, inbox_seq=0, t_us=0, writer="unreadable", events=()
    )
    return ChainEntry(seq, blank, digest, time_us, False, why)


def _passing_over(pool: str, seq: int, payload: bytes, problem: str) -> tuple[LedgerRecord, tuple[UnknownEvent, ...]]:
    """A record that continues the chain, without the events that may be passed over. Raises UnknownRecord when there is
    more that this version does not understand than those; `problem` is what it stumbled over."""
    known, unknown = [], []
    try:
        body = json.loads(payload)
        for event in body["events"]:
            if event["kind"] in EVENT_KINDS:
                known.append(event)
            elif event.get("skippable") is True:
                unknown.append(UnknownEvent.model_validate(event))
            else:
                problem = f"event kind {event['kind']!r} is not known here and not marked skippable"
                raise _not_understood(pool, seq, problem)
        if unknown:
            return _record(json.dumps(body | {"events": known})), tuple(unknown)
    except UnknownRecord:
        raise
    except ValidationError as error:
        problem = _describe(error)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass  # no record of events at all: the first problem says it best
    raise _not_understood(pool, seq, problem)


def _not_understood(pool: str, seq: int, problem: str) -> UnknownRecord:
    return UnknownRecord(
        f"ledger record {seq} of pool {pool} continues the chain but is not understood ({problem}): "
        "run a version of Baton at least as new as the one that wrote it"
    )


def encode(record: LedgerRecord) -> tuple[bytes, str]:
    """The payload to store, and its hash."""
    payload = record.__pydantic_serializer__.to_json(record)
    return payload, content_hash(payload)
