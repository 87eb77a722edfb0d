"""`baton team suspend|resume TEAM`: what an operator says to the pools, and what they then say of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from libs.cli.decided import say_to_pool, say_to_pools
from libs.cli.known_team import warn_of_unknown
from libs.cli.options import Output, Pool, Url, UserOption
from libs.cli.output import Format, done, hint
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import Failed
from schemas import subjects
from schemas.inbox import OffboardTeam, ResumeTeam, SuspendTeam
from schemas.queries import PoolStatus, PoolStatusQuery, SuspendedTeam

DecidedIn = dict[str, int | None]
"""Pool -> the ledger record that decided what was said of a team there; None: no record tells of it."""

TeamName = Annotated[str, typer.Argument(help="A team. It need not have a credential any more.", metavar="TEAM")]


def suspend(
    team: TeamName,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger, and the team is told.")],
    *,
    stop: Annotated[bool, typer.Option("--stop", help="What runs saves its work and waits, too.")] = False,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Pause a team in every pool (or one): nothing new is taken or started, questions are answered, bills go on."""

    async def work(baton: Baton) -> DecidedIn:
        await warn_of_unknown(baton, team)
        return await pause(baton, team, reason, stop=stop, only=pool)

    records = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    _say(team, records, output, done="suspended", stop=stop)
    hint(
        "what runs ends as it would" if not stop else "what runs saves its work: `baton get jobs` shows it waiting then"
    )


def resume(
    team: TeamName,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the ledger.")] = "",
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Let a suspended team go on: its waiting jobs have kept their age."""

    async def work(baton: Baton) -> DecidedIn:
        return await go_on(baton, team, reason, only=pool)

    _say(team, run(work, subjects.OPERATOR, url, user=user, pool=pool), output, done="resumed")


def _say(team: str, records: DecidedIn, output: Format, **more: str | bool) -> None:
    done({"team": team, **more, "pools": by_pool(records)}, ["\t".join([team, *records])], output, names=[team])


def by_pool(records: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """For programs."""
    return [{"pool": pool, "ledger_seq": seq} for pool, seq in records.items()]


async def pause(baton: Baton, team: str, reason: str, *, stop: bool = False, only: str | None = None) -> DecidedIn:
    """Suspends `team`; the pools in which it is, with the record that says so. Raises as `say_to_pool`."""
    who = baton.place.user or "operator"
    pools = [only] if only else await pools_of(baton)
    records: DecidedIn = dict.fromkeys(pools)

    async def say_it(pool: str) -> None:
        async def paused() -> bool:
            there = await suspension(baton, pool, team)
            return there is not None and there.reason == reason

        said = SuspendTeam(team=team, reason=reason, stop=stop, user=who)
        records[pool] = await say_to_pool(baton, pool, said, subjects.suspend_team(pool, who), team, done=paused)

    await say_to_pools(pools, say_it)
    return records


async def leave(baton: Baton, team: str, reason: str) -> dict[str, int]:
    """`team`, which is suspended, has left; pool -> a ledger record that knows it. Raises as `say_to_pool`."""
    who = baton.place.user or "operator"
    known: dict[str, int] = {}

    async def say_it(pool: str) -> None:
        async def gone() -> bool:
            status = await _own_status(baton, pool, team)
            if any(one.left_us is not None for one in status.suspended):
                known[pool] = status.ledger_seq
            return pool in known

        if not await gone():
            said = OffboardTeam(team=team, reason=reason, user=who)
            await say_to_pool(baton, pool, said, subjects.offboard_team(pool, who), team, done=gone)

    await say_to_pools(await pools_of(baton), say_it)
    return known


async def go_on(baton: Baton, team: str, reason: str, *, only: str | None = None) -> DecidedIn:
    """Resumes `team` where it is suspended; the pools in which it was, with the record that says so. Raises as `say_to_pool`;
    Failed when it is nowhere."""
    who = baton.place.user or "operator"
    pools = [only] if only else await pools_of(baton)
    found = [pool for pool in pools if await suspension(baton, pool, team) is not None]
    if not found:
        raise Failed(f"team {team} is not suspended", "no pool says so", "`baton team list` shows which teams are")

    records: DecidedIn = dict.fromkeys(found)

    async def say_it(pool: str) -> None:
        async def goes_on() -> bool:
            return await suspension(baton, pool, team) is None

        said = ResumeTeam(team=team, reason=reason, user=who)
        records[pool] = await say_to_pool(baton, pool, said, subjects.resume_team(pool, who), team, done=goes_on)

    await say_to_pools(found, say_it)
    return records


async def suspension(baton: Baton, pool: str, team: str) -> SuspendedTeam | None:
    """How `team` is suspended in `pool`; None: it is not. Raises ClientError."""
    return next(iter((await _own_status(baton, pool, team)).suspended), None)


async def _own_status(baton: Baton, pool: str, team: str) -> PoolStatus:
    """As the team itself would be told."""
    place = replace(baton.place, team=team)
    status: PoolStatus = await ask(baton.nats, "pool.status", place, PoolStatusQuery(), pool=pool)
    return status


async def suspended(baton: Baton) -> dict[str, dict[str, SuspendedTeam]]:
    """Pool -> the teams that are suspended there, the last ones where there are many. Raises ClientError."""
    out: dict[str, dict[str, SuspendedTeam]] = {}
    for pool in await pools_of(baton):
        status: PoolStatus = await ask(baton.nats, "pool.status", baton.place, PoolStatusQuery(), pool=pool)
        out[pool] = {one.team: one for one in status.suspended}
    return out


async def pools_of(baton: Baton) -> list[str]:
    """The pools that have an inbox: an operator sees streams."""
    prefix = subjects.inbox_stream("x").removesuffix("x")
    names: list[str] = []
    while page := await baton.nats.jetstream().streams_info(offset=len(names)):
        names += [info.config.name or "" for info in page]
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)) or [baton.place.pool]
