"""`baton wait JOB...`: until they have ended."""

import asyncio
from typing import Annotated

import typer

from libs.cli.exits import Ended, Exit, UsageFault
from libs.cli.grammar import parse_duration
from libs.cli.options import Output, Team, Url
from libs.cli.output import Format, document, say
from libs.cli.session import run, whole_id
from libs.cli.watch import detail
from libs.client import Baton
from schemas.jobs import JobEvent, JobState


def command(
    jobs: Annotated[
        list[str], typer.Argument(help="Jobs: their ids, the beginnings of these, or their names.", metavar="JOB...")
    ],
    timeout: Annotated[str | None, typer.Option("--timeout", help="Give up after e.g. 30m; exits with 6.")] = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Prints each job's terminal event. Exits with 0 if all succeeded, 4 if one was rejected, else 1."""
    try:
        limit_s = parse_duration(timeout) if timeout else None
    except ValueError as e:
        raise UsageFault(str(e)) from None

    async def wait(baton: Baton) -> list[JobEvent]:
        ids = [await whole_id(baton, job) for job in jobs]
        return list(await asyncio.gather(*(baton.wait(job_id, limit_s) for job_id in ids)))

    ended = run(wait, team, url)
    if output in (Format.JSON, Format.YAML):
        document(ended, output)
    else:
        for event in ended:
            say(event.job_id if output is Format.NAME else f"{event.job_id}\t{event.state.value}\t{detail(event)}")
    states = {event.state for event in ended}
    if JobState.REJECTED in states:
        raise Ended(Exit.DENIED)
    if states != {JobState.SUCCEEDED}:
        raise Ended(Exit.FAILED)
