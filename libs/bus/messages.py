"""Models to CloudEvents on NATS, and back: the one place where bytes from outside become values.

`outgoing` writes binary mode. `decode` reads either mode and names everything that is wrong at once: size, encoding,
JSON that readers could understand differently (a key twice, NaN, NUL), nesting, then each field. `decode_bare` reads
plain JSON as well, so that a pipeline needs nothing but a NATS client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from libs.bus.json_checks import MAX_BYTES, MAX_FACT_BYTES, JsonProblem, check_json
from schemas import subjects
from schemas.catalog import CATALOG
from schemas.envelope import Envelope, EnvelopeError, read
from schemas.ids import content_hash, event_id
from schemas.jobs import Reason
from schemas.reasons import clip, reasons_of

__all__ = [
    "MAX_BYTES",
    "Malformed",
    "Outgoing",
    "decode",
    "decode_bare",
    "header_bytes",
    "outgoing",
    "payload_room",
    "reasons_of",
    "type_of_subject",
]

M = TypeVar("M", bound=BaseModel)
PLAIN_SOURCE = "/nats/plain-client"
"""The `source` of messages that came without an envelope."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be published: `headers` carry its envelope and its `Nats-Msg-Id`."""

    subject: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)


BESIDE_PAYLOAD_BYTES = 4096
"""Of the broker's largest message, for the headers of one of ours: its envelope, and what JetStream asks for."""


def payload_room(max_payload: int) -> int:
    """How large a payload of ours may be, if the broker takes messages of `max_payload` bytes: it counts the headers, too."""
    return max_payload - BESIDE_PAYLOAD_BYTES


def header_bytes(headers: Mapping[str, str]) -> int:
    """What headers take on the bus: a line each, beside the first and the empty last one."""
    said = "".join(headers.values())
    size = len(said) if said.isascii() else len(said.encode(errors="surrogatepass"))
    return size + len("".join(headers)) + 4 * len(headers) + _HEADER_FRAME


_HEADER_FRAME = len("NATS/1.0\r\n\r\n")


class Malformed(ValueError):
    """A message that can never be processed; `reasons` name each field, its value, the problem and the fix."""

    def __init__(self, reason: str, reasons: tuple[Reason, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reasons = reasons or (Reason(field="(message)", value="", problem=reason, fix="send a message that fits"),)


def outgoing(
    model: BaseModel | bytes,
    *,
    subject: str,
    type: str,
    source: str,
    cause: str,
    key: str = "",
    correlation: str = "",
    traceparent: str = "",
    id: str = "",
) -> Outgoing:
    """`model`, or what it is as JSON, as a binary-mode CloudEvent whose id is derived from its cause, type and key.

    So a handler that runs again publishes the same id. `cause` is the id of the message that led to this one (or
    `<stream>:<sequence>`), `key` tells apart several messages of one type with one cause. `id`: where something else than
    the cause names it.
    """
    envelope = Envelope(
        id=id or event_id(cause, type, key),
        type=type,
        source=source,
        correlationid=correlation or cause,
        causationid=cause,
        traceparent=traceparent,
    )
    payload = model if isinstance(model, bytes) else model.model_dump_json().encode()
    return Outgoing(subject, payload, envelope.headers())


def decode(
    model: type[M],
    headers: Mapping[str, str] | None,
    payload: bytes,
    *,
    expected_type: str | None,
    max_bytes: int = MAX_FACT_BYTES,
) -> tuple[Envelope, M]:
    """The envelope and the value of a CloudEvent, in binary or structured mode. Raises Malformed with every reason."""
    _check(payload, max_bytes)
    try:
        envelope, data = read(headers, payload)
    except EnvelopeError as e:
        problem, _, fix = str(e).partition("; ")
        raise _malformed((Reason(field="(envelope)", value="", problem=problem, fix=fix or problem),)) from None
    if data is not payload:  # structured mode; the message may have come as Base64, which the first check cannot see
        _check(data, max_bytes)
    if expected_type is not None and envelope.type != expected_type:
        reason = Reason(
            field="ce-type",
            value=clip(envelope.type),
            problem=f"this subject takes messages of type {expected_type}",
            fix=f"send ce-type: {expected_type}, or use the subject of your type",
        )
        raise _malformed((reason,))
    return envelope, _validate(model, data)


def _check(payload: bytes, max_bytes: int) -> None:
    try:
        check_json(payload, max_bytes)
    except JsonProblem as e:
        raise _malformed((Reason(field="(payload)", value=e.value, problem=e.problem, fix=e.fix),)) from None


def decode_bare(model: type[M], subject: str, headers: Mapping[str, str] | None, payload: bytes) -> tuple[Envelope, M]:
    """Like `decode`, and plain JSON without any envelope is a message too.

    The type is the subject's; a plain message's id is the hash of subject and content, so sending it twice is one
    message. Raises Malformed.
    """
    type_ = type_of_subject(subject)
    if _has_envelope(headers):
        return decode(model, headers, payload, expected_type=type_, max_bytes=MAX_BYTES)
    id_ = content_hash(subject.encode() + b"\0" + payload)
    plain = Envelope(id=id_, type=type_, source=PLAIN_SOURCE, correlationid=id_).headers()
    envelope, value = decode(model, plain, payload, expected_type=type_, max_bytes=MAX_BYTES)
    return envelope, value


def type_of_subject(subject: str) -> str:
    """The CloudEvents type that belongs on `subject`. Raises Malformed when the catalog knows no such subject."""
    stem = subjects.stem(subject)
    if stem not in _TYPE_BY_STEM:
        reason = Reason(
            field="(subject)",
            value=clip(subject),
            problem="no message of Baton's catalog has this subject",
            fix="use a subject of docs/messages.md, e.g. baton.cmd.job.v1.submit.<team>.<user>",
        )
        raise _malformed((reason,))
    return _TYPE_BY_STEM[stem]


_TYPE_BY_STEM = {subjects.stem(m.subject): m.type for m in CATALOG}


def _has_envelope(headers: Mapping[str, str] | None) -> bool:
    for name, value in (headers or {}).items():
        low = name.lower()
        if low.startswith("ce-") or (low == "content-type" and value.lower().startswith("application/cloudevents")):
            return True
    return False


def _validate(model: type[M], data: bytes) -> M:
    try:
        return model.model_validate_json(data)
    except ValidationError as e:
        raise _malformed(_reasons(e, data, model)) from None


def _reasons(error: ValidationError, data: bytes, model: type[BaseModel]) -> tuple[Reason, ...]:
    try:
        return reasons_of(error, data, model)
    except ValueError:  # it holds a number of more digits than Python writes
        return (
            Reason(field="(message)", value="", problem="a number has thousands of digits", fix="send a smaller one"),
        )


def _malformed(reasons: tuple[Reason, ...]) -> Malformed:
    first = reasons[0]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    value = f" = {first.value}" if first.value else ""
    return Malformed(f"{first.field}{value}: {first.problem}; {first.fix}{more}", reasons)
