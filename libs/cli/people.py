"""Resolves pseudonyms for those who may know: the holder of the keys, an admin of the team, and each user for itself.

Asked only when a pseudonym is to be shown. Everyone else sees the pseudonym, and so does everyone after it was erased.
"""

from collections.abc import Iterable

from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import ClientError
from libs.client.where import state_dir
from libs.walls.keyring import Keyring
from libs.walls.people import People, is_pseudonym
from schemas.subjects import OPERATOR
from schemas.team_management import ManageTeam, TeamManaged

Names = dict[tuple[str, str], str]
"""(team, user) -> displayed text, if it differs from the user."""

_ASK_S = 3.0


async def names_of(baton: Baton, users: Iterable[tuple[str, str]]) -> Names:
    """Displayed texts for these (team, user), as `name (pseudonym)`."""
    wanted = {(team, user) for team, user in users if is_pseudonym(user)}
    if not wanted:
        return {}
    place = baton.place
    found: Names = {(place.team, place.user): "you"}
    ring = Keyring(state_dir())
    if ring.exists:
        for team in {team for team, _ in wanted}:
            found |= {(team, user): name for user, name in People(ring.folder).of(team).items()}
    elif place.team != OPERATOR:
        found |= await _by_admin(baton)
    return {one: f"{found[one]} ({one[1]})" for one in wanted if one in found}


async def _by_admin(baton: Baton) -> Names:
    """The users of the team that we administer; else none."""
    try:
        reply: TeamManaged = await ask(
            baton.nats, "team.manage", baton.place, ManageTeam(what="list"), timeout_s=_ASK_S
        )
    except ClientError:
        return {}
    return {(reply.team, user.name.partition(".")[2]): user.person for user in reply.users if user.person}


def shown(names: Names, team: str, user: str) -> str:
    """The displayed text of a user."""
    return names.get((team, user), user)
