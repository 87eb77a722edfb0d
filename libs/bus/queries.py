"""Questions and answers over core NATS: `serve` in the service that owns the answer, `ask` (asking.py) everywhere else.

A reply carries `Baton-Status`: ok, invalid, not-found or failed; all but ok carry `QueryFailed`. A question may be
plain JSON, or empty for "no conditions". What a team is told at once is bounded (`TEAM_ANSWER_BYTES`).
"""

import asyncio
import inspect
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from pydantic import BaseModel

from libs.bus.asking import (
    ACCEPT,
    AT_LEAST,
    ENCODING,
    FAILED,
    INVALID,
    NOT_FOUND,
    OK,
    STATUS,
    ZLIB,
    NoAnswer,
    NobodyAnswers,
    QueryError,
    ask,
    ask_all,
)
from libs.bus.broker import Broker, Plain
from libs.bus.fair_queue import FairWorkers
from libs.bus.messages import Malformed, decode_bare
from libs.bus.metrics import QUERIES, QUERY_SECONDS
from libs.core.admission.intake import Buckets
from schemas import subjects
from schemas.base import Fact
from schemas.catalog import Message
from schemas.jobs import Reason
from schemas.queries import QueryFailed
from schemas.subjects import FINANCE, OPERATOR

__all__ = [
    "STATUS",
    "AskAgain",
    "InvalidQuestion",
    "NoAnswer",
    "NobodyAnswers",
    "NothingFound",
    "QueryError",
    "ask",
    "ask_all",
    "serve",
]

log = logging.getLogger("baton.queries")

Answer = Fact | Sequence[Fact] | None
Handler = Callable[[Any, str], Awaitable[Answer] | Answer] | Callable[[Any, str, str], Awaitable[Answer] | Answer]

OnSeen = Callable[[int], Awaitable[None]]

_WORKERS = 8
"""The number of questions of one kind that are answered concurrently, so that a slow one does not delay the next."""

_EACH, _MOST = 256, 4096
"""The maximum number of questions of one kind that wait, of one team or node and in all; the next is refused."""

_BACKLOG = 8192
"""Questions of one kind that have come and are not looked at yet: what comes beyond is dropped, so that who asks faster than
a service refuses does not keep it busy for minutes after it has gone."""

QUESTIONS_AT_ONCE, QUESTIONS_PER_S = 10_000, 1_000
"""Rate limit for questions of one kind from a team or node to one process."""
REFUSALS_AT_ONCE, REFUSALS_PER_S = 1_000, 100
"""Rate limit for refusals: beyond it a question gets no answer at all."""

ANSWER_S = 30
"""So long the broker keeps where an answer goes that nobody gives; by itself it does so for two minutes. Who asks faster than a
service refuses leaves one for each question, some 350 bytes. Nobody of ours outside the core waits longer: so what has waited
here for so long is not looked at any more, or who asked for what costs most would keep a service busy for minutes after it has
gone."""

TEAM_ANSWER_BYTES = 512 * 1024
"""What one answer to a team has on the wire. The broker keeps a copy for each of 2,048 subscriptions until it is read: when
nobody reads, one of 4 MiB made it grow by more than 2.5 GiB, one of this size by 0.4."""

_PACKED_BYTES = 64 * 1024
"""A longer answer is compressed for who can read that: lists become a tenth of their length."""

_DIGITS = 19
"""A ledger sequence has fewer."""


class NothingFound(LookupError):
    """There is no such thing, or it is another team's: the answer is the same. `ledger_seq`: as of which record."""

    def __init__(self, text: str, ledger_seq: int = 0) -> None:
        super().__init__(text)
        self.ledger_seq = ledger_seq


class AskAgain(RuntimeError):
    """There is no answer now: answered as failed, with the text, and to be asked again. It is no error of the service."""


class InvalidQuestion(ValueError):
    """The question cannot be answered as it stands."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("; ".join(f"{r.field}: {r.problem}; {r.fix}" for r in reasons))
        self.reasons = tuple(reasons)


def serve(
    broker: Broker,
    message: Message,
    handler: Handler,
    *,
    pool: str | None = None,
    node: str | None = None,
    queue: str = "",
    seen: OnSeen | None = None,
    workers: int = _WORKERS,
    users: bool = False,
) -> None:
    """Answers `message`'s questions on `broker`.

    `handler` gets the question and who asks, as the subject says it (the team, or the node), and returns the answer; it
    may be async. None sends no reply: somebody else has the answer. It may raise NothingFound, InvalidQuestion or AskAgain;
    anything else is a bug: logged, answered as failed, and the service lives. `pool` narrows questions of one pool to
    it, `node` those of one node. A list is sent as so many messages (`ask_all`). Of several processes with one `queue`, one
    answers each question. `seen` is awaited first, with the ledger sequence that the asker has heard of (0: none): another
    process may have told it more than this one knows yet. At most `workers` questions are in `handler` at a
    time; teams (or nodes) are served round robin. With `users` it is given the team's user as well.
    """

    async def answered(raw: Any) -> tuple[str, Sequence[BaseModel]]:
        if seen is not None:
            await seen(_at_least(raw.headers))
        return await _answer(message, handler, raw.subject, raw.headers, raw.data, users)

    async def fail(raw: Any, why: str) -> None:
        failed = QueryFailed(status=FAILED, message=why)
        with suppress(NatsError):
            await raw._client.publish(raw.reply, failed.model_dump_json().encode(), headers={STATUS: FAILED})

    async def on_question(heard: tuple[Any, int]) -> None:
        raw, at_us = heard
        if _now_us() - at_us > ANSWER_S * 1_000_000 and _is_a_team(message, raw.subject):
            QUERIES.labels(message.type, FAILED).inc()
            return None
        with QUERY_SECONDS.labels(message.type).time():
            status, answers = await answered(raw)
        QUERIES.labels(message.type, status).inc()
        if answers and raw.reply:
            try:
                for answer in answers:
                    body, headers = answer.model_dump_json().encode(), {STATUS: status}
                    if status == OK and len(body) > _PACKED_BYTES and (raw.headers or {}).get(ACCEPT) == ZLIB:
                        body, headers[ENCODING] = await asyncio.to_thread(zlib.compress, body, 1), ZLIB
                    if len(body) > TEAM_ANSWER_BYTES and _is_a_team(message, raw.subject):
                        most = f"a team's may be ({TEAM_ANSWER_BYTES:,} bytes)"
                        return await fail(raw, f"the answer is larger than {most}: ask for less{_or_packed(headers)}")
                    await raw._client.publish(raw.reply, body, headers=headers)
            except NatsError as e:
                log.error("the answer to %s could not be sent: %s", raw.subject, e)
                why = f"the answer could not be sent ({e})"
                if isinstance(e, MaxPayloadError):
                    why = f"the answer is larger than a message may be ({raw._client.max_payload:,} bytes)"
                await fail(raw, f"{why}: ask for less")  # silence would make the asker ask again

    waiting = FairWorkers(on_question, workers, _EACH, _MOST)
    rates = _Rates()

    async def hear(raw: Any) -> None:
        """Some microseconds for a question that is refused, and fewer for one that is not even told so."""
        flow = _flow_of(message, raw.subject)
        why = rates.over(flow) or ("" if waiting.put(flow, (raw, _now_us())) else f"{_EACH} of {flow} wait already")
        if why:
            QUERIES.labels(message.type, FAILED).inc()
            if raw.reply and rates.tells(flow):
                await fail(raw, f"{why}: ask again in a moment")

    broker.hears(Plain(_heard(message, pool=pool, node=node), queue, hear, waiting.idle, _BACKLOG))


def _or_packed(headers: Mapping[str, str]) -> str:
    return "" if ENCODING in headers else f", or send {ACCEPT}: {ZLIB} and read it compressed"


class _Rates:
    """How many questions of one kind a team, or a node, may ask of one process."""

    def __init__(self) -> None:
        self._asked: Buckets[str] = Buckets()
        self._told: Buckets[str] = Buckets()

    def over(self, flow: str) -> str:
        """Counts a question; why it is too many, "" when it is not."""
        now_us = _now_us()
        if not self._asked.of(flow, QUESTIONS_AT_ONCE, now_us).take(QUESTIONS_AT_ONCE, QUESTIONS_PER_S, now_us):
            return ""
        return f"{flow} may ask {QUESTIONS_AT_ONCE:,} such questions at once and {QUESTIONS_PER_S:,} a second"

    def tells(self, flow: str) -> bool:
        """Whether one that is refused is told so."""
        now_us = _now_us()
        return not self._told.of(flow, REFUSALS_AT_ONCE, now_us).take(REFUSALS_AT_ONCE, REFUSALS_PER_S, now_us)


def _now_us() -> int:
    return int(asyncio.get_running_loop().time() * 1e6)


def _at_least(headers: Mapping[str, str] | None) -> int:
    """What the asker says that it has heard of; 0 for everything that is no number."""
    said = (headers or {}).get(AT_LEAST, "")
    return int(said) if len(said) < _DIGITS and said.isascii() and said.isdigit() else 0


def _heard(message: Message, **keys: str | None) -> str:
    places = subjects.keys_in(message.subject)
    narrowed = {key: value for key, value in keys.items() if value is not None and key in places}
    return subjects.anyone(message.subject, **narrowed)


def _flow_of(message: Message, subject: str) -> str:
    """Who asks: the team, or the node."""
    try:
        return _asker(message, subject, False)[0]
    except Malformed:
        return ""


def _is_a_team(message: Message, subject: str) -> bool:
    """Whether who asks is one of many that do not trust each other; nodes' answers are bounded where they are made."""
    return "team" in subjects.keys_in(message.subject) and _flow_of(message, subject) not in (OPERATOR, FINANCE)


def _asker(message: Message, subject: str, users: bool) -> tuple[str, ...]:
    try:
        keys = subjects.read(message.subject, subject)
    except ValueError as e:
        raise Malformed(str(e)) from None
    if users:
        return keys["team"], keys["user"]
    return (keys["team"] if "team" in keys else keys["node"],)


async def _answer(
    message: Message, handler: Handler, subject: str, headers: Any, payload: bytes, users: bool = False
) -> tuple[str, Sequence[BaseModel]]:
    try:
        _, query = decode_bare(message.model, subject, headers, payload or b"{}")
        result = handler(query, *_asker(message, subject, users))
        answer = await result if inspect.isawaitable(result) else result
        return OK, [answer] if isinstance(answer, BaseModel) else answer or ()
    except NothingFound as e:
        return NOT_FOUND, [QueryFailed(status=NOT_FOUND, message=str(e), ledger_seq=e.ledger_seq)]
    except (Malformed, InvalidQuestion) as e:
        return INVALID, [QueryFailed(status=INVALID, message=str(e)[:4096], reasons=e.reasons)]
    except AskAgain as e:
        return FAILED, [QueryFailed(status=FAILED, message=str(e))]
    except Exception as e:
        log.exception("the question %s failed", subject)
        return FAILED, [QueryFailed(status=FAILED, message=f"{type(e).__name__} in the service; its log says more")]
