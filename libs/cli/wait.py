"""`baton wait JOB...`: waits until jobs have ended. Also computes the exit code for a job's end, for `baton submit
--wait`, too."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.grammar import parse_duration
from libs.cli.options import Output, Team, Url
from libs.cli.output import Format, document, hint, say
from libs.cli.session import run, whole_id
from libs.cli.watch import detail
from libs.client import Baton
from libs.client.errors import ClientError
from schemas.attempts import Category
from schemas.jobs import JobEvent, JobState


def command(
    jobs: Annotated[
        list[str], typer.Argument(help="Jobs: their ids, the beginnings of these, or their names.", metavar="JOB")
    ],
    timeout: Annotated[str | None, typer.Option("--timeout", help="Give up after e.g. 30m; exits with 6.")] = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Prints each job's terminal event. Exits with 0 if all succeeded, else with the code of the first that did not: its own
    exit code, 4 rejected, 7 cancelled, 8 lost with its node or device, 1 failed without an exit code."""
    limit_s = seconds(timeout)

    async def wait(baton: Baton) -> tuple[list[JobEvent], int]:
        ended = await ends(baton, [await whole_id(baton, job) for job in jobs], limit_s)
        return ended, await code_of_ends(baton, ended)

    ended, code = run(wait, team, url)
    if output in (Format.JSON, Format.YAML):
        document(ended, output)
    else:
        for event in ended:
            say(event.job_id if output is Format.NAME else line(event))
    if code:
        raise Ended(code)


def seconds(timeout: str | None) -> float | None:
    """The value of `--timeout`. Raises UsageFault."""
    try:
        return parse_duration(timeout) if timeout else None
    except ValueError as e:
        raise UsageFault(f"--timeout: {e}") from None


async def ends(baton: Baton, ids: Sequence[str], limit_s: float | None) -> list[JobEvent]:
    """The terminal event of each. An interrupted user learns that the jobs continue. Raises TimedOut, and as
    `Baton.wait`."""
    try:
        return list(await asyncio.gather(*(baton.wait(job_id, limit_s) for job_id in ids)))
    except asyncio.CancelledError:  # Ctrl-C
        tell_going_on(ids)
        raise


def tell_going_on(ids: Sequence[str]) -> None:
    """Printed when a waiting command is ended: that ends no job."""
    jobs = " ".join(ids)
    if len(ids) == 1:
        hint(f"{jobs} goes on: see `baton wait {jobs}`, `baton logs -f {jobs}`, or end it with `baton cancel {jobs}`")
    else:
        hint(f"{len(ids)} jobs go on: see `baton wait {jobs}`, or end them with `baton cancel {jobs}`")


def line(event: JobEvent) -> str:
    return f"{event.job_id}\t{event.state.value}\t{detail(event)}"


async def code_of_ends(baton: Baton, ended: Sequence[JobEvent]) -> int:
    """0 if all succeeded, else the code of the first that did not."""
    first = next((event for event in ended if event.state is not JobState.SUCCEEDED), None)
    return Exit.OK if first is None else await _code_of(baton, first)


async def _code_of(baton: Baton, event: JobEvent) -> int:
    if event.state is not JobState.FAILED:
        return {JobState.REJECTED: Exit.DENIED, JobState.CANCELLED: Exit.CANCELLED}.get(event.state, Exit.FAILED)
    if await _category(baton, event.job_id) in _NO_FAULT_OF_ITS_OWN:  # the rest of a gang may have ended with any code
        return Exit.LOST
    return event.exit_code or Exit.FAILED


async def _category(baton: Baton, job_id: str) -> str:
    """The category of its last attempt's end; "" if history does not have it."""
    try:
        document = await baton.get(job_id)
    except ClientError:
        return ""
    return document.attempts[-1].category if document.attempts else ""


_NO_FAULT_OF_ITS_OWN = {Category.NODE_LOST, Category.HARDWARE, Category.REFUSED}
"""Kinds of end that may be a job's last, for want of further attempts."""
