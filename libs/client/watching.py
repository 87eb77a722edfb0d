"""One job's events and its end, of what is told live and of what history has."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from math import inf

from libs.bus.cancel import cancel
from libs.client import following
from libs.client.errors import NotFound, Unreachable
from schemas.jobs import JobEvent, JobState
from schemas.queries import EventList, JobDocument

_STARTS_WITHIN_S = 10.0
_TOLD_S = 0.2
"""Of a job that was submitted just now history has no document yet: its end is told live, and history asked only after this."""

EventPage = Callable[[int | None, int, str | None], Awaitable[EventList]]
"""(after_us, limit, job) -> the events of a job that history has."""
KnownJob = Callable[[str], Awaitable[JobDocument | None]]
"""What history says of a job; None: nothing."""


class _Unknown(Exception):
    """Nobody has heard of the job. Not a ClientError: those do not end the following of events once it is under way."""


async def events_of(
    live: following.Live, job_id: str, page_of: EventPage, known: KnownJob, *, exists: bool = False
) -> AsyncGenerator[JobEvent, None]:
    """From the first to the terminal one, each once. Of a job that `exists` for certain a silent history is waited for.

    Raises NotFound when nobody has heard of the job for 10 s, in which history has answered each question: one that was away,
    or lacked its store, has the past to read first."""
    heard, unknown_since = asyncio.Event(), inf

    async def ask_history(after_us: int | None, limit: int, seen: Mapping[str, int]) -> EventList:
        nonlocal unknown_since
        since, unknown_since = unknown_since, inf  # as long as there is no answer
        page = await page_of(after_us, limit, job_id)
        if not page.events and not heard.is_set():
            document = await known(job_id)
            if document is not None and document.state is JobState.REJECTED:
                return EventList(events=(following.ended_rejected(document),))
            if document is None:
                unknown_since = min(since, now := time.monotonic())
                if now - unknown_since > _STARTS_WITHIN_S:
                    raise _Unknown(job_id)
        return page

    try:
        async with contextlib.aclosing(following.follow(live, ask_history, after_us=0, patient=exists)) as events:
            async for event in events:
                heard.set()
                yield event
                if event.state.terminal:
                    return
    except _Unknown:
        raise NotFound(f"there is no job {job_id}", fix="check the id and the team") from None


async def end_of(
    live: following.Live,
    job_id: str,
    page_of: EventPage,
    known: KnownJob,
    *,
    just_submitted: bool,
    exists: bool,
) -> JobEvent:
    """The terminal event: the one that is told live, or that history has."""

    async def watched() -> JobEvent:
        async with contextlib.aclosing(events_of(live, job_id, page_of, known, exists=exists)) as events:
            async for event in events:
                if event.state.terminal:
                    return event
        raise Unreachable(f"{job_id}: the events ended before the job did")

    if just_submitted:
        await asyncio.wait({live.ended}, timeout=_TOLD_S)
    if live.ended.done():
        return live.ended.result()
    watching = asyncio.create_task(watched())
    try:
        await asyncio.wait({watching, live.ended}, return_when=asyncio.FIRST_COMPLETED)
        return live.ended.result() if live.ended.done() else watching.result()
    finally:
        await cancel(watching)
