"""Questions for a job's output go to the node that has it, and to no other: history knows which node that is.

So a node that was taken over hears no question about other nodes' jobs, and cannot answer one. What a node does not answer
in time holds up nobody else: a team has a bounded number of questions under way.

Output passes through here and through its node, whose agent begins others' jobs meanwhile. So a team hears so much of it in a
second, and who asks for more waits.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from nats.aio.client import Client
from pydantic import ValidationError

from libs.bus.queries import AskAgain, NoAnswer, NothingFound, QueryError, ask
from libs.core.admission.intake import Buckets
from libs.core.projections.hosts import hosts
from schemas.catalog import BY_TYPE
from schemas.queries import (
    GIVES_UP,
    LOGS_ANSWER_S,
    AttemptDocument,
    JobDocument,
    LogPiece,
    LogQuery,
    NodeLogQuery,
)

_PIECE = BY_TYPE["io.baton.log.piece.query.v1"]
RELAY_S: Final = GIVES_UP * LOGS_ANSWER_S
"""For an answer, and for what MongoDB has of it."""
_TRY_S = 0.7
_PAUSE_S = 0.1
_MOST_OF_A_TEAM = 32
AT_ONCE, PER_S = 32 * 1024 * 1024, 8 * 1024 * 1024
"""Bytes of output, as they are written in an answer, that a team hears of one process at once, and in a second."""
_LEAST = 16 * 1024
"""What a question counts as that has a shorter answer, or none."""

Find = Callable[[str, str], Awaitable[JobDocument]]
"""The document of a job, for a team. Raises NothingFound."""


class LogRelay:
    """Answers `log.read` by asking `log.piece`."""

    MOST: Final = 512
    """Questions under way: more than a few teams' together."""

    def __init__(self, nats: Callable[[], Client], find: Find) -> None:
        self._nats, self._find = nats, find
        self._under_way: Counter[str] = Counter()
        self._heard: Buckets[str] = Buckets()

    async def read(self, query: LogQuery, team: str) -> LogPiece | None:
        """None when the node does not have it, or does not answer. Raises AskAgain, and NothingFound: no such job, attempt or
        rank. That there is no such rank is certain as soon as the attempt is known. Of what was heard beyond `PER_S` who asks
        next waits for the time."""
        if self._under_way[team] >= _MOST_OF_A_TEAM:
            raise AskAgain(
                f"{_MOST_OF_A_TEAM} questions of {team} for logs are under way already: ask again in a second"
            )
        self._under_way[team] += 1
        try:
            await self._until_it_may(team)
            return await self._counted(query, team)
        finally:
            self._under_way[team] -= 1
            if not self._under_way[team]:
                del self._under_way[team]

    async def _until_it_may(self, team: str) -> None:
        """A question that is refused here counts for nothing: else a team that asks on would owe without end."""
        now_us = _now_us()
        wait_s = self._heard.of(team, AT_ONCE, now_us).wait_s(AT_ONCE, PER_S, now_us, 0)
        if wait_s > RELAY_S:
            raise AskAgain(f"{team} hears {PER_S:,} bytes of output a second: ask again in a second")
        await asyncio.sleep(wait_s)

    async def _counted(self, query: LogQuery, team: str) -> LogPiece | None:
        size = 0
        try:
            piece = await self._ask(query, team)
            size = 0 if piece is None else len(piece.model_dump_json())
            return piece
        finally:
            self._owe(team, max(size, _LEAST))

    def _owe(self, team: str, size: int) -> None:
        now_us = _now_us()
        self._heard.of(team, AT_ONCE, now_us).owe(AT_ONCE, PER_S, now_us, size)

    async def _ask(self, query: LogQuery, team: str) -> LogPiece | None:
        """An attempt that history has not read of yet, or that its node begins just now, is waited for, for a moment."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RELAY_S
        while True:
            document = await self._find(query.job_id, team)
            number = query.attempt or (document.attempts[-1].attempt if document.attempts else 0)
            attempt = next((a for a in document.attempts if a.attempt == number), None)
            node = "" if attempt is None else _node(document, attempt, query.rank)
            asked = NodeLogQuery(**{**query.model_dump(), "attempt": number}, team=team)
            piece = await self._of_node(asked, document.pool, node) if node and document.pool else None
            if piece is not None or loop.time() + _PAUSE_S > deadline:
                if attempt is None:
                    raise NothingFound(_no_attempt(document, number))
                return piece
            await asyncio.sleep(_PAUSE_S)

    async def _of_node(self, asked: NodeLogQuery, pool: str, node: str) -> LogPiece | None:
        try:
            piece: LogPiece = await ask(self._nats(), _PIECE, asked, timeout_s=_TRY_S, pool=pool, node=node)
        except (NoAnswer, QueryError, ValidationError):
            return None  # the asker hears nothing, as of a node that is gone
        return piece if _answers(piece, asked) else None


def _now_us() -> int:
    return int(asyncio.get_running_loop().time() * 1e6)


def _node(document: JobDocument, attempt: AttemptDocument, rank: int) -> str:
    """The node that ran `rank`; "" when that is not known. Raises NothingFound: there is no such rank."""
    nodes = hosts(document.spec, attempt)
    if nodes and rank >= len(nodes):
        there = "rank 0 only" if len(nodes) == 1 else f"ranks 0 to {len(nodes) - 1}"
        raise NothingFound(f"{document.job_id} has no rank {rank}: attempt {attempt.attempt} has {there}")
    return nodes[rank] if nodes else ""


def _no_attempt(document: JobDocument, number: int) -> str:
    if not document.attempts:
        return f"{document.job_id} has not started: it is {document.state.value}"
    first, last = document.attempts[0].attempt, document.attempts[-1].attempt
    there = f"attempt {first} only" if first == last else f"attempts {first} to {last}"
    return f"{document.job_id} has no attempt {number}{' any more' if number < first else ''}: it has {there}"


def _answers(piece: LogPiece, asked: NodeLogQuery) -> bool:
    """Whether it is of what was asked, and goes on from there by what it has: else who reads on would never come to an end."""
    of_it = (piece.job_id, piece.attempt, piece.rank) == (asked.job_id, asked.attempt, asked.rank)
    taken = piece.next_offset - asked.offset
    return of_it and 0 <= taken <= asked.limit and bool(taken) == bool(piece.text)
