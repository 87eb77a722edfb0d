"""What the inbox holds, decoded for the machine. A message that cannot be read is an item with an error, never a stop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from libs.ledger.tail import Stored
from schemas import envelope
from schemas.catalog import CATALOG
from schemas.inbox import InboxMessage

MAX_INPUT_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One inbox message: `message` as its model, or None, then `error` says what is wrong and how to mend it.

    `seq` is its sequence in the inbox, `time_us` the broker's timestamp, microseconds since the epoch.
    """

    seq: int
    subject: str
    type: str
    time_us: int
    message: InboxMessage | None
    error: str


@dataclass(frozen=True, slots=True)
class _InboxKind:
    type: str
    parse: Callable[[bytes], Any]


def _kind(type_: str, model: type[BaseModel]) -> _InboxKind:
    return _InboxKind(type_, TypeAdapter(model).validator.validate_json)


_KINDS = {m.subject.rpartition(".")[0]: _kind(m.type, m.model) for m in CATALOG if m.stream == "INBOX-{pool}"}


def read_input(stored: Stored, pool: str) -> InboxItem:
    """The item that `stored` is. Its subject decides what it must be; the broker's permissions guard the subject."""
    stem, _, key = stored.subject.rpartition(".")
    kind = _KINDS.get(stem)
    message, error = None, ""
    if kind is None or key != pool:
        error = f"subject {stored.subject!r} is none of {', '.join(sorted(f'{known}.{pool}' for known in _KINDS))}"
    elif len(stored.payload) > MAX_INPUT_BYTES:
        error = f"payload has {len(stored.payload)} bytes; the limit is {MAX_INPUT_BYTES}"
    else:
        try:
            message = kind.parse(_data(stored, kind.type))
        except (envelope.EnvelopeError, ValidationError) as problem:
            error = _describe(problem)
    return InboxItem(stored.seq, stored.subject, kind.type if kind else "", stored.time_us, message, error)


def _data(stored: Stored, expected: str) -> bytes:
    headers = stored.headers
    if headers.get("ce-type") == expected and headers.get("ce-specversion") == "1.0":
        return stored.payload  # what our own services write: binary mode, spelt this way
    found, data = envelope.read(headers, stored.payload)
    if found.type != expected:
        raise envelope.EnvelopeError(f"CloudEvents type is {found.type!r}; this subject takes {expected!r}")
    return data


def _describe(problem: ValueError) -> str:
    if not isinstance(problem, ValidationError):
        return str(problem)[:2000]
    found = problem.errors(include_url=False, include_context=False)
    parts = [
        f"{'.'.join(map(str, e['loc'])) or 'payload'}: {e['msg']} (got {str(e['input'])[:80]!r})" for e in found[:8]
    ]
    if len(found) > len(parts):
        parts.append(f"and {len(found) - len(parts)} more")
    return "; ".join(parts)[:2000]
