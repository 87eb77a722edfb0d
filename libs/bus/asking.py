"""The client's half of request-reply: questions and answers, without the service framework.

A reply carries `Baton-Status`: ok, invalid, not-found or failed; all but ok carry `QueryFailed`. A question may carry
`Baton-At-Least`: the newest ledger sequence that the asker has seen. The service waits a moment for that record, so reads are
monotonic across processes. With `Baton-Accept: zlib` a long answer is compressed, and says so with `Baton-Encoding: zlib`: the
broker copies an answer for each subscription that receives it.
"""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from pydantic import BaseModel

from schemas import subjects
from schemas.base import sent
from schemas.catalog import Message
from schemas.jobs import Reason
from schemas.queries import QueryFailed

STATUS = "Baton-Status"
AT_LEAST = "Baton-At-Least"
ACCEPT, ENCODING, ZLIB = "Baton-Accept", "Baton-Encoding", "zlib"
OK, INVALID, NOT_FOUND, FAILED = "ok", "invalid", "not-found", "failed"


_SLOW = "it is there, and busy, still starting, or standing still"
"""What is known of who listens and says nothing: with nobody there the broker says so at once."""

_MOST_BYTES = 256 * 1024 * 1024
"""Of an answer, when it is unpacked: of a million devices."""
_NODES_MOST_BYTES = 512 * 1024
"""Likewise, of a node: its agent writes half of it. One that was taken over answered with 256 MiB, packed, and unpacking them
kept history from everybody."""


class QueryError(RuntimeError):
    """The owner answered that it cannot answer: `status` is invalid, not-found or failed."""

    def __init__(self, status: str, message: str, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.reasons = tuple(reasons)


class NoAnswer(TimeoutError):
    """Nobody answered; the text names the service that should have."""


class NobodyAnswers(NoAnswer):
    """No service subscribes to the question: its owner does not run, or is of an earlier version."""


async def ask_all(
    nats: Client, message: Message, query: BaseModel, *, timeout_s: float = 5.0, **keys: str
) -> list[Any]:
    """An answer of several messages, each a `message.reply` that says which `piece` of how many `pieces` it is.

    They were written at one moment and come in order. Raises as `ask`; NoAnswer, too, when one of them is missing.
    """
    assert message.reply is not None, f"{message.type} has no reply"
    subject, owner = _subject(message, keys), message.consumers[0]
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = nats.new_inbox()
    replies = await nats.subscribe(inbox, cb=arrived.put)
    found: list[Any] = []
    try:
        await nats.publish(subject, sent(query), reply=inbox)
        async with asyncio.timeout(timeout_s):
            while not found or found[-1].piece < found[-1].pieces:
                found.append(_read(message.reply, await arrived.get()))
                if found[-1].piece != len(found):
                    break
    except NoRespondersError:
        raise NobodyAnswers(f"nobody answers {subject}: is {owner} running? `baton up` starts it") from None
    except TimeoutError:
        raise NoAnswer(f"no whole answer from {owner} to {subject} within {timeout_s:g} s: {_SLOW}") from None
    finally:
        with suppress(NatsError):
            await replies.unsubscribe()
    if found[-1].piece != len(found):
        raise NoAnswer(f"piece {len(found)} of the answer to {subject} was lost: ask again")
    return found


async def ask(
    nats: Client, message: Message, query: BaseModel, *, timeout_s: float = 5.0, at_least: int = 0, **keys: str
) -> Any:
    """The owner's answer, as `message.reply`. `keys` are those of the message's subject: pool, team and user, or node.
    `at_least`: the newest sequence of the pool's ledger that the asker has heard of.

    Raises ValueError for a key that is no token, QueryError when the owner cannot answer, NoAnswer when nobody did
    within `timeout_s`.
    """
    assert message.reply is not None, f"{message.type} has no reply"
    subject, owner = _subject(message, keys), message.consumers[0]
    try:
        headers = {ACCEPT: ZLIB, **({AT_LEAST: str(at_least)} if at_least else {})}
        reply = await nats.request(subject, sent(query), timeout=timeout_s, headers=headers)
    except NoRespondersError:
        raise NobodyAnswers(f"nobody answers {subject}: is {owner} running? `baton up` starts it") from None
    except TimeoutError:
        raise NoAnswer(f"no answer from {owner} to {subject} within {timeout_s:g} s: {_SLOW}") from None
    return _read(message.reply, reply, _NODES_MOST_BYTES if message.subject == subjects.LOG_QUESTION else _MOST_BYTES)


def _subject(message: Message, keys: Mapping[str, str]) -> str:
    return subjects.fill(message.subject, **{key: keys[key] for key in subjects.keys_in(message.subject)})


def _read(model: type[BaseModel], reply: Msg, most_bytes: int = _MOST_BYTES) -> Any:
    headers = reply.headers or {}
    if headers.get("Status") == "503" and not reply.data:
        raise NoRespondersError
    status = headers.get(STATUS, OK)
    body = _unpacked(reply.data, most_bytes) if status == OK and headers.get(ENCODING) == ZLIB else reply.data
    if len(body) > most_bytes:
        raise _too_large(most_bytes)
    if status == OK:
        return model.model_validate_json(body)
    failed = QueryFailed.model_validate_json(body)
    raise QueryError(status, failed.message, failed.reasons)


def _unpacked(data: bytes, most_bytes: int) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(data, most_bytes)
    except zlib.error as e:
        raise QueryError(FAILED, f"the answer cannot be unpacked: {e}") from None
    if unpacking.unconsumed_tail:
        raise _too_large(most_bytes)
    return body


def _too_large(most_bytes: int) -> QueryError:
    return QueryError(FAILED, f"the answer is larger than {most_bytes:,} bytes: ask for less")
