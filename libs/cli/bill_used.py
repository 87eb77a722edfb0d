"""`baton bill used`: what jobs held and what their devices did, from the hours that quota_billing stores."""

from typing import Annotated

import typer

from libs.cli.bill_period import DaysOf, Until, days_between, zone_of
from libs.cli.exits import UsageFault
from libs.cli.options import NoHeader, Output, Pool, Team, Url
from libs.cli.output import Column, Format, hint, show
from libs.cli.session import run
from libs.client import Baton
from libs.core.state.moments import text_of
from schemas.subjects import OPERATOR
from schemas.use import UseQuery, UseReply, UseRow

_UNITS_PER_HOUR = 7000 * 3.6e9
_GROUPS = ("team", "user", "job", "day", "hour")


def used(
    *,
    by: Annotated[str, typer.Option("--by", help="What is summed: team, user, job, day or hour.")] = "team",
    start: Annotated[str | None, typer.Option("--from", help="First day, month or full hour.")] = None,
    end: Until = None,
    time_zone: DaysOf = "UTC",
    of: Annotated[str | None, typer.Option("--of", help="Only this team (operators).")] = None,
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Device-hours that were allocated, used, unused and not known, hour by hour; what no sample covers is never unused."""
    if by not in _GROUPS:
        raise UsageFault(f"--by {by}: not known; use {', '.join(_GROUPS)}")
    if of is not None and team is not None:
        raise UsageFault("--of is an operator's: leave out --team")
    first, last = days_between(start, end, zone_of(time_zone))
    query = UseQuery(group_by=by, from_us=first, to_us=last, time_zone=time_zone, team=of)

    async def ask(baton: Baton) -> UseReply:
        return await baton.use(query)

    reply = run(ask, OPERATOR if of is not None else team, url, pool=pool)
    show(reply.rows, _columns(by), output, name=lambda r: r.key, header=not no_header, whole=reply)
    if output in (Format.TABLE, Format.WIDE):
        if reply.first_us is None or reply.last_us is None:
            hint("nothing is kept of that time")
        else:
            hint(
                f"device-hours from {text_of(reply.first_us)} to {text_of(reply.last_us)}; the last minutes are still to come"
            )


def _columns(by: str) -> list[Column]:
    return [
        Column(by.upper(), lambda r: r.key or "(others)"),
        *([] if by == "team" else [Column("TEAM", lambda r: r.team)]),
        Column("ALLOCATED", lambda r: _hours(r.allocated_unit_us), right=True),
        Column("USED", lambda r: _hours(r.used_unit_us), right=True),
        Column("UNUSED", lambda r: _hours(r.known_unit_us - r.used_unit_us), right=True),
        Column("UNKNOWN", lambda r: _hours(r.allocated_unit_us - r.known_unit_us), right=True),
        Column("KWH", _energy, right=True),
    ]


def _hours(unit_us: int) -> str:
    return f"{unit_us / _UNITS_PER_HOUR:.4f}"


def _energy(row: UseRow) -> str:
    return f"{row.energy_nj / 3.6e15:.3f}" if row.energy_known_us else "-"
