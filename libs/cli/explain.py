"""`baton explain JOB`: why a job is in its state."""

from libs.cli.options import JobArgument, Output, Pool, Team, Url
from libs.cli.output import Format, document, fields, say, show
from libs.cli.session import run, whole_id
from libs.cli.why import BEHIND, REMOVED, why
from libs.client import Baton
from schemas.explanations import Explanation


def command(
    job: JobArgument, pool: Pool = None, team: Team = None, url: Url = None, output: Output = Format.TABLE
) -> None:
    """The dominant reason, the devices that each constraint takes out, and the smallest change that would help."""

    async def ask(baton: Baton) -> Explanation:
        return await baton.explain(await whole_id(baton, job))

    found = run(ask, team, url, pool=pool)
    if output in (Format.JSON, Format.YAML):
        document(found, output)
        return
    if output is Format.NAME:
        say(found.reason)
        return
    fields([("job", found.job_id), ("state", found.state.value), *why(found)])
    if found.behind:
        say("")
        show(found.behind, BEHIND)
    if found.removed:
        say("")
        show(found.removed, REMOVED)
