"""The NATS users of an instance: services, the operator, and one for each team with exactly its own subjects.

Passwords are random and kept in `<state dir>/credentials.json` (mode 0600), so that a URL which somebody saved works
after a restart too.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from libs.embedded import NatsUser
from libs.embedded.records import write_private
from schemas.subjects import OPERATOR, team_may, token

SERVICES = "services"
_FILE = "credentials.json"

OPERATOR_MAY = [
    "baton.cmd.>",
    "baton.qry.>",
    "baton.in.>",
    "$JS.API.>",
    "$JS.ACK.>",
    "$JS.FC.>",
    f"_INBOX_{OPERATOR}.>",
]
"""What an operator may publish: commands for any team, questions, dead letters again, the administration of streams.
Never the ledger: only placement writes it."""


def check_teams(teams: Sequence[str]) -> None:
    """Raises ValueError when a team's name is taken, stands twice, or cannot be a subject token."""
    for team in teams:
        if token(team) in (SERVICES, OPERATOR):
            raise ValueError(f"a team cannot be called {team!r}: that name is Baton's own; choose another")
    if twice := {team for team in teams if list(teams).count(team) > 1}:
        raise ValueError(f"teams named twice: {', '.join(sorted(twice))}")


def nats_users(state_dir: Path, teams: Sequence[str]) -> list[NatsUser]:
    """The users of an instance that serves `teams`, services first. Raises as `check_teams`."""
    check_teams(teams)
    passwords = _passwords(state_dir, [SERVICES, OPERATOR, *teams])
    users = [
        NatsUser(SERVICES, passwords[SERVICES]),
        NatsUser(OPERATOR, passwords[OPERATOR], publish=OPERATOR_MAY),
    ]
    for team in teams:
        publish, subscribe = team_may(team)
        users.append(NatsUser(team, passwords[team], publish=publish, subscribe=subscribe))
    return users


def _passwords(state_dir: Path, names: Sequence[str]) -> Mapping[str, str]:
    path = state_dir / _FILE
    try:
        known = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        known = {}
    all_of_them = {**known, **{name: known.get(name) or secrets.token_hex(16) for name in names}}
    if all_of_them != known:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(all_of_them))
    return all_of_them
