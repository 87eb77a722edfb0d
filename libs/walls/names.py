"""Allowed names of teams, pools, nodes and users: valid in subjects, and such that no two teams are confused."""

from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter, ValidationError

from libs.walls import accounts
from schemas.base import Name, NodeName
from schemas.ids import team_uid
from schemas.subjects import token

_NAMES: dict[str, TypeAdapter[str]] = {
    "team": TypeAdapter(Name), "pool": TypeAdapter(Name), "node": TypeAdapter(NodeName)
}  # fmt: skip


def checked(what: str, name: str) -> str:
    """`name`, if messages may name a team, pool or node so: a credential for another could say nothing that is taken. Raises
    ValueError with the fix."""
    try:
        return _NAMES[what].validate_python(token(name))
    except ValidationError:
        letters = "letters, digits, '-' and '_'" if what == "node" else "lower-case letters, digits and '-'"
        raise ValueError(
            f"{name!r} is not a {what}'s name: use {letters}, with a letter or a digit first and last"
        ) from None


def check_teams(teams: Sequence[str]) -> None:
    """Raises ValueError when a team's name is taken, stands twice, or is none that messages may have."""
    for team in teams:
        if checked("team", team) in accounts.RESERVED:
            raise ValueError(f"a team cannot be called {team!r}: that name is Baton's own; choose another")
    if twice := {team for team in teams if list(teams).count(team) > 1}:
        raise ValueError(f"teams named twice: {', '.join(sorted(twice))}")


def check_numbers(teams: Iterable[str]) -> None:
    """Raises ValueError when the processes of two teams would have one user id on nodes: then they could read each other's
    files, and a node that has served one refuses the other."""
    by_number: dict[int, str] = {}
    for team in dict.fromkeys(teams):
        if (other := by_number.setdefault(number := team_uid(team), team)) != team:
            raise ValueError(
                f"team {team!r} would have the user id of team {other!r} on nodes, {number}: give one of them another name"
            )


def check_users(users: Sequence[str], teams: Sequence[str]) -> None:
    """Raises ValueError for a user that is not `<team>.<user>` of one of `teams`."""
    for name in users:
        team, dot, user = name.partition(".")
        if not dot or team not in teams:
            raise ValueError(f"{name!r} is no user of a team: write <team>.<user>, the team one of {', '.join(teams)}")
        token(user)
