"""What the inbox holds, decoded for the decider. A message that cannot be read is an item with an error, never a stop."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from libs.bus.json_checks import MAX_BYTES
from libs.ledger.tail import Stored
from schemas import envelope, subjects
from schemas.base import validator
from schemas.catalog import CATALOG, TYPE_OF
from schemas.inbox import (
    OBSERVATION_KINDS,
    ActionTold,
    ApplyBudgets,
    ApplyPrices,
    ApplyQueues,
    BoostJob,
    ClosePeriod,
    CordonNode,
    InboxMessage,
    NodeDead,
    NodeObserved,
    NodeRegistered,
    OffboardTeam,
    QuarantineLifted,
    ResumeTeam,
    SuspendTeam,
    TopUpBudget,
    UncordonNode,
)

MAX_INPUT_BYTES = 2 * MAX_BYTES
"""What follows from a request is larger than the request: it has what that left to defaults, and says who asked. A record that
holds one of them alone is still within its own bound (`MAX_RECORD_BYTES`)."""
_MOST_PROBLEMS = 1000
_OPERATORS_SAY = (
    NodeDead
    | QuarantineLifted
    | CordonNode
    | UncordonNode
    | ApplyQueues
    | BoostJob
    | ApplyPrices
    | ClosePeriod
    | ApplyBudgets
    | TopUpBudget
    | SuspendTeam
    | OffboardTeam
    | ResumeTeam
    | ActionTold
)


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
    unknown: tuple[str, ...] = ()
    """Of what a node observed the kinds that this version does not know: a later one's, left out of `message`."""


@dataclass(frozen=True, slots=True)
class _InboxKind:
    type: str
    pattern: str
    parse: Callable[[bytes], Any]


_KINDS = {
    subjects.stem(m.subject): _InboxKind(m.type, m.subject, validator(m.model).validate_json)
    for m in CATALOG
    if m.stream == subjects.INBOX
}


def read_input(stored: Stored, pool: str) -> InboxItem:
    """The item that `stored` is. Its subject decides what it must be and which node it speaks of; the broker's
    permissions guard the subject."""
    kind = _KINDS.get(subjects.stem(stored.subject))
    message, error, unknown = None, "", tuple[str, ...]()
    try:
        if kind is None:
            raise ValueError(f"subject {stored.subject!r} is none of {', '.join(sorted(_KINDS))}, each with its keys")
        keys = subjects.read(kind.pattern, stored.subject)
        if keys["pool"] != pool:
            raise ValueError(f"subject {stored.subject!r} is of another pool than {pool!r}")
        if len(stored.payload) > MAX_INPUT_BYTES:
            raise ValueError(f"payload has {len(stored.payload)} bytes; the limit is {MAX_INPUT_BYTES}")
        message, unknown = _parsed(kind, _data(stored, kind.type))
        if (problem := foreign(message, keys.get("node"))) is not None:
            message, error = None, problem
        elif isinstance(message, _OPERATORS_SAY):
            team = "" if keys["team"] == subjects.OPERATOR else keys["team"]
            whose = {"team": team} if isinstance(message, BoostJob) else {}
            message = message.model_copy(update={"user": keys["user"], **whose})  # the subject says who speaks
    except ValueError as problem:  # of the subject, the envelope (EnvelopeError) or the body (ValidationError)
        error = _describe(problem)
    return InboxItem(stored.seq, stored.subject, kind.type if kind else "", stored.time_us, message, error, unknown)


def foreign(message: InboxMessage, node: str | None) -> str | None:
    """Why a message on `node`'s subject is not that node's to send; None when it is. `node` is None for a message about
    no node."""
    if node is None:
        return None
    named = message.inventory.node if isinstance(message, NodeRegistered) else getattr(message, "node", None)
    if named == node:
        return None
    return f"it speaks of node {named!r} on the subject of node {node!r}: a node speaks for itself only"


def _parsed(kind: _InboxKind, data: bytes) -> tuple[Any, tuple[str, ...]]:
    """The message, and which kinds of observations were left out of it. Raises ValidationError."""
    try:
        return kind.parse(data), ()
    except ValidationError as problem:
        if kind.type != TYPE_OF[NodeObserved] or not _of_unknown_kind(problem):
            raise
    body, known, unknown = json.loads(data), list[Any](), list[str]()
    for seen in body["observations"]:
        of_kind = seen.get("kind") if isinstance(seen, dict) else None
        if isinstance(of_kind, str) and of_kind not in OBSERVATION_KINDS:
            unknown.append(of_kind)
        else:
            known.append(seen)
    return kind.parse(json.dumps(body | {"observations": known}).encode()), tuple(unknown)


def _of_unknown_kind(problem: ValidationError) -> bool:
    """Of a list that is read up to its first mistake."""
    if problem.error_count() > _MOST_PROBLEMS:
        return False
    return any(e["type"] == "union_tag_invalid" for e in problem.errors(include_url=False, include_context=False))


def _data(stored: Stored, expected: str) -> bytes:
    headers = stored.headers
    if headers.get("ce-type") == expected and headers.get("ce-specversion") == "1.0":
        return stored.payload  # what our own services write: binary mode, spelt this way
    found, data = envelope.read(headers, stored.payload)
    if found.type != expected:
        raise envelope.EnvelopeError(f"CloudEvents type is {found.type!r}; this subject takes {expected!r}")
    return data


def _shown(value: Any) -> str:
    try:
        return repr(str(value)[:80])
    except ValueError:
        return "a number of thousands of digits"


def _describe(problem: ValueError) -> str:
    if not isinstance(problem, ValidationError):
        return str(problem)[:2000]
    if problem.error_count() > _MOST_PROBLEMS:  # each would be made ready to be told
        return f"{problem.error_count()} of its members are wrong"
    found = problem.errors(include_url=False, include_context=False)
    parts = [f"{'.'.join(map(str, e['loc'])) or 'payload'}: {e['msg']} (got {_shown(e['input'])})" for e in found[:8]]
    if len(found) > len(parts):
        parts.append(f"and {len(found) - len(parts)} more")
    return "; ".join(parts)[:2000]
