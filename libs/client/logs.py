"""A job's output, piece by piece, across attempts."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TypeVar

from libs.client.errors import ClientError, Failed, NotFound, Unreachable
from schemas.queries import JobDocument, LogPiece, LogQuery

log = logging.getLogger("baton.client")

_AGAIN_S = 0.5
_LOOK = "see `baton describe job` for its attempts and nodes"

Read = Callable[[LogQuery], Awaitable[LogPiece]]
Get = Callable[[], Awaitable[JobDocument]]

T = TypeVar("T")


async def pieces(
    read: Read,
    get: Get,
    job_id: str,
    *,
    rank: int,
    attempt: int,
    follow: bool,
    every: bool = False,
    limit: int = 65_536,
) -> AsyncGenerator[LogPiece, None]:
    """What the job wrote in its latest attempt, or in `attempt`; with `follow` also what it will write, in later attempts too,
    until the job ends; with `every` beginning with its first attempt.

    Every agent that ran an attempt has that attempt's output, so the attempt is settled by asking history first: a
    question for "the latest" could be answered by the node of an earlier one.

    With `follow` a history that does not answer, or lacks its store, delays what is told and ends nothing: the output stays
    where it is. With `every` so does one that has not read of the job yet.

    Raises:
        NotFound: the job never started, it is a timer, it has no such attempt or rank, or no agent has the output (any more).
        Unreachable: without `follow`, history does not answer, or the node on which it runs.
    """
    away = (Failed, Unreachable, *((NotFound,) if every else ()))
    document = await (_retry_while_away(get, away) if follow else get())
    if document.spec.simulation is not None:
        raise NotFound(f"{job_id} has no output", "it is a timer on simulated devices, and a timer writes nothing")
    shown = 0
    while True:
        document = await (_retry_while_away(get) if follow else get())
        latest = document.attempts[-1].attempt if document.attempts else 0
        if attempt or latest > shown:
            shown = attempt or (max(shown + 1, document.attempts[0].attempt) if every else latest)
            query = LogQuery(job_id=job_id, attempt=shown, rank=rank, limit=limit)
            async for piece in _attempt(read, get, query, follow):
                yield piece
            if attempt or not follow:
                return
        elif document.state.terminal and shown:
            return
        elif document.state.terminal or not follow:
            raise NotFound(f"{job_id} has no output", f"it has not started; it is {document.state.value}")
        else:
            await asyncio.sleep(_AGAIN_S)


async def _attempt(read: Read, get: Get, query: LogQuery, follow: bool) -> AsyncGenerator[LogPiece, None]:
    offset = 0
    while True:
        try:
            at_offset = query.model_copy(update={"offset": offset})
            piece = await (_retry_while_away(partial(read, at_offset), (Failed,)) if follow else read(at_offset))
        except NotFound as e:
            raise NotFound(e.what, e.why, _LOOK) from None
        except Unreachable:
            if follow and not await _is_over(get, query.attempt):
                await asyncio.sleep(_AGAIN_S)
                continue
            if not follow and _runs(await get(), query.attempt):
                raise Unreachable(
                    f"the output of attempt {query.attempt}, rank {query.rank} cannot be read now",
                    "it runs, and its node does not answer",
                    "ask again; `baton get nodes` shows whether the node is silent",
                ) from None
            raise NotFound(
                f"no agent has the output of attempt {query.attempt}, rank {query.rank}",
                "its node is gone or does not answer, or the output was removed",
                _LOOK,
            ) from None
        if piece.text or piece.ended:
            yield piece
        caught_up = piece.next_offset == offset
        offset = piece.next_offset
        if caught_up and (piece.ended or not follow):
            return
        if caught_up:
            await asyncio.sleep(_AGAIN_S)


async def _is_over(get: Get, attempt: int) -> bool:
    try:
        document = await get()
    except ClientError:
        return False
    return document.state.terminal or any(a.attempt == attempt and a.closed_us for a in document.attempts)


def _runs(document: JobDocument, attempt: int) -> bool:
    return not document.state.terminal and any(a.attempt == attempt and not a.closed_us for a in document.attempts)


async def _retry_while_away(
    ask: Callable[[], Awaitable[T]], kinds: tuple[type[ClientError], ...] = (Failed, Unreachable)
) -> T:
    """What is answered, however long it takes. Raises what is none of `kinds`."""
    told = False
    while True:
        try:
            return await ask()
        except kinds as e:
            if not told:
                log.warning("%s; it is asked again until there is an answer", ": ".join(filter(None, (e.what, e.why))))
            told = True
        await asyncio.sleep(_AGAIN_S)
