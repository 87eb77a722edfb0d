"""`baton cancel JOB...`."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from libs.cli.exits import tell
from libs.cli.options import Output, Team, Url, UserOption
from libs.cli.output import Format, done, hint
from libs.cli.session import run, whole_id
from libs.client import Baton, Conflict
from libs.client.errors import ClientError, Failed, NotCancelled, Unreachable
from schemas.ids import is_job_id
from schemas.queries import JobDocument
from schemas.subjects import OPERATOR


def command(
    jobs: Annotated[
        list[str], typer.Argument(help="Jobs: their ids, the beginnings of these, or their names.", metavar="JOB")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; shown to the team. By default, by whom.")] = "",
    team: Team = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Ask for jobs to be ended. They end when their processes have: see `baton wait`. Exits with 5 if one has already, with 4
    if one's pool is closed."""

    async def cancel(baton: Baton) -> None:
        # Look up all before cancelling the first: a mistyped id must not leave half of them ended.
        found, unknown = await _look_up(baton, jobs)
        over = [AlreadyOver(job.job_id, job.state.value) for job in found if job.state.terminal]
        why = reason or f"cancelled by {'an operator' if baton.team == OPERATOR else 'its team'}"
        asked, refused, error = set[str](), dict[str, NotCancelled](), ""
        try:
            for job in found:
                if not job.state.terminal:
                    try:
                        await baton.cancel(job.job_id, why, pool=job.pool)
                        asked.add(job.job_id)
                    except NotCancelled as e:
                        refused[job.job_id] = e
            for job_id in unknown:
                await baton.cancel(job_id, why, pool="")
                asked.add(job_id)
        except ClientError as e:
            error = str(e)
            raise
        finally:
            documents = [_as_document(job, job.job_id in asked, str(refused.get(job.job_id, error))) for job in found]
            documents += [
                {"job_id": job_id, "name": None, "team": baton.team, "state": None} | _outcome(job_id in asked, error)
                for job_id in unknown
            ]
            done(documents, [one["job_id"] for one in documents if one["cancel_asked"]], output)
        not_done: list[ClientError] = [*refused.values(), *over]
        for other in not_done[1:]:
            tell(other)
        if not_done:
            raise not_done[0]

    run(cancel, team, url, user=user)


async def _look_up(baton: Baton, jobs: Sequence[str]) -> tuple[list[JobDocument], list[str]]:
    """What history has of the jobs, and the ids of those that it says nothing of. Once it has not answered it is asked no more:
    a job runs on while history is away, so who knows its id can end it."""
    found, unknown = list[JobDocument](), list[str]()
    for job in jobs:
        job_id = job if unknown and is_job_id(job) else await whole_id(baton, job)
        if not unknown:
            try:
                found.append(await baton.get(job_id))
                continue
            except (Unreachable, Failed) as e:
                if baton.team == OPERATOR:  # the job's team is not known
                    raise
                hint(
                    f"{e.what}: whether there is such a job, and whether it has ended, is not known; its end is asked for"
                )
        unknown.append(job_id)
    return found, unknown


def _as_document(job: JobDocument, asked: bool, error: str) -> dict[str, Any]:
    """The form for programs: a job's state before the request, and the error, if any."""
    why_not = _ENDED.format(job.state.value) if job.state.terminal else error
    about = {"job_id": job.job_id, "name": job.name, "team": job.team, "state": job.state.value}
    return about | _outcome(asked, why_not)


def _outcome(asked: bool, why_not: str) -> dict[str, Any]:
    return {"cancel_asked": asked, "error": "" if asked else why_not or "interrupted"}


_ENDED = "it has ended already: {}"


class AlreadyOver(Conflict):
    """The job has ended already."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id, ())
        self.what, self.why, self.fix = f"{job_id} cannot be cancelled", _ENDED.format(state), ""
