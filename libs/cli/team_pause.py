"""`baton team suspend|resume TEAM`: operators' commands to pools, and the resulting state."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import typer

from libs.cli.known_team import warn_of_unknown
from libs.cli.options import Output, Pool, Url, UserOption
from libs.cli.output import Format, hint
from libs.cli.output import done as show_done
from libs.cli.pool_commands import PoolRefused, say_to_pool, store_in_pool
from libs.cli.pools import KnownPools, ToldToPools, pools_of, tell_pools
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import ClientError, Failed
from libs.client.where import state_dir
from libs.walls.departed_teams import DepartedTeams, TeamIsGone
from schemas import subjects
from schemas.inbox import OffboardTeam, ResumeTeam, SuspendTeam
from schemas.pool_status import PoolStatus, PoolStatusQuery, SuspendedTeam

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

    async def work(baton: Baton) -> ToldToPools:
        await warn_of_unknown(baton, team)
        return await pause(baton, team, reason, stop=stop, only=pool)

    results = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    _say(team, results, output, done="suspended", stop=stop)
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

    async def work(baton: Baton) -> ToldToPools:
        return await go_on(baton, team, reason, only=pool)

    _say(team, run(work, subjects.OPERATOR, url, user=user, pool=pool), output, done="resumed")
    with suppress(TeamIsGone):
        if team in DepartedTeams(state_dir()).left():
            hint(f"team {team} has left, and has no credential: if it is back, `baton team add {team} --returns`")


def _say(team: str, results: ToldToPools, output: Format, *, done: str, **more: str | bool) -> None:
    """Prints where it was decided, in any case. Raises what prevented it in some pool."""
    found = {"team": team, **more, "done": "" if results.errors else done, "pools": results.for_programs()}
    lines = ["\t".join([team, *results.decided])] if results.decided else []
    show_done(found, lines, output, names=[] if results.errors else [team])
    results.check()


async def pause(baton: Baton, team: str, reason: str, *, stop: bool = False, only: str | None = None) -> ToldToPools:
    """Suspends `team` in every pool, or in one. Raises ClientError when the pools are unknown."""
    who = baton.place.user or "operator"

    async def say_it(pool: str) -> int | None:
        async def paused() -> bool:
            there = await suspension(baton, pool, team)
            return there is not None and there.reason == reason

        return await say_to_pool(baton, pool, said, subjects.suspend_team(pool, who), team, done=paused)

    said = SuspendTeam(team=team, reason=reason, stop=stop, user=who)
    pools = KnownPools((only,)) if only else await pools_of(baton)
    results = await tell_pools(pools.in_use, say_it)
    return await _store(results, baton, pools.closed, said, team)


async def leave(baton: Baton, team: str, reason: str, pools: Sequence[str]) -> ToldToPools:
    """Records that a suspended `team` has left; returns for each pool a ledger record that contains it."""
    who = baton.place.user or "operator"

    async def say_it(pool: str) -> int | None:
        known: list[int] = []

        async def gone() -> bool:
            status = await _own_status(baton, pool, team)
            if any(one.left_us is not None for one in status.suspended):
                known.append(status.ledger_seq)
            return bool(known)

        if not await gone():
            said = OffboardTeam(team=team, reason=reason, user=who)
            seq = await say_to_pool(baton, pool, said, subjects.offboard_team(pool, who), team, done=gone)
            return known[-1] if known else seq
        return known[-1]

    return await tell_pools(pools, say_it)


async def go_on(baton: Baton, team: str, reason: str, *, only: str | None = None) -> ToldToPools:
    """Resumes `team` where it is suspended. A pool that does not say gets the command all the same. Raises Failed when
    it is suspended nowhere."""
    who = baton.place.user or "operator"
    pools = KnownPools((only,)) if only else await pools_of(baton)
    known = await suspensions(baton, pools.in_use, team)
    silent = {pool for pool, there in known.items() if isinstance(there, ClientError)}
    found = [pool for pool, there in known.items() if there is not None]
    refused: set[str] = set()

    async def say_it(pool: str) -> int | None:
        async def goes_on() -> bool:
            return await suspension(baton, pool, team) is None

        try:
            return await say_to_pool(baton, pool, said, subjects.resume_team(pool, who), team, done=goes_on)
        except PoolRefused:
            if pool not in silent:
                raise
            refused.add(pool)  # it was not suspended there
            return None

    said = ResumeTeam(team=team, reason=reason, user=who)
    results = await tell_pools(found, say_it)
    decided = {pool: seq for pool, seq in results.decided.items() if pool not in refused}
    if not decided and not results.errors:
        raise Failed(f"team {team} is not suspended", "no pool says so", "`baton team list` shows which teams are")
    return await _store(replace(results, decided=decided), baton, pools.closed, said, team)


async def _store(
    results: ToldToPools, baton: Baton, closed: Sequence[str], said: SuspendTeam | ResumeTeam, team: str
) -> ToldToPools:
    """`results`, with results in closed pools, where the command is stored: when they are opened, nothing that was ended
    here may continue there."""
    subject = subjects.suspend_team if isinstance(said, SuspendTeam) else subjects.resume_team
    stored = await tell_pools(closed, lambda pool: store_in_pool(baton, said, subject(pool, said.user), team))
    return replace(results, stored=tuple(stored.decided), errors={**results.errors, **stored.errors})


async def suspension(baton: Baton, pool: str, team: str) -> SuspendedTeam | None:
    """The suspension of `team` in `pool`; None if there is none. Raises ClientError."""
    return next(iter((await _own_status(baton, pool, team)).suspended), None)


async def _own_status(baton: Baton, pool: str, team: str) -> PoolStatus:
    """The status that the team itself would get."""
    place = replace(baton.place, team=team)
    status: PoolStatus = await ask(baton.nats, "pool.status", place, PoolStatusQuery(), pool=pool)
    return status


async def suspensions(baton: Baton, pools: Sequence[str], team: str) -> dict[str, SuspendedTeam | ClientError | None]:
    """Pool -> suspension of `team`; None if there is none; or why it is unknown."""

    async def there(pool: str) -> SuspendedTeam | ClientError | None:
        try:
            return await suspension(baton, pool, team)
        except ClientError as e:
            return e

    return dict(zip(pools, await asyncio.gather(*map(there, pools)), strict=True))


async def suspended(baton: Baton) -> dict[str, dict[str, SuspendedTeam] | ClientError]:
    """Pool -> its suspended teams (the last ones if there are many), or why they are unknown. Closed pools are not
    asked."""

    async def there(pool: str) -> dict[str, SuspendedTeam] | ClientError:
        try:
            status: PoolStatus = await ask(baton.nats, "pool.status", baton.place, PoolStatusQuery(), pool=pool)
        except ClientError as e:
            return e
        return {one.team: one for one in status.suspended}

    pools = (await pools_of(baton)).in_use
    return dict(zip(pools, await asyncio.gather(*map(there, pools)), strict=True))
