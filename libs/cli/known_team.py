"""Warns of unknown teams. An operator may name a team before it exists, but a typo should be noticed."""

import asyncio
from dataclasses import replace

from libs.cli.output import hint
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import ClientError
from libs.client.where import state_dir
from libs.core.accelerators.spelling import meant
from libs.walls.keyring import Keyring
from schemas.pool_status import PoolStatusQuery

_ASK_S = 2.0


async def warn_of_unknown(baton: Baton, team: str) -> None:
    """Prints a hint when `team` has no account in the keys here, no job and no quota. Call it before sending anything
    about the team, which would make it known. Without an answer there is no hint; the recipient rejects invalid names."""
    try:
        if team in (keys := Keyring(state_dir()).teams):
            return
        quotas = await ask(baton.nats, "quota.list", baton.place, PoolStatusQuery(), timeout_s=_ASK_S)
        known = any(one.team == team for one in quotas.teams)
        if not known:
            async with asyncio.timeout(_ASK_S):
                known = bool(await Baton(baton.nats, replace(baton.place, team=team)).list(limit=1))
    except (ClientError, ValueError, OSError):
        return
    if not known:
        names = {*keys, *(one.team for one in quotas.teams)}
        hint(
            f"no team {team} is known here: {meant(team, names) or 'check the name; '}it counts for a team that comes later"
        )
