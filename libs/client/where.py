"""Where Baton is and who we are: arguments, then the environment, then the instance that runs on this machine.

`baton up` writes `<state dir>/client.json` (mode 0600), which holds a URL for each team, for each user that it was
started with, and one for the operator. The name in a URL says whose credential it is: `research` is the whole team's,
`research.ana` one user's.
"""

import getpass
import json
import os
import re
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
    """An address, and who speaks there: a team (`operator` sees every team) and its user. `pool` is asked when none is
    named."""

    url: str = field(repr=False)
    team: str
    pool: str = "main"
    user: str = "default"


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`BATON_STATE_DIR`, else `.baton` in the working directory."""
    return Path((os.environ if environ is None else environ).get("BATON_STATE_DIR") or STATE_DIR)


def find(
    url: str | None = None,
    team: str | None = None,
    *,
    user: str | None = None,
    pool: str | None = None,
    operator: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Place:
    """Where to connect, and as whom.

    Args:
        url: overrides BATON_NATS_URL and the running instance.
        team: overrides BATON_TEAM; without either, the user in the URL, or the instance's only team.
        user: overrides BATON_USER; without either, the user of the credential, or of this machine's session.
        pool: overrides BATON_POOL; without either, the instance's first pool, or "main".
        operator: when no team is named, speak as the operator instead of asking which team.

    Raises:
        Unreachable: no address is known.
        Invalid: the team is not known or ambiguous, or a name is not fit for a subject.
    """
    env = os.environ if environ is None else environ
    team, user, pool = (
        _checked(what, given or env.get(variable) or None)
        for what, given, variable in (
            ("team", team, "BATON_TEAM"), ("user", user, "BATON_USER"), ("pool", pool, "BATON_POOL"),
        )
    )  # fmt: skip
    if address := url or env.get("BATON_NATS_URL"):
        owner, _, person = (urlsplit(address).username or "").partition(".")
        asking = user or _checked("user", person or None) or session_user(env)
        return Place(address, team or _team_in(owner, operator), pool or "main", asking)
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
    asking = user or session_user(env)
    address = instance.get("users", {}).get(f"{name}.{asking}") or urls[name]
    return Place(address, name, pool or instance.get("pool", "main"), asking)


def session_user(environ: Mapping[str, str] | None = None) -> str:
    """This session's user as a subject token: what does not fit is written as hyphens. "default" when there is none."""
    env = os.environ if environ is None else environ
    name = env.get("USER") or env.get("LOGNAME") or ""
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError, ImportError):  # no entry of this user on this machine: usual in containers
            return "default"
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:63] or "default"


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


def _checked(what: str, name: str | None) -> str | None:
    try:
        return None if name is None else token(name)
    except ValueError as e:
        raise Invalid(
            f"the {what}'s name is not valid", str(e), "use the name that your credential was made for"
        ) from None


def _team_in(owner: str, operator: bool) -> str:
    """The team of a URL's user name."""
    if owner == SERVICES_USER or (not owner and operator):
        return OPERATOR
    if not owner:
        raise Invalid("no team is named", "the URL has no user name", "set BATON_TEAM, or use --team")
    team = _checked("team", owner)
    assert team is not None
    return team


def _only_team(instance: Mapping[str, Any], operator: bool) -> str:
    teams = list(instance.get("teams", {}))
    if len(teams) == 1:
        return str(teams[0])
    if operator:
        return OPERATOR
    raise Invalid("no team is named", f"this instance serves {', '.join(teams)}", "set BATON_TEAM, or use --team")
