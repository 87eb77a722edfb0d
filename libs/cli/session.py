"""A command's connection, and the resolution of names and short job ids."""

import asyncio
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from libs.cli.exits import UsageFault
from libs.client import Baton, NotFound, connect
from libs.client.sending import denied_when_closed, denied_when_unanswered
from schemas.ids import JOB_ID_DIGITS, JOB_ID_PREFIX, is_job_id
from schemas.subjects import OPERATOR

T = TypeVar("T")

_PART = re.compile(rf"(?:{JOB_ID_PREFIX})?([0-9a-f]{{1,{JOB_ID_DIGITS}}})")
_AGAIN_AFTER_S = (0.3, 0.7)
"""A name or beginning that no job has is looked for again: history writes a job a moment after it was submitted."""
_PAGE = 1000
_NEWEST = 10_000


def run(
    work: Callable[[Baton], Awaitable[T]],
    team: str | None = None,
    url: str | None = None,
    *,
    user: str | None = None,
    pool: str | None = None,
    operator: bool = True,
) -> T:
    """Connects, does `work`, closes. Without a team, `operator` connects as the operator if possible."""

    async def session() -> T:
        async with await connect(url, team, user=user, pool=pool, operator=operator) as baton:
            with denied_when_closed(baton.nats), denied_when_unanswered(baton.nats):
                return await work(baton)

    return asyncio.run(interruptible(session()))


_AGAIN_S = 1.0
"""After a Ctrl-C, until what still runs is cancelled once more."""


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Ends `work` by Ctrl-C, unless who started the command has it ignored. Raises KeyboardInterrupt then.

    Python 3.11's `wait_for` returns what has come in the turn in which it is cancelled, and so loses the cancel: one Ctrl-C
    in a hundred, where a command asks again and again.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        return await work
    loop, task, interrupted = asyncio.get_running_loop(), asyncio.ensure_future(work), False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        if task.cancel():  # of no effect once it has ended
            loop.call_later(_AGAIN_S, interrupt)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def short(job_id: str) -> str:
    """The short form of a job's id in tables."""
    return job_id[:12]


async def whole_id(baton: Baton, text: str) -> str:
    """The id of the one job that `text` denotes: an id, a prefix of one, or a name. Of a team's jobs with one name, the
    unfinished one, if it is the only such. Prefixes are searched in the newest 10,000 jobs.

    Raises:
        NotFound: there is no such job.
        Usage: there are several.
    """
    if is_job_id(text):
        return text
    newest = _NEWEST
    for pause_s in _AGAIN_AFTER_S:
        with suppress(NotFound):
            return await _found(baton, text, newest)
        await asyncio.sleep(pause_s)
        newest = _PAGE
    return await _found(baton, text, newest)


async def _found(baton: Baton, text: str, newest: int) -> str:
    part = _PART.fullmatch(text.lower())
    named = [job for job in await baton.list(name=text, limit=_PAGE) if job.name == text] if text else []
    open_ = [job for job in named if not job.state.terminal]
    # An operator must not take a team's open job for another team's that has ended.
    one_team = baton.team != OPERATOR or (len({job.team for job in named}) == 1 and len(named) < _PAGE)
    found = {job.job_id: job for job in (open_ if len(open_) == 1 and one_team else named)}
    if part is not None:
        found |= {
            job.job_id: job for job in await baton.list(limit=newest) if job.job_id.startswith(JOB_ID_PREFIX + part[1])
        }
    if not found:
        of_team = f" of {baton.team}" if baton.team != OPERATOR else ""
        what = f"no job{of_team} is called {text!r}" + (", and no id begins so" if part else "")
        raise NotFound(what, fix="see `baton get jobs`; a job is named by its id, the beginning of it, or its name")
    if len(found) > 1:
        some = ", ".join(
            f"{job.job_id[:20]} ({job.name}, {job.team}, {job.state.value})" for job in list(found.values())[:5]
        )
        raise UsageFault(f"{len(found)} jobs are called {text!r} or begin so: {some}: give more of the id")
    return next(iter(found))
