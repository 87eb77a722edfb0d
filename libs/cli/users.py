"""The NATS users of an instance: services, the operator, agents, and one for each team, user and node, each with exactly
its own subjects.

Passwords are random and kept in `<state dir>/credentials.json` (mode 0600), so that a URL which somebody saved works
after a restart too.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from libs.embedded import NatsUser
from libs.embedded.records import write_private
from schemas.subjects import OPERATOR, node_may, operator_may, token, user_may

SERVICES = "services"
_FILE = "credentials.json"


def check_teams(teams: Sequence[str]) -> None:
    """Raises ValueError when a team's name is taken, stands twice, or cannot be a subject token."""
    for team in teams:
        if token(team) in (SERVICES, OPERATOR):
            raise ValueError(f"a team cannot be called {team!r}: that name is Baton's own; choose another")
    if twice := {team for team in teams if list(teams).count(team) > 1}:
        raise ValueError(f"teams named twice: {', '.join(sorted(twice))}")


def check_users(users: Sequence[str], teams: Sequence[str]) -> None:
    """Raises ValueError for a user that is not `<team>.<user>` of one of `teams`."""
    for name in users:
        team, dot, user = name.partition(".")
        if not dot or team not in teams:
            raise ValueError(f"{name!r} is no user of a team: write <team>.<user>, the team one of {', '.join(teams)}")
        token(user)


def user_name(team: str, user: str) -> str:
    """What a user's credential is called at the broker."""
    return f"{token(team)}.{token(user)}"


def node_name(pool: str, node: str = "*") -> str:
    """What a node's credential is called at the broker; `*`: that of the agents that stand for every node of a pool."""
    return f"agents~{token(pool)}" if node == "*" else f"node~{token(pool)}~{token(node)}"


def nats_users(
    state_dir: Path,
    teams: Sequence[str],
    users: Sequence[str] = (),
    pools: Sequence[str] = (),
    nodes: Sequence[tuple[str, str]] = (),
) -> list[NatsUser]:
    """The users of an instance, services first.

    Args:
        teams: each gets a credential of the whole team, whose holder says which user asks.
        users: each, as `<team>.<user>`, gets one that speaks for itself only.
        pools: each gets one for agents that stand for every node of the pool.
        nodes: each (pool, node) gets one that speaks for itself only.

    Raises as `check_teams` and `check_users`.
    """
    check_teams(teams)
    check_users(users, teams)
    may = {
        **{team: user_may(team) for team in teams},
        **{name: user_may(*name.split(".")) for name in users},
        **{node_name(pool): node_may(pool) for pool in pools},
        **{node_name(*node): node_may(*node) for node in nodes},
    }
    passwords = _passwords(state_dir, [SERVICES, OPERATOR, *may])
    agents = {node_name(pool) for pool in pools} | {node_name(*node) for node in nodes}
    return [
        NatsUser(SERVICES, passwords[SERVICES]),
        NatsUser(OPERATOR, passwords[OPERATOR], publish=operator_may()),
        *(
            NatsUser(name, passwords[name], publish=publish, subscribe=subscribe, responds=name in agents)
            for name, (publish, subscribe) in may.items()
        ),
    ]


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
