"""Dead letters: a message that cannot be processed, kept with everything needed to understand and replay it.

The payload is the original's, its headers are kept under `Baton-Orig-`, and `Baton-Dead-*` say where it came from,
when it died and why. The message id is derived from the original's place, so dying twice leaves one letter.

Every message has a letter that a stream takes: what is too large is cut, and a header says so. (With the longer names the
headers of a message that was stored may be more than a stream stores; such a letter would be tried for ever.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from libs.bus.messages import MAX_BYTES, Outgoing, header_bytes
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
LEFT_OUT = "Baton-Dead-Headers-Left-Out"
"""Set to how many of the original's headers were left out, when there were too many to be kept: `4060 of 5060`."""

_ORIGINAL = "Baton-Orig-"
_BROKERS = "nats-"
"""Of headers that the broker heeds (an id, a batch, a trace), in whatever letters: whoever sends a message again leaves them
out. They would be carried out with that one's rights: by `Nats-Trace-Dest` of a team's letter an operator's replay wrote
wherever an operator may. The broker passes over `Nats-Trace-Dest :` of the team, and a client writes it without the blank."""
_REASON_CHARACTERS = 2_000
_STACK_CHARACTERS = 6_000
_PAYLOAD_BYTES = 900_000
_REQUEST_BYTES = 2 * MAX_BYTES
"""Kept of a person's request: more than is taken, so that one that was a little too large is kept whole."""
_KEPT_BYTES = 48 * 1024
"""Of the original's headers. With ours (reason, stack, subject) they are less than the 64 KiB that a stream stores."""


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
    headers = _originals(received.headers)
    left_out = len(received.headers) - len(headers)
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
    if left_out:
        headers[LEFT_OUT] = f"{left_out} of {len(received.headers)}"
    payload, most = received.payload, _REQUEST_BYTES if received.stream == subjects.REQUESTS else _PAYLOAD_BYTES
    if len(payload) > most:
        headers[TRUNCATED] = str(len(payload))
        payload = payload[:most]
    return Outgoing(subjects.dead(origin, sender or subjects.sender_of(received.subject)), payload, headers)


def replayed(headers: Mapping[str, str], payload: bytes, *, attempt: str) -> Outgoing:
    """A dead letter as the message that it was, to be decided again.

    Without what its sender told the broker. `attempt` makes its message id a new one, or the broker would take it for a repeat
    of the first. Raises KeyError when `headers` are not a dead letter's, ValueError when it was cut.
    """
    if LEFT_OUT in headers:
        raise ValueError(f"{headers[LEFT_OUT]} headers were not kept: send the original again")
    if TRUNCATED in headers:
        raise ValueError(f"the payload was cut from {headers[TRUNCATED]} bytes: send the original again")
    original = {unquote(name[len(_ORIGINAL) :]): value for name, value in headers.items() if name.startswith(_ORIGINAL)}
    said = {name: value for name, value in original.items() if not name.strip().lower().startswith(_BROKERS)}
    said[MSG_ID] = event_id(original.get(MSG_ID, f"{headers[STREAM]}:{headers[SEQ]}"), "replay", attempt)
    return Outgoing(headers[SUBJECT], payload, said)


def _originals(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of the original's headers that fit, under their new names; the short ones of many rather than none."""
    kept: dict[str, str] = {}
    room = _KEPT_BYTES
    for name, value in headers.items():
        if len(name) + len(value) > room:
            continue
        new = {f"{_ORIGINAL}{_name(name)}": value}
        if (size := header_bytes(new)) <= room:
            kept |= new
            room -= size
    return kept


def _name(name: str) -> str:
    """A sender may use header names that our client refuses to write: those characters are percent-encoded."""
    return quote(name, safe="!#$&'*+-.^_`|~")


def _line(text: str, most: int = _REASON_CHARACTERS) -> str:
    """Header values are one line of ASCII: everything else is escaped."""
    one_line = " ".join(text.split())
    return one_line.encode("ascii", "backslashreplace").decode()[:most]
