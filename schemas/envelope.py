"""CloudEvents 1.0 on NATS: binary mode is written, structured mode is read as well.

Binary mode: every attribute is a header `ce-<name>`, the payload is the data alone; values are printable ASCII,
everything else (and space, `"`, `%`) percent-encoded as UTF-8. Structured mode: `Content-Type` begins with
`application/cloudevents` and the payload is the JSON event format. Source: the CloudEvents 1.0.2 specification and
its NATS protocol binding.
"""

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

MSG_ID = "Nats-Msg-Id"
TRACEPARENT = "traceparent"
MAX_ATTRIBUTE = 1024
"""Characters of one attribute. Some are passed on as headers, of which a stream stores 64 KiB."""
_ATTRIBUTES = {
    "specversion": "ce-specversion",
    "id": "ce-id",
    "source": "ce-source",
    "type": "ce-type",
    "time": "ce-time",
    "subject": "ce-subject",
    "correlationid": "ce-correlationid",
    "causationid": "ce-causationid",
}
_WRITTEN = tuple(
    _ATTRIBUTES[name] for name in ("id", "type", "source", "subject", "time", "correlationid", "causationid")
)
_NAME = re.compile(r"[a-z0-9]+")  # names become headers, so what comes from outside may hold nothing else
_SAFE = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')
_is_safe = re.compile(f"[{re.escape(_SAFE)}]*").fullmatch


class EnvelopeError(ValueError):
    """The message is not a CloudEvent that Baton can read; the text says which header or member, and the fix."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The attributes of one event. `id` is derived from its cause and is the broker's message id as well."""

    id: str
    type: str
    source: str
    subject: str = ""
    time: str = ""
    correlationid: str = ""
    causationid: str = ""
    traceparent: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """NATS headers of the binary mode, `Nats-Msg-Id` among them."""
        said: tuple[str, ...] = (
            self.id, self.type, self.source, self.subject, self.time, self.correlationid, self.causationid,
        )  # fmt: skip
        if not _is_safe("".join(said)):
            said = tuple(map(_quoted, said))
        out = {MSG_ID: said[0], "ce-specversion": "1.0", "Content-Type": "application/json"}
        out |= {header: value for header, value in zip(_WRITTEN, said, strict=True) if value}
        if self.traceparent:
            out[TRACEPARENT] = _quoted(self.traceparent)
        for name, value in self.extensions.items():
            out[f"ce-{name}"] = _quoted(value)
        return out


def _quoted(value: str) -> str:
    return value if _is_safe(value) else quote(value, safe=_SAFE)


def read(headers: Mapping[str, str] | None, payload: bytes) -> tuple[Envelope, bytes]:
    """The envelope and the data of a NATS message, in either mode.

    Raises EnvelopeError naming the missing or wrong attribute. Header names are compared without regard to case.
    """
    low = {k.lower(): v for k, v in (headers or {}).items()}
    if low.get("content-type", "").lower().startswith("application/cloudevents"):
        return _structured(low, payload)
    attributes = {name: unquote(low[header]) for name, header in _ATTRIBUTES.items() if header in low}
    extensions = {k[3:]: unquote(v) for k, v in low.items() if k.startswith("ce-") and k not in _ATTRIBUTES.values()}
    traceparent = extensions.pop(TRACEPARENT, "")  # CloudEvents' own place for it; the plain header is W3C's
    return _envelope(attributes, low.get(TRACEPARENT, traceparent), extensions), payload


def _structured(low: Mapping[str, str], payload: bytes) -> tuple[Envelope, bytes]:
    try:
        event = json.loads(payload)
    except ValueError as e:
        raise EnvelopeError(f"structured CloudEvent: the payload is not JSON ({e}); send a JSON object") from None
    except RecursionError:
        raise EnvelopeError(
            "structured CloudEvent: the payload is nested too deeply; send a flat JSON object"
        ) from None
    if not isinstance(event, dict):
        raise EnvelopeError("structured CloudEvent: the payload is not a JSON object; send one event per message")
    payload = _data(event)
    if bad := [k for k in event if not _NAME.fullmatch(k)]:
        raise EnvelopeError(f"structured CloudEvent: member {bad[0][:80]!r} is no attribute name; use a-z and 0-9")
    strings = {k: text for k, v in event.items() if (text := _text(v)) is not None}
    known = {k: strings.pop(k) for k in _ATTRIBUTES if k in strings}
    traceparent = strings.pop(TRACEPARENT, low.get(TRACEPARENT, ""))
    return _envelope(known, traceparent, strings, how='add the member "{}"'), payload


def _data(event: dict[str, Any]) -> bytes:
    """Takes the message out of a structured event: JSON in `data`, or its bytes as Base64 in `data_base64`."""
    data, encoded = event.pop("data", None), event.pop("data_base64", None)
    if data is not None and encoded is not None:
        raise EnvelopeError("structured CloudEvent: 'data' and 'data_base64' exclude each other; send one of them")
    if data is not None:
        return json.dumps(data).encode()
    if encoded is None:
        raise EnvelopeError("structured CloudEvent: member 'data' is missing; put the message there as a JSON object")
    try:
        return b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        raise EnvelopeError(
            "structured CloudEvent: member 'data_base64' is not Base64; encode the bytes of the message, or use 'data'"
        ) from None


def _text(value: Any) -> str | None:
    """An attribute of the JSON format in its canonical string form; None for what cannot be an attribute."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _envelope(
    attributes: Mapping[str, str], traceparent: str, extensions: Mapping[str, Any], how: str = "send header ce-{}"
) -> Envelope:
    version = attributes.get("specversion", "")
    if version != "1.0":
        problem = f"is {version!r}" if version else "is missing"
        raise EnvelopeError(f"CloudEvents attribute 'specversion' {problem}; {how.format('specversion')}: 1.0")
    for name in ("id", "type", "source"):
        if not attributes.get(name):
            raise EnvelopeError(f"CloudEvents attribute {name!r} is missing; {how.format(name)}")
    for name, value in (*attributes.items(), (TRACEPARENT, traceparent)):
        if len(value) > MAX_ATTRIBUTE:
            problem = f"has {len(value)} characters"
            raise EnvelopeError(f"CloudEvents attribute {name!r} {problem}; send at most {MAX_ATTRIBUTE}")
    for name, value in (*attributes.items(), (TRACEPARENT, traceparent), *extensions.items()):
        if not _is_text(str(value)):
            raise EnvelopeError(f"CloudEvents attribute {name!r} has half a surrogate pair; send text that is UTF-8")
    rest = {k: v for k, v in attributes.items() if k != "specversion"}
    return Envelope(**rest, traceparent=traceparent, extensions=extensions)
