"""`baton logs JOB`: the output of a job's rank."""

import sys
from typing import Annotated

import typer

from libs.cli.options import JobArgument, Team, Url
from libs.cli.output import clean
from libs.cli.session import run, whole_id
from libs.client import Baton


def command(
    job: JobArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="Which process of the gang.")] = 0,
    attempt: Annotated[int, typer.Option("--attempt", min=0, help="Which attempt; 0 is the latest.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Show control characters on a terminal too.")] = False,
    team: Team = None,
    url: Url = None,
) -> None:
    """A job's output. On a terminal without the control characters that could steer it; in a pipe as it is."""

    async def show(baton: Baton) -> None:
        await show_output(baton, await whole_id(baton, job), rank, attempt=attempt, follow=follow, raw=raw)

    run(show, team, url)


async def show_output(
    baton: Baton,
    job_id: str,
    rank: int = 0,
    *,
    attempt: int = 0,
    follow: bool = False,
    every: bool = False,
    raw: bool = False,
) -> None:
    """Prints the output of a job's rank. Arguments as for `Baton.logs`."""
    unchanged = raw or not sys.stdout.isatty()
    async for piece in baton.logs(job_id, rank, attempt=attempt, follow=follow, every=every):
        text = piece.text if unchanged else clean(piece.text, keep_newlines=True)
        sys.stdout.write(text.encode(errors="replace").decode())
        sys.stdout.flush()
