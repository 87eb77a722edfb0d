"""How a team's part of the pool is shared between its users now, as people ask it."""

from collections.abc import Mapping

from libs.core.accelerators.kinds import GRAINS, grains
from libs.core.scheduling.order import UserAmounts, kinds_asked
from libs.core.scheduling.queues import Claimant, divide
from libs.core.state.model import State
from libs.core.state.past_use import user_of
from schemas.queue_status import UserShare
from schemas.resources import ANY_ACCELERATOR

MOST = 64
"""Users that are told of one team."""


def user_shares(state: State, team: str, share_milli: int = 0) -> list[UserShare]:
    """The users of a team of whom jobs run or wait, who is next the first; none where they do not share, or none is known.

    `share_milli`: what the team should have now, in thousandths of accelerators; each user's share is its even part of that.
    """
    amounts = UserAmounts(state)
    if not state.tree.by_user(team) or not amounts.known(team):
        return []
    jobs: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for key, line in [*state.queues.items(), *state.parked.items()]:
        if key.team == team:
            kind = next(iter(kinds_asked(key.shape)), ANY_ACCELERATOR)
            each = grains(ANY_ACCELERATOR, {kind: key.shape.milli * key.shape.devices})
            jobs[key.user] = jobs.get(key.user, 0) + len(line)
            waiting[key.user] = waiting.get(key.user, 0) + len(line) * each
    held = {
        name.partition("/")[2]: kinds for name, kinds in state.used_by.items() if name.startswith(user_of(team, ""))
    }
    users = sorted({*held, *jobs}, key=lambda user: (amounts.amount(team, user), user))
    wants = {user: _accelerators(held.get(user, {})) + waiting.get(user, 0) for user in users}
    fair = divide(share_milli * GRAINS, [Claimant(user, wants[user]) for user in users], whole=1000 * GRAINS)
    return [
        UserShare(
            user=user,
            place=number,
            held_milli=-(-_accelerators(held.get(user, {})) // GRAINS),
            recent_milli=_accelerators(_lately(state, team, user)) // GRAINS,
            share_milli=fair[user] // GRAINS,
            waiting_jobs=jobs.get(user, 0),
        )
        for number, user in enumerate(users, 1)
    ]


def _lately(state: State, team: str, user: str) -> Mapping[str, int]:
    name = user_of(team, user)
    return state.past_use_by.average_of(name, state.used_by.get(name, {}), state.t_us)


def _accelerators(held: Mapping[str, int]) -> int:
    return grains(ANY_ACCELERATOR, held)
