"""Where Baton is and who we are: arguments, then the environment, then the instance that runs on this machine.

`baton up` writes `<state dir>/client.json` (mode 0600), which holds a URL for each team and one for the operator.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from libs.client.errors import Invalid, Unreachable
from schemas.subjects import OPERATOR, token

CLIENT_FILE = "client.json"
STATE_DIR = ".baton"
SERVICES_USER = "services"


@dataclass(frozen=True, slots=True)
class Place:
    """An address and the team that speaks there; `operator` sees every team."""

    url: str = field(repr=False)
    team: str
    pool: str = "main"


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`BATON_STATE_DIR`, else `.baton` in the working directory."""
    return Path((os.environ if environ is None else environ).get("BATON_STATE_DIR") or STATE_DIR)


def find(
    url: str | None = None,
    team: str | None = None,
    *,
    operator: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Place:
    """Where to connect, and as whom.

    Args:
        url: overrides BATON_NATS_URL and the running instance.
        team: overrides BATON_TEAM; without either, the user in the URL, or the instance's only team.
        operator: when no team is named, speak as the operator instead of asking which team.

    Raises:
        Unreachable: no address is known.
        Invalid: the team is not known, ambiguous, or not fit for a subject.
    """
    env = os.environ if environ is None else environ
    team = team or env.get("BATON_TEAM") or None
    pool = env.get("BATON_POOL") or "main"
    if team is not None:
        _checked(team)
    if address := url or env.get("BATON_NATS_URL"):
        return Place(address, team or _team_in(address, operator), pool)
    instance = read_instance(state_dir(env))
    urls = {**instance.get("teams", {}), OPERATOR: instance.get("operator", "")}
    name = team or _only_team(instance, operator)
    if name not in urls:
        known = ", ".join(sorted(urls))
        raise Invalid(
            f"the instance in {state_dir(env)} has no team {name!r}",
            f"it was started for: {known}",
            "name one of them, or restart it with `baton up --teams`",
        )
    return Place(urls[name], name, instance.get("pool", pool))


def read_instance(folder: Path) -> dict[str, Any]:
    """What `baton up` wrote. Raises Unreachable when nothing runs there."""
    path = folder / CLIENT_FILE
    try:
        instance = json.loads(path.read_text())
    except FileNotFoundError:
        raise Unreachable(
            "no running Baton is known",
            f"BATON_NATS_URL is not set and there is no {path}",
            "start one with `baton up`, or set BATON_NATS_URL (and BATON_TEAM)",
        ) from None
    except (OSError, ValueError) as e:
        raise Unreachable(f"{path} cannot be read", str(e), "start Baton again with `baton up`") from None
    if not isinstance(instance, dict):
        raise Unreachable(f"{path} cannot be read", "it is not a JSON object", "start Baton again with `baton up`")
    return instance


def _checked(team: str) -> str:
    try:
        return token(team)
    except ValueError as e:
        raise Invalid(
            "the team's name is not valid", str(e), "use the name that your credential was made for"
        ) from None


def _team_in(url: str, operator: bool) -> str:
    user = urlsplit(url).username or ""
    if user == SERVICES_USER or (not user and operator):
        return OPERATOR
    if not user:
        raise Invalid("no team is named", "the URL has no user name", "set BATON_TEAM, or use --team")
    return _checked(user)


def _only_team(instance: Mapping[str, Any], operator: bool) -> str:
    teams = list(instance.get("teams", {}))
    if len(teams) == 1:
        return str(teams[0])
    if operator:
        return OPERATOR
    raise Invalid("no team is named", f"this instance serves {', '.join(teams)}", "set BATON_TEAM, or use --team")
