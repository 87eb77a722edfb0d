"""`baton boost JOB`: raises a job above its class for a time, within its team's budget. An operator commands the pool;
an admin of the job's team asks the holder of the keys."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from libs.cli import team_admin
from libs.cli.exits import UsageFault
from libs.cli.grammar import parse_duration
from libs.cli.moments import read
from libs.cli.options import Output, Pool, Url, UserOption
from libs.cli.output import Format, done, hint
from libs.cli.pool_commands import say_to_pool
from libs.cli.session import run, whole_id
from libs.client import Baton
from schemas import subjects
from schemas.inbox import BoostJob


def command(
    job: Annotated[str, typer.Argument(help="A job: its id, the beginning of it, or its name.", metavar="JOB")],
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger, and the team is told.")],
    *,
    to: Annotated[str, typer.Option("--to", help="The class whose priority it gets.", metavar="CLASS")] = "",
    for_: Annotated[str, typer.Option("--for", help="How long: 90m, 4h, 1d.", metavar="DURATION")] = "",
    until: Annotated[str, typer.Option("--until", help="Until when: 2026-11-24T18:00, UTC.", metavar="DATE")] = "",
    end: Annotated[bool, typer.Option("--end", help="End its boost now.")] = False,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Raise a job to a higher class's priority for a time. What it may do stays as its own class says.

    Operators raise any job; an admin of a team those of its team, with its own credential."""
    if end == bool(to) or end == bool(for_ or until) or (for_ and until):
        raise UsageFault("say --to CLASS with --for DURATION or --until DATE; or --end alone")
    for_s = 0.0 if end else _seconds(for_, until)
    by_admin = team_admin.admin(url)

    async def work(baton: Baton) -> dict[str, Any]:
        job_id = await whole_id(baton, job)
        there = pool or (await baton.get(job_id)).pool or baton.place.pool
        who = baton.place.user or "operator"
        known = end or by_admin  # the holder of the keys accepts it
        priority = 0 if known else await team_admin.priority_of(baton, there, to)
        said = BoostJob(job_id=job_id, priority=priority, for_s=for_s, reason=reason, user=who)
        if by_admin:
            seq = await team_admin.boost(baton, there, said, to)
        else:
            seq = await say_to_pool(baton, there, said, subjects.boost_job(there, who), job_id)
        how = {"done": "boost ended"} if end else {"class": to, "for_s": for_s, "done": "boosted"}
        return {"pool": there, "job_id": job_id, **how, "ledger_seq": seq}

    speaker = None if by_admin else subjects.OPERATOR
    document = run(work, speaker, url, user=user, pool=pool, operator=not by_admin)
    done(document, [document["job_id"]], output)
    hint(
        "it has the priority of its class again"
        if end
        else "`baton describe` shows its priority, `baton explain` until when"
    )


def _seconds(for_: str, until: str) -> float:
    try:
        found = parse_duration(for_) if for_ else (read(until)[0] - datetime.now(UTC)).total_seconds()
    except ValueError as error:
        raise UsageFault(f"--{'for' if for_ else 'until'} {for_ or until}: {error}") from None
    if found < 1:
        raise UsageFault(f"--{'for' if for_ else 'until'} {for_ or until}: that is over already; name a time to come")
    return found
