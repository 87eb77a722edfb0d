"""Models to messages and back; what cannot be read is refused with every reason at once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.catalog import BY_TYPE, Message
from schemas.envelope import Envelope, EnvelopeError
from schemas.envelope import read as read_envelope
from schemas.ids import content_hash, event_id
from schemas.jobs import Reason

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
_SHOWN = 200

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message ready to be published; `headers` hold the message id."""

    subject: str
    payload: bytes
    headers: dict[str, str]


class Malformed(ValueError):
    """A message that cannot be processed, ever. `reasons` name field, value, problem and fix."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("; ".join(f"{r.field}: {r.problem} (given {r.value}); {r.fix}" for r in reasons))
        self.reasons = tuple(reasons)


def outgoing(
    model: BaseModel,
    *,
    subject: str,
    type: str,
    source: str,
    cause: str,
    key: str = "",
    correlation: str = "",
    traceparent: str = "",
    time_us: int | None = None,
) -> Outgoing:
    """`model` as a CloudEvent of `type`, in binary mode. Its id follows from `cause`, `type` and `key`, so the same
    cause always makes the same message."""
    envelope = Envelope(
        id=event_id(cause, type, key),
        type=type,
        source=source,
        causationid=cause,
        correlationid=correlation,
        traceparent=traceparent,
        time="" if time_us is None else datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(),
    )
    return Outgoing(subject, model.model_dump_json().encode(), envelope.headers())


def decode(
    model: type[M], headers: Mapping[str, str] | None, payload: bytes, *, expected_type: str | None = None
) -> tuple[Envelope, M]:
    """The envelope and the model of a CloudEvent in either mode. Raises Malformed."""
    try:
        envelope, data = read_envelope(headers, payload)
    except EnvelopeError as e:
        _refuse("headers", "", str(e), "send a CloudEvents 1.0 message, see docs/submit-from-anywhere.md")
    if expected_type is not None and envelope.type != expected_type:
        _refuse("ce-type", envelope.type, "another type than this subject carries", f"send ce-type: {expected_type}")
    return envelope, parse(model, data)


def decode_bare(
    model: type[M], subject: str, headers: Mapping[str, str] | None, payload: bytes
) -> tuple[Envelope, M]:
    """Like `decode`, and a payload without any CloudEvents header is taken as the bare message of its subject.

    The type then follows from the subject and the id from the content: a plain NATS client is enough to submit.
    """
    low = {k.lower() for k in headers or {}}
    content_type = next((v for k, v in (headers or {}).items() if k.lower() == "content-type"), "")
    if any(k.startswith("ce-") for k in low) or content_type.lower().startswith("application/cloudevents"):
        return decode(model, headers, payload, expected_type=type_of_subject(subject))
    envelope = Envelope(
        id=content_hash(subject.encode() + b"\0" + payload), type=type_of_subject(subject), source=f"/nats/{subject}"
    )
    return envelope, parse(model, payload)


async def undecoded(msg: Any, original: Any = None) -> None:
    """A FastStream decoder that leaves the payload alone: what reads it is `decode`, message by message."""


def type_of_subject(subject: str) -> str:
    """`io.baton.job.submit.v1` for `baton.cmd.job.v1.submit.<team>`. Raises Malformed for a subject of another form."""
    parts = subject.split(".")
    if len(parts) < 6 or parts[0] != "baton":
        _refuse("subject", subject, "not a Baton subject", "publish on baton.<kind>.<entity>.v1.<what>.<key>")
    suffix = ".query" if parts[1] == "qry" else ""
    return f"io.baton.{parts[2]}.{parts[4]}{suffix}.{parts[3]}"


def message_of_type(type_: str) -> Message:
    """The catalogue's entry. Raises Malformed for an unknown type."""
    known = BY_TYPE.get(type_)
    if known is None:
        _refuse("ce-type", type_, "unknown message type", "use a type of docs/messages.md")
    return known


def parse(model: type[M], payload: bytes) -> M:
    """`payload` as `model`. Raises Malformed: too large, too deep, not UTF-8 JSON, duplicate keys, or not valid."""
    if len(payload) > MAX_BYTES:
        _refuse("payload", f"{len(payload)} bytes", f"larger than {MAX_BYTES} bytes", "send less, refer to large data")
    try:
        return model.__pydantic_validator__.validate_json(_checked(payload))  # type: ignore[no-any-return]
    except ValidationError as e:
        raise Malformed(reasons_of(e)) from None


def reasons_of(error: ValidationError) -> tuple[Reason, ...]:
    """Each of pydantic's errors as field, value, problem and fix."""
    return tuple(
        Reason(
            field=".".join(str(part) for part in e["loc"]) or "payload",
            value=shown(e.get("input")),
            problem=e["msg"],
            fix=_FIXES.get(e["type"], "see the message's schema in docs/messages.md"),
        )
        for e in error.errors(include_url=False, include_context=False)[:50]
    )


def shown(value: Any) -> str:
    """A value for people: at most 200 characters, control characters escaped."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


_FIXES = {
    "extra_forbidden": "remove it or correct its spelling",
    "missing": "add it",
    "json_invalid": "send one JSON object in UTF-8",
    "string_pattern_mismatch": "use the form that the pattern describes",
    "greater_than_equal": "raise it",
    "less_than_equal": "lower it",
    "greater_than": "raise it",
    "enum": "use one of the listed values",
    "literal_error": "use one of the listed values",
}


def _checked(payload: bytes) -> bytes:
    """`payload`, after the checks that pydantic does not make: depth, duplicate keys, NaN, NUL, lone surrogates."""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as e:
        _refuse("payload", shown(payload[:40]), f"not UTF-8 ({e.reason} at byte {e.start})", "encode it as UTF-8")
    depth = deepest = 0
    quoted = escaped = False
    if text.count("[") + text.count("{") > MAX_DEPTH:  # only then can it be too deep
        for char in text:
            if quoted:
                quoted, escaped = (escaped or char != '"'), (char == "\\" and not escaped)
            elif char == '"':
                quoted = True
            elif char in "[{":
                depth += 1
                deepest = max(deepest, depth)
            elif char in "]}":
                depth -= 1
        if deepest > MAX_DEPTH:
            _refuse("payload", f"depth {deepest}", f"nested deeper than {MAX_DEPTH}", "flatten it")
    if "\\u0000" in text or "\0" in text:
        _refuse("payload", "\\u0000", "contains a NUL character", "remove it")
    try:
        json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except Malformed:
        raise
    except (ValueError, RecursionError) as e:
        _refuse("payload", shown(text[:80]), f"not JSON ({e})", "send one JSON object in UTF-8")
    return payload


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        keys = [k for k, _ in pairs]
        twice = next(k for k in keys if keys.count(k) > 1)
        _refuse(shown(twice), shown(twice), "the key stands twice in one object", "keep one")
    return out


def _no_constant(name: str) -> NoReturn:
    _refuse("payload", name, "not a JSON number", "send a finite number")


def _refuse(field: str, value: str, problem: str, fix: str) -> NoReturn:
    raise Malformed([Reason(field=field, value=value, problem=problem, fix=fix)])
