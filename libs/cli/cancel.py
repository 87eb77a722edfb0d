"""`baton cancel JOB...`."""

from typing import Annotated

import typer

from libs.cli.options import Team, Url, UserOption
from libs.cli.output import say
from libs.cli.session import run, whole_id
from libs.client import Baton, Conflict
from schemas.subjects import OPERATOR


def command(
    jobs: Annotated[
        list[str], typer.Argument(help="Jobs: their ids, the beginnings of these, or their names.", metavar="JOB...")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; shown to the team. By default, by whom.")] = "",
    team: Team = None,
    user: UserOption = None,
    url: Url = None,
) -> None:
    """Ask for jobs to be ended. They end when their processes have: see `baton wait`. Exits with 5 if one has already."""

    async def cancel(baton: Baton) -> None:
        # All are looked up before the first is cancelled: a mistyped id must not leave half of them ended.
        found = [await baton.get(await whole_id(baton, job)) for job in jobs]
        over = [job for job in found if job.state.terminal]
        why = reason or f"cancelled by {'an operator' if baton.team == OPERATOR else 'its team'}"
        for job in found:
            if not job.state.terminal:
                await baton.cancel(job.job_id, why)
                say(job.job_id)
        if over:
            raise AlreadyOver(over[0].job_id, over[0].state.value)

    run(cancel, team, url, user=user)


class AlreadyOver(Conflict):
    """The job has ended already."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id, ())
        self.what, self.why, self.fix = f"{job_id} cannot be cancelled", f"it has ended already: {state}", ""
