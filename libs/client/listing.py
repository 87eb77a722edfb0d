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

    An answer may end between two jobs of one microsecond, so the next one begins with that microsecond again. Raises Failed
    when more jobs are of one microsecond than an answer holds.
    """
    again = set[str]()
    while limit > 0:
        page = await asked(int(min(MOST, limit + len(again))), before_us)
        new = [job for job in page if job.job_id not in again]
        if not new:
            if len(page) > 1 and await asked(1, page[-1].submitted_us):
                raise Failed(
                    "the list of jobs cannot be read on",
                    f"too many were submitted at {page[-1].submitted_us} us",
                    "ask an operator",
                )
            return
        yield new
        limit -= len(new)
        last = page[-1].submitted_us
        again = {job.job_id for job in page if job.submitted_us == last}
        before_us = last + 1
