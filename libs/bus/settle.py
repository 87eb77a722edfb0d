"""What becomes of a message that cannot be processed: decided once, for every consumer that acknowledges.

In this order, for each message of a batch by itself:

1. *malformed* (`Malformed`): it will never be readable. A dead letter with the reasons, then terminated.
2. *transient* (`Transient`, a broken connection, a timeout): delivered again after a growing pause, and after
   `MAX_DELIVERIES` a dead letter.
3. *bug* (anything else): delivered again as well, but only up to `MAX_BUG_DELIVERIES`, then a dead letter.
4. *decided*: everything that follows from the batch is stored, then the batch is acknowledged. If storing fails,
   nothing is acknowledged, the batch comes again, and the derived ids make the second time harmless.

A dead letter is stored before its message is terminated, so nothing is lost; a bad message never holds up the others.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from prometheus_client import CollectorRegistry, Counter

from libs.bus.messages import Malformed, Outgoing, shown, undecoded
from libs.bus.outbox import NotStored, Outbox
from schemas import subjects
from schemas.envelope import MSG_ID
from schemas.ids import event_id

log = logging.getLogger("baton.settle")

MAX_DELIVERIES = 6
MAX_BUG_DELIVERIES = 3
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)

REASON, SUBJECT, STREAM, SEQ, ORIGIN = (f"Baton-Dead-{name}" for name in ("Reason", "Subject", "Stream", "Seq", "Origin"))
_ORIGINAL = "Baton-Orig-"
_HEADER_LIMIT = 2000


class Transient(RuntimeError):
    """It may work in a moment: a dependency is away."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a consumer got it. `time_us` is the broker's timestamp, `deliveries` counts from 1."""

    subject: str
    headers: Mapping[str, str]
    payload: bytes
    stream: str
    stream_seq: int
    time_us: int
    deliveries: int


Decide = Callable[[Received], Awaitable[list[Outgoing]] | list[Outgoing]]


@dataclass(slots=True)
class _Settled:
    acks: list[Msg] = field(default_factory=list)
    terms: list[Msg] = field(default_factory=list)
    naks: list[tuple[Msg, float]] = field(default_factory=list)
    out: list[Outgoing] = field(default_factory=list)


def consume(
    broker: NatsBroker,
    *,
    stream: str,
    durable: str,
    filter_subject: str,
    origin: str,
    decide: Decide,
    outbox: Callable[[], Outbox],
    batch: int = 256,
    registry: CollectorRegistry | None = None,
) -> None:
    """Registers a pull consumer on an existing durable: batches in, `decide` per message, outputs stored, then acks.

    Args:
        origin: the service's name, for dead letters and metrics.
        decide: what follows from a message; raises Malformed or Transient.
        outbox: gives the outbox once the service is connected.
    """
    outcomes = Counter(
        "baton_consumed", "messages by outcome", ["consumer", "outcome"], registry=registry or CollectorRegistry()
    )

    async def on_batch(body: Any, msg: NatsMessage) -> None:
        messages: Sequence[Msg] = msg.raw_message if isinstance(msg.raw_message, list) else [msg.raw_message]
        settled = _Settled()
        for one in messages:
            outcomes.labels(durable, await _one(one, origin, decide, settled)).inc()
        try:
            await outbox().publish_many(settled.out)
        except (NotStored, NatsError, OSError) as e:
            log.warning("%s: could not store what follows from %d messages: %s", origin, len(messages), e)
            settled = _Settled(naks=[(m, 1.0) for m in messages])
        await _settle(settled)

    broker.subscriber(
        filter_subject,
        stream=JStream(stream, declare=False),
        durable=durable,
        pull_sub=PullSub(batch_size=batch, timeout=1.0, batch=True),
        ack_policy=AckPolicy.MANUAL,
        decoder=undecoded,
    )(on_batch)


async def _one(msg: Msg, origin: str, decide: Decide, settled: _Settled) -> str:
    received = received_of(msg)
    try:
        result = decide(received)
        settled.out += await result if inspect.isawaitable(result) else result
        settled.acks.append(msg)
        return "decided"
    except Malformed as e:
        settled.out.append(dead_letter(origin, received, str(e)))
        settled.terms.append(msg)
        return "malformed"
    except asyncio.CancelledError:
        raise
    except Exception as e:
        passing = isinstance(e, Transient | NatsError | OSError | TimeoutError)
        if not passing:
            log.exception("%s: a bug met message %s of %s", origin, received.stream_seq, received.subject)
        if received.deliveries < (MAX_DELIVERIES if passing else MAX_BUG_DELIVERIES):
            settled.naks.append((msg, PAUSES_S[min(received.deliveries, len(PAUSES_S)) - 1]))
            return "retried"
        reason = f"given up after {received.deliveries} deliveries: {type(e).__name__}: {e}"
        settled.out.append(dead_letter(origin, received, reason))
        settled.terms.append(msg)
        return "exhausted" if passing else "bug"


async def _settle(settled: _Settled) -> None:
    for msg in settled.acks:
        await msg.ack()
    for msg in settled.terms:
        await msg.term()
    for msg, pause_s in settled.naks:
        await msg.nak(delay=pause_s)


def received_of(msg: Msg) -> Received:
    """A JetStream message as plain data."""
    meta = msg.metadata
    return Received(
        subject=msg.subject,
        headers=msg.headers or {},
        payload=msg.data,
        stream=meta.stream,
        stream_seq=meta.sequence.stream,
        time_us=int(meta.timestamp.timestamp() * 1_000_000),
        deliveries=meta.num_delivered,
    )


def dead_letter(origin: str, received: Received, reason: str) -> Outgoing:
    """A message for DEAD: the payload as it was, its headers under `Baton-Orig-`, and why it is here."""
    headers = {f"{_ORIGINAL}{k}": v for k, v in received.headers.items()}
    headers |= {
        MSG_ID: event_id(f"{received.stream}:{received.stream_seq}", "dead", origin),
        ORIGIN: origin,
        SUBJECT: received.subject,
        STREAM: received.stream,
        SEQ: str(received.stream_seq),
        REASON: _header_text(reason),
    }
    return Outgoing(subjects.dead(origin), received.payload, headers)


def replayed(headers: Mapping[str, str], payload: bytes, *, attempt: str) -> Outgoing:
    """A dead letter as the message that it was, to be decided again. `attempt` makes its message id a new one, or the
    broker would take it for a repeat of the first. Raises KeyError when `headers` are not a dead letter's."""
    original = {k[len(_ORIGINAL) :]: v for k, v in headers.items() if k.startswith(_ORIGINAL)}
    original[MSG_ID] = event_id(original.get(MSG_ID, headers[SEQ]), "replay", attempt)
    return Outgoing(headers[SUBJECT], payload, original)


def _header_text(text: str) -> str:
    """Header values are one line of ASCII."""
    return shown_long(text)[:_HEADER_LIMIT]


def shown_long(text: str) -> str:
    """`text` with control and non-ASCII characters escaped."""
    return text if text.isascii() and text.isprintable() else "".join(shown(c) for c in text)
