"""What the users of a team hold, and held lately, each as a part of the pool (Dominant Resource Fairness between users)."""

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

from libs.core.scheduling.queues import largest_part
from libs.core.state.job import QueueKey
from libs.core.state.model import State
from libs.core.state.past_use import user_of


class UserAmounts:
    """What the users of teams hold. Of those that wait or are asked for; nothing is worked out before."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._more: dict[tuple[str, str], dict[str, int]] = {}
        """What they got since; what is kept for their jobs at first."""
        for job_id in state.holds:
            if (job := state.jobs.get(job_id)) is not None:
                self._add(job.team, job.user, state.kept(job_id))
        self._amounts: dict[tuple[str, str], Fraction] = {}
        self._lately: dict[tuple[str, str], Fraction] = {}
        self._least: dict[tuple[str, int], Fraction] = {}

    @cached_property
    def _waiting(self) -> dict[tuple[str, int], set[str]]:
        """(Team, priority) -> users of which jobs wait."""
        found: dict[tuple[str, int], set[str]] = {}
        for key in self._state.queues:
            found.setdefault((key.team, key.priority), set()).add(key.user)
        return found

    @cached_property
    def _named(self) -> frozenset[str]:
        holding = {name.partition("/")[0] for name in self._state.used_by if not name.endswith("/")}
        return frozenset(holding | {key.team for key in self._state.queues if key.user})

    @cached_property
    def _capacity(self) -> dict[str, int]:
        return self._state.fleet.capacity()

    def known(self, team: str) -> bool:
        """Whether it is known of any job of the team whose it is."""
        return team in self._named

    def amount(self, team: str, user: str) -> Fraction:
        """See `UserLevel`."""
        found = self._amounts.get((team, user))
        if found is None:
            held = dict(self._state.used_by.get(user_of(team, user), {}))
            for kind, milli in self._more.get((team, user), {}).items():
                held[kind] = held.get(kind, 0) + milli
            found = self._amounts[team, user] = largest_part(held, self._capacity) + self._before(team, user)
        return found

    def is_last(self, key: QueueKey) -> bool:
        """Whether no user of whom jobs wait in its team and class holds less."""
        at = key.team, key.priority
        if at not in self._least:
            self._least[at] = min(self.amount(key.team, user) for user in {key.user, *self._waiting.get(at, ())})
        return self.amount(key.team, key.user) <= self._least[at]

    def got(self, team: str, user: str, kinds: Mapping[str, int]) -> None:
        self._add(team, user, kinds)
        self._amounts.pop((team, user), None)
        self._least.clear()

    def _add(self, team: str, user: str, kinds: Mapping[str, int]) -> None:
        more = self._more.setdefault((team, user), {})
        for kind, milli in kinds.items():
            more[kind] = more.get(kind, 0) + milli

    def _before(self, team: str, user: str) -> Fraction:
        """The part that the user held lately: that does not change while a plan is made."""
        found = self._lately.get((team, user))
        if found is None:
            name, state = user_of(team, user), self._state
            lately = state.past_use_by.average_of(name, state.used_by.get(name, {}), state.t_us)
            found = self._lately[team, user] = largest_part(lately, self._capacity)
        return found
