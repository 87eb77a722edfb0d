"""Questions and answers over core NATS: `serve` in the service that owns the answer, `ask` everywhere else."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from faststream import AckPolicy
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from pydantic import BaseModel

from libs.bus.messages import Malformed, decode_bare, undecoded
from schemas import subjects
from schemas.base import Fact
from schemas.catalog import Message
from schemas.jobs import Reason
from schemas.queries import QueryFailed

log = logging.getLogger("baton.queries")

STATUS = "Baton-Status"
OK, INVALID, NOT_FOUND, FAILED = "ok", "invalid", "not-found", "failed"

Handler = Callable[[Any, str], Awaitable[Fact | None] | Fact | None]


class NotFound(LookupError):
    """There is no such thing, or it is another team's: the answer is the same."""


class Invalid(ValueError):
    """The question cannot be answered as it stands."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("; ".join(f"{r.field}: {r.problem}; {r.fix}" for r in reasons))
        self.reasons = tuple(reasons)


class QueryError(RuntimeError):
    """The owner answered that it cannot answer: `status` is invalid, not-found or failed."""

    def __init__(self, status: str, message: str, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.reasons = tuple(reasons)


class NoAnswer(TimeoutError):
    """Nobody answered; the text names the service that should have."""


def serve(broker: NatsBroker, message: Message, handler: Handler, *, pool: str | None = None, queue: str = "") -> None:
    """Answers `message`'s questions on `broker`.

    Args:
        handler: (query, team) -> answer; may be async; None sends no reply (somebody else has it). It may raise
            NotFound or Invalid; anything else is a bug: it is logged, answered as failed, and the service lives.
        pool: the subject's key for questions about one pool; "*" (any team) without it.
        queue: of several processes with one name, one answers each question.
    """
    subject = message.subject.replace("{team}", "*").replace("{pool}", pool or "*")

    async def on_question(body: Any, msg: NatsMessage) -> None:
        raw = msg.raw_message
        status, answer = await _answer(message, handler, raw.subject, raw.headers, raw.data)
        if answer is not None and raw.reply:
            body = answer.model_dump_json().encode()
            await broker._connection.publish(raw.reply, body, headers={STATUS: status})  # type: ignore[union-attr]

    broker.subscriber(subject, queue=queue, decoder=undecoded, ack_policy=AckPolicy.MANUAL)(on_question)


async def _answer(
    message: Message, handler: Handler, subject: str, headers: Any, payload: bytes
) -> tuple[str, BaseModel | None]:
    try:
        _, query = decode_bare(message.model, subject, headers, payload)
        result = handler(query, subjects.key_of(subject))
        return OK, await result if inspect.isawaitable(result) else result  # type: ignore[return-value]
    except NotFound as e:
        return NOT_FOUND, QueryFailed(status=NOT_FOUND, message=str(e))
    except (Malformed, Invalid) as e:
        return INVALID, QueryFailed(status=INVALID, message=str(e)[:4096], reasons=e.reasons)
    except asyncio.CancelledError:
        raise
    except Exception as e:
        log.exception("the question %s failed", subject)
        return FAILED, QueryFailed(status=FAILED, message=f"{type(e).__name__} in the service; its log says more")


async def ask(nats: Client, message: Message, key: str, query: BaseModel, *, timeout_s: float = 5.0) -> Any:
    """The owner's answer, as `message.reply`.

    Args:
        key: the asking team (or the pool, for questions about one).

    Raises:
        QueryError: the owner cannot answer.
        NoAnswer: nobody did within `timeout_s`.
    """
    subject = message.subject.replace("{team}", key).replace("{pool}", key)
    owner = message.consumers[0]
    try:
        reply = await nats.request(subject, query.model_dump_json().encode(), timeout=timeout_s)
    except (NoRespondersError, NatsTimeout, asyncio.TimeoutError):
        raise NoAnswer(f"no answer from {owner} within {timeout_s:g} s: is it running? `baton up` starts it") from None
    status = (reply.headers or {}).get(STATUS, OK)
    if status != OK:
        failed = QueryFailed.model_validate_json(reply.data)
        raise QueryError(status, failed.message, failed.reasons)
    assert message.reply is not None
    return message.reply.model_validate_json(reply.data)
