"""Reads messages of a stream without a consumer: batched direct gets (NATS ADR-31).

One request names a first sequence (or time), a subject pattern and a number; the broker answers with that many messages and
how many more there are. It knows which messages match a subject, so what lies between them costs nothing.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from libs.bus.dead import Received

SEQUENCE, SUBJECT, STREAM, TIME = "Nats-Sequence", "Nats-Subject", "Nats-Stream", "Nats-Time-Stamp"

_OURS = (SEQUENCE, SUBJECT, STREAM, TIME, "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence")
_MAX_BYTES = 4 * 1024 * 1024
_WAIT_S = 3.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in order, and how many matching ones come after them."""

    messages: list[Msg]
    more: int


async def get(
    js: JetStreamContext,
    stream: str,
    pattern: str,
    start: Mapping[str, Any],
    batch: int,
    *,
    max_bytes: int = _MAX_BYTES,
) -> MessagePage:
    """Up to `batch` messages of `stream` whose subject matches `pattern`, and of `max_bytes` together; at least one, however
    large. `start`: {"seq": n} or {"start_time": text}.

    Raises TimeoutError when the broker does not answer, or refuses.
    """
    nats = js._nc
    inbox = nats.new_inbox()
    subscription = await nats.subscribe(inbox)
    request = {"batch": batch, "max_bytes": max_bytes, "next_by_subj": pattern, **start}
    messages: list[Msg] = []
    try:
        await nats.publish(f"{js._prefix}.DIRECT.GET.{stream}", json.dumps(request).encode(), reply=inbox)
        async with asyncio.timeout(_WAIT_S):
            while True:
                message = await subscription.next_msg(timeout=_WAIT_S)
                headers = message.headers or {}
                if SEQUENCE in headers:
                    messages.append(message)
                    continue
                status = headers.get("Status", "")
                if status in ("204", "404"):  # end of batch; nothing found
                    return MessagePage(messages, int(headers.get("Nats-Num-Pending", "0")))
                raise TimeoutError(f"stream {stream} answers {status} {headers.get('Description', '')}")
    finally:
        await subscription.unsubscribe()


async def last(js: JetStreamContext, stream: str, pattern: str) -> Msg | None:
    """The last message of `stream` whose subject matches `pattern`; None: there is none. Raises TimeoutError when the broker
    does not answer, or refuses."""
    request = json.dumps({"last_by_subj": pattern}).encode()
    message = await js._nc.request(f"{js._prefix}.DIRECT.GET.{stream}", request, timeout=_WAIT_S)
    headers = message.headers or {}
    if SEQUENCE in headers:
        return message
    if headers.get("Status") == "404":
        return None
    raise TimeoutError(f"stream {stream} answers {headers.get('Status', '')} {headers.get('Description', '')}")


def received_of(message: Msg) -> Received:
    """A message of `get`, as a consumer would have got it."""
    headers = message.headers or {}
    return Received(
        subject=headers[SUBJECT],
        headers={name: value for name, value in headers.items() if name not in _OURS},
        payload=message.data,
        stream=headers[STREAM],
        stream_seq=int(headers[SEQUENCE]),
        time_us=stamp_us(headers[TIME]),
    )


def stamp_us(stamp: str) -> int:
    """Microseconds since the epoch. `stamp`: RFC 3339 with up to nine decimals, as the broker writes it; what is smaller than a
    microsecond is cut off."""
    whole, _, rest = stamp.removesuffix("Z").partition(".")
    seconds = (datetime.fromisoformat(whole).replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
    return seconds * 1_000_000 + int(rest[:6].ljust(6, "0") or 0)
