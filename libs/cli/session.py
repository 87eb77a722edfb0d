"""A command's connection, and how a short job id becomes a whole one."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from libs.cli.exits import UsageFault
from libs.client import Baton, NotFound, connect
from schemas.queries import JobDocument

T = TypeVar("T")

_WHOLE = re.compile(r"job-[0-9a-f]{32}")
_PART = re.compile(r"(?:job-)?([0-9a-f]{1,32})")
_PAGE = 1000
_PAGES = 10


def run(
    work: Callable[[Baton], Awaitable[T]],
    team: str | None = None,
    url: str | None = None,
    *,
    user: str | None = None,
    pool: str | None = None,
    operator: bool = True,
) -> T:
    """Connect, do `work`, close. Without a team, `operator` speaks as the operator where that is possible."""

    async def session() -> T:
        async with await connect(url, team, user=user, pool=pool, operator=operator) as baton:
            return await work(baton)

    return asyncio.run(session())


def short(job_id: str) -> str:
    """The part of a job's id that people see in a table."""
    return job_id[:12]


async def whole_id(baton: Baton, text: str) -> str:
    """The id of the one job that begins with `text`; the newest 10,000 jobs are looked through.

    Raises:
        NotFound: no job does.
        Usage: several do, or it cannot be an id.
    """
    if _WHOLE.fullmatch(text):
        return text
    part = _PART.fullmatch(text.lower())
    if part is None:
        raise UsageFault(f"{text!r} is not a job id: ids look like job-3f2a9c1d...; `baton get jobs` lists them")
    found = {job.job_id: job for job in await _newest(baton) if job.job_id.startswith(f"job-{part[1]}")}
    if not found:
        raise NotFound(f"no job of {baton.team} begins with {text!r}", fix="see `baton get jobs`, or give the whole id")
    if len(found) > 1:
        some = ", ".join(f"{job.job_id[:20]} ({job.name})" for job in list(found.values())[:5])
        raise UsageFault(f"{len(found)} jobs begin with {text!r}: {some}: give more characters")
    return next(iter(found))


async def _newest(baton: Baton) -> list[JobDocument]:
    jobs: list[JobDocument] = []
    before: int | None = None
    for _ in range(_PAGES):
        page = await baton.list(limit=_PAGE, before_us=before)
        jobs += page
        if len(page) < _PAGE:
            break
        before = page[-1].submitted_us
    return jobs
