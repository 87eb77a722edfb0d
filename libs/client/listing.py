"""Lists a team's jobs by paging: one answer holds no more than 256 KiB."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from libs.client.errors import Failed
from schemas.queries import JobDocument

MOST = 1000
"""Jobs that one question may ask for."""


async def pages(
    asked: Callable[[int, int | None], Awaitable[Sequence[JobDocument]]], *, before_us: int | None, limit: float
) -> AsyncIterator[Sequence[JobDocument]]:
    """The newest `limit` jobs from before `before_us`, newest first, none twice: what `asked(limit, before_us)` answers.

    An answer may end between two jobs of one microsecond, so the next one begins with that microsecond again. A job that is too
    large for an answer with another (a gang of thousands of devices) is asked for by itself. Raises Failed when more jobs are
    of one microsecond than an answer holds.
    """
    again, last = set[str](), 0
    while limit > 0:
        page = await asked(int(min(MOST, limit + len(again))), before_us)
        new = [job for job in page if job.job_id not in again]
        if not new:
            if not page or not await asked(1, last):
                return
            if len(page) > 1:
                raise Failed(
                    "the list of jobs cannot be read on", f"too many were submitted at {last} us", "ask an operator"
                )
            again, before_us = set(), last
            continue
        yield new
        limit -= len(new)
        last = page[-1].submitted_us
        again = {job.job_id for job in page if job.submitted_us == last}
        before_us = last + 1
