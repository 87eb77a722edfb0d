"""Asking: the half of questions and answers that clients need, without the service framework.

A reply carries `Baton-Status`: ok, invalid, not-found or failed; all but ok carry `QueryFailed`. A question may carry
`Baton-At-Least`: the newest ledger sequence that its asker has heard of. Whoever answers waits a moment for that record, so
that two processes that answer in turn do not show the past after the present.
"""

from collections.abc import Sequence
from typing import Any

from nats.aio.client import Client
from nats.errors import NoRespondersError
from pydantic import BaseModel

from schemas import subjects
from schemas.catalog import Message
from schemas.jobs import Reason
from schemas.queries import QueryFailed

STATUS = "Baton-Status"
AT_LEAST = "Baton-At-Least"
OK, INVALID, NOT_FOUND, FAILED = "ok", "invalid", "not-found", "failed"


class QueryError(RuntimeError):
    """The owner answered that it cannot answer: `status` is invalid, not-found or failed."""

    def __init__(self, status: str, message: str, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.reasons = tuple(reasons)


class NoAnswer(TimeoutError):
    """Nobody answered; the text names the service that should have."""


async def ask(
    nats: Client, message: Message, query: BaseModel, *, timeout_s: float = 5.0, at_least: int = 0, **keys: str
) -> Any:
    """The owner's answer, as `message.reply`. `keys` are those of the message's subject: pool, team and user, or node.
    `at_least`: the newest sequence of the pool's ledger that the asker has heard of.

    Raises ValueError for a key that is no token, QueryError when the owner cannot answer, NoAnswer when nobody did
    within `timeout_s`.
    """
    assert message.reply is not None, f"{message.type} has no reply"
    subject = subjects.fill(message.subject, **{key: keys[key] for key in subjects.keys_in(message.subject)})
    owner = message.consumers[0]
    try:
        headers = {AT_LEAST: str(at_least)} if at_least else None
        reply = await nats.request(subject, query.model_dump_json().encode(), timeout=timeout_s, headers=headers)
    except NoRespondersError:
        raise NoAnswer(f"nobody answers {subject}: is {owner} running? `baton up` starts it") from None
    except TimeoutError:
        raise NoAnswer(f"no answer from {owner} to {subject} within {timeout_s:g} s: is it ready?") from None
    status = (reply.headers or {}).get(STATUS, OK)
    if status != OK:
        failed = QueryFailed.model_validate_json(reply.data)
        raise QueryError(status, failed.message, failed.reasons)
    return message.reply.model_validate_json(reply.data)
