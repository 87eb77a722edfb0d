"""Where Baton is and who we are: arguments, then the environment, then the instance that runs on this machine.

`baton up` writes `<state dir>/client.json` (mode 0600), which says where the broker is and in which folder the credentials
are: `research.creds` is the whole team's, `research.ana.creds` one user's, `operator.creds` that of who sees every team. On
another machine BATON_NATS_URL and BATON_NATS_CREDS say the same; whose credential it is stands in it.
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

from libs.bus import wire
from libs.bus.creds import Address, BadCredential, at, speaker
from libs.client.errors import Invalid, NeedsOperator, Unreachable
from schemas.subjects import FINANCE, OPERATOR, token

CLIENT_FILE = "client.json"
STATE_DIR = ".baton"
NO_BATON = "no running Baton is known"
"""What is told when there is neither an address nor an instance."""
SERVICES_USER = "services"
_OPERATE = (OPERATOR, SERVICES_USER, "provision")
"""Whose credentials may do what operators do: all of it, or making streams."""


@dataclass(frozen=True, slots=True)
class Place:
    """An address, and who speaks there: a team (`operator` sees every team) and its user. `pool` is asked when none is
    named."""

    address: Address = field(repr=False)
    team: str
    pool: str = "main"
    user: str = "default"


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`BATON_STATE_DIR`, else `.baton` in the working directory."""
    return Path((os.environ if environ is None else environ).get("BATON_STATE_DIR") or STATE_DIR)


def find(
    address: Address | str | None = None,
    team: str | None = None,
    *,
    user: str | None = None,
    pool: str | None = None,
    operator: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Place:
    """Where to connect, and as whom.

    Args:
        address: overrides the running instance, its URL BATON_NATS_URL and its credential BATON_NATS_CREDS.
        team: overrides BATON_TEAM; without either, the team of the credential, or the instance's only team.
        user: overrides BATON_USER; without either, the user of the credential, or of this machine's session.
        pool: overrides BATON_POOL; without either, the instance's first pool, or "main".
        operator: when no team is named, speak as the operator instead of asking which team.

    Raises:
        Unreachable: no address is known.
        Invalid: the team is not known or ambiguous, a name is not fit for a subject, or the URL is none of a server.
        NeedsOperator: the team is "operator", and the credential is another's.
    """
    env = os.environ if environ is None else environ
    team, user, pool = (
        _checked(what, given or env.get(variable) or None)
        for what, given, variable in (
            ("team", team, "BATON_TEAM"), ("user", user, "BATON_USER"), ("pool", pool, "BATON_POOL"),
        )
    )  # fmt: skip
    given = at(address) if address is not None else Address("")
    creds = given.creds or shown_credential(env)
    instance: dict[str, Any] = {}
    if url := given.url or env.get("BATON_NATS_URL", ""):
        _check_form(url)
    else:
        instance = read_instance(state_dir(env))
        url, pool = str(instance.get("url")), pool or instance.get("pool")
    pool = pool or "main"
    if creds is not None or not instance:
        owner, _, person = _speaks(url, creds).partition(".")
        team = _asks_as(owner, team, operator)
        if team == OPERATOR:
            check_operator(creds)
        return Place(
            _reached(url, creds, env), team, pool, user or _checked("user", person or None) or session_user(env)
        )
    folder = Path(str(instance.get("creds")))
    name = team or _only_team(folder, operator)
    asking = user or session_user(env)
    for who in (f"{name}.{asking}", name):
        if (path := folder / f"{who}.creds").is_file():
            return Place(_reached(url, path, env), name, pool, asking)
    raise Invalid(
        f"the instance in {state_dir(env)} has no team {name!r}",
        f"there are credentials for: {', '.join((*teams_in(folder), OPERATOR))}",
        "name one of them, or add it with `baton team add`",
    )


def check_operator(creds: Path | str | None) -> None:
    """Raises NeedsOperator for a credential that is another's. Whoever has none, or a password, the broker itself refuses."""
    if creds is not None and (who := _speaks("", creds)) not in _OPERATE:
        raise NeedsOperator(f"{'the credential' if isinstance(creds, str) else creds} is that of {who}")


def shown_credential(environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that BATON_NATS_CREDS names."""
    return _path((os.environ if environ is None else environ).get("BATON_NATS_CREDS"))


def _check_form(url: str) -> None:
    try:
        wire.check_form(url)
    except wire.BadAddress as e:
        why, _, fix = str(e).rpartition(": ")
        raise Invalid("the address of NATS is not valid", why, fix) from None


def _reached(url: str, creds: Path | str | None, env: Mapping[str, str]) -> Address:
    insecure = env.get("BATON_INSECURE", "") in ("1", "true")
    return Address(url, creds, ca=_path(env.get("BATON_NATS_CA")), plain=insecure)


def teams_in(folder: Path) -> list[str]:
    """The teams whose whole credential lies in `folder`."""
    names = (path.stem for path in folder.glob("*.creds"))
    return sorted(name for name in names if name != OPERATOR and "." not in name)


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
            NO_BATON,
            f"BATON_NATS_URL is not set and there is no {path}",
            "start one with `baton up`, or set BATON_STATE_DIR to where it runs, or BATON_NATS_URL (and BATON_TEAM)",
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


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _speaks(url: str, creds: Path | str | None) -> str:
    """Who speaks: it stands in the credential, or else in the URL."""
    try:
        return urlsplit(url).username or "" if creds is None else speaker(creds)
    except BadCredential as e:
        why, _, fix = str(e).rpartition(": ")
        raise Invalid("the credential is not valid", why, fix) from None


def _asks_as(owner: str, team: str | None, operator: bool) -> str:
    """Who reads bills asks as that alone, also where a command would ask as the operator."""
    return FINANCE if owner == FINANCE else team or _team_in(owner, operator)


def _team_in(owner: str, operator: bool) -> str:
    """The team of who speaks."""
    if owner == SERVICES_USER or (not owner and operator):
        return OPERATOR
    if not owner:
        raise Invalid(
            "no team is named", "there is no credential that says it", "set BATON_NATS_CREDS, BATON_TEAM, or use --team"
        )
    team = _checked("team", owner)
    assert team is not None
    return team


def _only_team(folder: Path, operator: bool) -> str:
    teams = teams_in(folder)
    if len(teams) == 1:
        return teams[0]
    if operator:
        return OPERATOR
    raise Invalid("no team is named", f"this instance serves {', '.join(teams)}", "set BATON_TEAM, or use --team")
