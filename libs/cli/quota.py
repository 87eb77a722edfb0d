"""`baton quota set TEAM N`."""

from typing import Annotated, Any

import typer

from libs.cli.exits import UsageFault
from libs.cli.grammar import parse_limit
from libs.cli.known_team import warn_of_unknown
from libs.cli.options import Output, Pool, Url, UserOption
from libs.cli.output import Format, done
from libs.cli.pool_commands import NOTHING_DIFFERS, decisions, of_command
from libs.cli.session import run
from libs.client import Baton
from libs.core.accelerators.kinds import problem_with
from schemas.resources import kind_of
from schemas.subjects import OPERATOR

app = typer.Typer(help="Set a team's quota (operators).", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("set")
def set_quota(
    *,
    team: Annotated[str, typer.Argument(help="Whose quota.", metavar="TEAM")],
    devices: Annotated[
        str,
        typer.Argument(
            help="Accelerators it may hold at once, e.g. 16 or 2.5; `none` for no limit on them.", metavar="DEVICES"
        ),
    ],
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE=N", help="Besides, of one type (H100=8, CPU=2) or MIG profile (H100:1g.10gb=7)."
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is written into the ledger.")] = "",
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """From now on these are the team's limits in the pool, all of them; what it holds already is left to it."""
    limit, by_type = _milli(devices), _by_type(types or [], url, pool)

    async def work(baton: Baton) -> dict[str, Any]:
        async def shown() -> bool:
            now = next((one for one in (await baton.quotas()).teams if one.team == team), None)
            return (limit, by_type) == ((now.limit_milli, now.by_type) if now else (None, {}))

        await warn_of_unknown(baton, team)
        async with decisions(baton, baton.place.pool) as decided:
            cause = await baton.set_quota(team, limit, by_type, reason=reason)
            seq = await decided(lambda record: of_command(record, cause), shown)
        document = {"pool": baton.place.pool, "team": team, "limit_milli": limit, "by_type": by_type}
        return {**document, "done": NOTHING_DIFFERS if seq is None else "set", "ledger_seq": seq}

    line = "\t".join([team, devices, *(f"{key}={count / 1000:g}" for key, count in by_type.items())])
    done(run(work, OPERATOR, url, user=user, pool=pool), [line], output, names=[team])


def _by_type(given: list[str], url: str | None, pool: str | None) -> dict[str, int]:
    limits: dict[str, int] = {}
    for text in given:
        try:
            key, devices = parse_limit(text)
        except ValueError as e:
            raise UsageFault(f"--type {text}: {e}") from None
        limit = _milli(devices)
        if limit is None:
            raise UsageFault(f"--type {text}: {key} is not limited when it is left out: leave it out")
        if key in limits:
            raise UsageFault(f"--type {text}: {key} is limited twice; say it once")
        limits[key] = limit
    if any(problem_with(key) for key in limits):  # the catalogue does not know it, but the pool may have it
        devices_there = run(lambda baton: baton.devices(""), OPERATOR, url, pool=pool).devices
        offered = {kind_of(device.model, device.mig_profile) for device in devices_there}
        for key, limit in limits.items():
            if problem := problem_with(key, offered):
                raise UsageFault(f"--type {key}={limit / 1000:g}: {problem}")
    return limits


def _milli(text: str) -> int | None:
    if text.lower() in ("none", "unlimited"):
        return None
    try:
        value = float(text)
        if not 0 <= value <= 1_000_000:
            raise ValueError
    except ValueError:
        raise UsageFault(f"{text!r} is not a number of devices: write e.g. 16, 2.5 or none") from None
    return round(value * 1000)
