"""Dead letters: a message that cannot be processed, kept with everything needed to understand and replay it.

The payload is the original's, its headers are kept under `Baton-Orig-`, and `Baton-Dead-*` say where it came from,
when it died and why. The message id is derived from the original's place, so dying twice leaves one letter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from libs.bus.messages import Outgoing
from libs.ports import clock
from schemas import subjects
from schemas.envelope import MSG_ID
from schemas.ids import event_id

REASON = "Baton-Dead-Reason"
SUBJECT = "Baton-Dead-Subject"
STREAM = "Baton-Dead-Stream"
SEQ = "Baton-Dead-Seq"
ORIGIN = "Baton-Dead-Origin"
AT = "Baton-Dead-At"
STACK = "Baton-Dead-Stack"
"""Where an error of ours came from, if it was one: a stack trace, its lines joined by ` | `."""
TRUNCATED = "Baton-Dead-Truncated"
"""Set to the original length, in bytes, when the payload was too large to be kept whole beside its new headers."""

_ORIGINAL = "Baton-Orig-"
_REASON_CHARACTERS = 2_000
_STACK_CHARACTERS = 6_000
_PAYLOAD_BYTES = 900_000


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a consumer got it. `time_us` is the broker's timestamp, `deliveries` counts from 1."""

    subject: str
    headers: Mapping[str, str]
    payload: bytes
    stream: str
    stream_seq: int
    time_us: int
    deliveries: int = 1

    @property
    def cause(self) -> str:
        """Names this message as a cause: `<stream>:<sequence>`, the same at every delivery."""
        return f"{self.stream}:{self.stream_seq}"


def dead_letter(origin: str, received: Received, reason: str, stack: str = "", sender: str = "") -> Outgoing:
    """The dead letter of `received`, on `baton.dead.<origin>.<sender>`. `origin` is the service that gave up; `sender` the team
    or node, by default who speaks on the message's subject: so many letters are kept of each."""
    headers = {f"{_ORIGINAL}{_name(name)}": value for name, value in received.headers.items()}
    headers |= {
        MSG_ID: event_id(received.cause, "dead", origin),
        ORIGIN: origin,
        SUBJECT: received.subject,
        STREAM: received.stream,
        SEQ: str(received.stream_seq),
        AT: datetime.fromtimestamp(clock.wall_s(), UTC).isoformat(timespec="milliseconds"),
        REASON: _line(reason),
    }
    if stack:
        headers[STACK] = _line(" | ".join(stack.splitlines())[-_STACK_CHARACTERS:], _STACK_CHARACTERS)
    payload = received.payload
    if len(payload) > _PAYLOAD_BYTES:
        headers[TRUNCATED] = str(len(payload))
        payload = payload[:_PAYLOAD_BYTES]
    return Outgoing(subjects.dead(origin, sender or subjects.sender_of(received.subject)), payload, headers)


def replayed(headers: Mapping[str, str], payload: bytes, *, attempt: str) -> Outgoing:
    """A dead letter as the message that it was, to be decided again.

    `attempt` makes its message id a new one, or the broker would take it for a repeat of the first. Raises KeyError
    when `headers` are not a dead letter's, ValueError when its payload was cut.
    """
    if TRUNCATED in headers:
        raise ValueError(f"the payload was cut from {headers[TRUNCATED]} bytes: send the original again")
    original = {unquote(name[len(_ORIGINAL) :]): value for name, value in headers.items() if name.startswith(_ORIGINAL)}
    original[MSG_ID] = event_id(original.get(MSG_ID, f"{headers[STREAM]}:{headers[SEQ]}"), "replay", attempt)
    return Outgoing(headers[SUBJECT], payload, original)


def _name(name: str) -> str:
    """A sender may use header names that our client refuses to write: those characters are percent-encoded."""
    return quote(name, safe="!#$&'*+-.^_`|~")


def _line(text: str, most: int = _REASON_CHARACTERS) -> str:
    """Header values are one line of ASCII: everything else is escaped."""
    one_line = " ".join(text.split())
    return one_line.encode("ascii", "backslashreplace").decode()[:most]
