"""The rule that every reader shares: a record counts if and only if it continues the chain. Pure.

A record names the last valid record before it by sequence and by the SHA-256 of its payload as stored. Whatever the
broker accepts (two writers after a split, a forged publish), readers that start from the same head agree on which
records are valid, without asking anybody. What does not continue the chain is *void*: skipped, counted, never applied.

What is void is decided from the link alone, so that a version of Baton which does not know a record's contents agrees
with one which does. Every version therefore keeps the fields `prev_seq` and `prev_hash`. A record that continues the
chain must be understood in full, or the reader stops: skipping it would make two histories.
"""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from schemas.ids import content_hash
from schemas.ledger import LedgerRecord


class LedgerStopped(RuntimeError):
    """Going on would be wrong: a service that reads or writes the ledger must end loudly. See the subclasses."""


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


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """One message of the ledger stream. Apply `record` only when `valid`; otherwise `why` says what is wrong with it.

    `hash` is of the payload as stored, `time_us` the broker's timestamp in microseconds. A void payload that is no
    record at all has a `record` without events, by writer "unreadable".
    """

    seq: int
    record: LedgerRecord
    hash: str
    time_us: int
    valid: bool
    why: str = ""

    @property
    def head(self) -> Head:
        """The head of the chain after this entry, when it is valid."""
        return Head(self.seq, self.hash)


_record = TypeAdapter(LedgerRecord).validator.validate_json
_link = TypeAdapter(ChainLink).validator.validate_json


def continues(head: Head, record: LedgerRecord | ChainLink) -> bool:
    """Whether `record` names `head` as the record before it."""
    return record.prev_seq == head.seq and record.prev_hash == head.hash


def judge(head: Head, pool: str, seq: int, payload: bytes, time_us: int) -> ChainEntry:
    """Read one stored message of `pool`'s ledger at `head`.

    Raises UnknownRecord when it continues the chain and is not understood in full (another `v`, an unknown event kind).
    """
    digest = content_hash(payload)
    try:
        record: LedgerRecord = _record(payload)
    except ValidationError as error:
        return _unreadable(head, pool, seq, payload, digest, time_us, error)
    why = ""
    if not continues(head, record):
        why = (
            f"names {record.prev_seq} {record.prev_hash[:12]!r} as the record before it; "
            f"the last valid one is {head.seq} {head.hash[:12]!r}"
        )
    elif record.pool != pool:
        why = f"is of pool {record.pool!r}, not {pool!r}"
    return ChainEntry(seq, record, digest, time_us, not why, why)


def _unreadable(
    head: Head, pool: str, seq: int, payload: bytes, digest: str, time_us: int, error: ValidationError
) -> ChainEntry:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    problem = f"{'.'.join(map(str, first['loc'])) or 'payload'}: {first['msg']}"[:500]
    try:
        link: ChainLink | None = _link(payload)
    except ValidationError:
        link = None
    if link is not None and continues(head, link):
        raise UnknownRecord(
            f"ledger record {seq} of pool {pool} continues the chain but is not understood ({problem}): "
            "run a version of Baton at least as new as the one that wrote it"
        )
    blank = LedgerRecord(pool=pool, prev_seq=0, prev_hash="", inbox_seq=0, t_us=0, writer="unreadable", events=())
    return ChainEntry(seq, blank, digest, time_us, False, f"is no record that continues the chain ({problem})")


def encode(record: LedgerRecord) -> tuple[bytes, str]:
    """The payload to store, and its hash."""
    payload = record.__pydantic_serializer__.to_json(record)
    return payload, content_hash(payload)
