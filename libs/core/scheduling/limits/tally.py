"""What each team holds while a plan is made, and so what its limits leave. Nothing is written to the state."""

from collections.abc import Collection, Iterable, Sequence
from types import MappingProxyType

from libs.core.accelerators.kinds import named_only
from libs.core.scheduling.limits.purse import BudgetShort, Purse, purses_of
from libs.core.scheduling.limits.rule import LimitsUse, Reached, Room, exceeded, room_within
from libs.core.state.limits import Usage
from libs.core.state.model import Job, Shape, State
from schemas.resources import Claim


class Tally:
    """Begins with what each team holds, and what is kept for its jobs, in `state`."""

    def __init__(self, state: State, t_us: int | None = None) -> None:
        """`t_us`: when; the state's own time without it."""
        self._state = state
        self._t_us = state.t_us if t_us is None else t_us
        self._spent: dict[str, int] = {}
        """Budget -> what is held of it for those that were granted meanwhile."""
        self._used: dict[str, dict[str, int]] = {}
        self._models: tuple[str, ...] | None = None

    def room(self, job: Job, shape: Shape | None = None) -> Room:
        """How much of `shape` (its own without one) `job` may have; what is kept for the job is its own."""
        shape = shape or job.shape
        if not self.limited(job.team):
            return Room(shape)
        kept = self._state.kept(job.id)
        bounds, purses = self._bounds(job.team, kept), self._purses(job)
        return room_within(bounds, shape, self._accelerators(), kept, purses)

    def _purses(self, job: Job) -> list[Purse]:
        return purses_of(self._state, job, self._t_us, self._spent)

    def exceeded(self, job: Job, devices: Sequence[int]) -> Reached | BudgetShort | None:
        """The limit that `job` on these devices (rows of the fleet) would lift its team above, or the budget that does not
        cover them; None when none."""
        if not self.limited(job.team):
            return None
        over = exceeded(self._bounds(job.team), self._usage(job, devices))
        return over or self.uncovered(job, devices)

    def uncovered(self, job: Job, devices: Sequence[int]) -> BudgetShort | None:
        """The budget that does not cover the hold of `job` on these devices (rows of the fleet); None when all do."""
        held = self._held(devices, job) if self._state.budgets else []
        return next((short for purse in self._purses(job) if (short := purse.uncovered(held)) is not None), None)

    def limited(self, team: str) -> bool:
        """Whether the team, or a queue that it is in, has a limit or a budget."""
        state = self._state
        return team in state.quotas or bool(state.tree.bounds(team)) or bool(state.budgets.covering(team))

    def _bounds(self, team: str, less: Usage = MappingProxyType({})) -> list[LimitsUse]:
        """All limits that hold for `team`, with what counts against each; `less`: without that of it."""
        state, found = self._state, []
        if (own := state.quotas.get(team)) is not None:
            found.append(LimitsUse(own, self._sum((team,), less)))
        found += [
            LimitsUse(limits, self._sum(state.tree.below(queue), less), queue)
            for queue, limits in state.tree.bounds(team)
        ]
        return found

    def _sum(self, teams: Collection[str], less: Usage) -> Usage:
        if len(teams) == 1 and not less:
            return self.used(next(iter(teams)))
        total = {kind: -milli for kind, milli in less.items()}
        for team in teams:
            for kind, milli in self.used(team).items():
                total[kind] = total.get(kind, 0) + milli
        return total

    def take(self, job: Job, devices: Sequence[int]) -> None:
        """`job` gets these devices (rows of the fleet); devices that were held for it count no longer."""
        if not self.limited(job.team):
            return
        for purse in self._purses(job):
            self._spent[purse.key] = self._spent.get(purse.key, 0) + purse.cost(self._held(devices, job))
        used = self.used(job.team)
        for kind, milli in self._state.kept(job.id).items():
            used[kind] -= milli
        for kind, milli in self._usage(job, devices).items():
            used[kind] = used.get(kind, 0) + milli

    def give_back(self, team: str, claims: Iterable[Claim]) -> None:
        """A job of `team` gives these back."""
        if not self.limited(team):
            return
        used, fleet = self.used(team), self._state.fleet
        for claim in claims:
            used[fleet.kind(fleet.row(claim.device))] -= claim.milli

    def used(self, team: str) -> dict[str, int]:
        """What counts against the limits of a team that has some: kind -> thousandths of devices. Not to be changed."""
        known = self._used.get(team)
        if known is None:
            known = self._used[team] = self._state.committed(team)
        return known

    def copy(self) -> "Tally":
        """An independent copy."""
        other = Tally(self._state, self._t_us)
        other._spent = dict(self._spent)
        other._used = {team: dict(used) for team, used in self._used.items()}
        return other

    def _usage(self, job: Job, devices: Sequence[int]) -> dict[str, int]:
        return {kind: count * job.shape.milli for kind, count in self._state.fleet.kinds(devices).items()}

    def _held(self, devices: Sequence[int], job: Job) -> list[tuple[str, int]]:
        kind = self._state.fleet.kind
        return [(kind(row), job.shape.milli) for row in devices]

    def _accelerators(self) -> tuple[str, ...]:
        if self._models is None:
            self._models = tuple(name for name in self._state.fleet.models.names if not named_only(name))
        return self._models
