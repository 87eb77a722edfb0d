"""What each team holds while a plan is made, and so what its limits leave. Nothing is written to the state."""

from collections.abc import Iterable, Sequence

from libs.core.accelerators.kinds import named_only
from libs.core.scheduling.limits.rule import Reached, Room, exceeded, room
from libs.core.state.model import Job, Shape, State
from schemas.resources import Claim


class Tally:
    """Begins with what each team holds, and what is kept for its jobs, in `state`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._used: dict[str, dict[str, int]] = {}
        self._models: tuple[str, ...] | None = None

    def room(self, job: Job, shape: Shape | None = None) -> Room:
        """How much of `shape` (its own without one) `job` may have; what is kept for the job is its own."""
        state, shape = self._state, shape or job.shape
        limits = state.quotas.get(job.team)
        if limits is None:
            return Room(shape)
        kept = state.kept(job.id)
        used = self.used(job.team)
        if kept:
            used = {kind: milli - kept.get(kind, 0) for kind, milli in used.items()}
        return room(limits, used, shape, self._accelerators(), kept)

    def exceeded(self, job: Job, devices: Sequence[int]) -> Reached | None:
        """The limit that `job` on these devices (rows of the fleet) would lift its team above; None when none."""
        limits = self._state.quotas.get(job.team)
        return None if limits is None else exceeded(limits, self.used(job.team), self._usage(job, devices))

    def take(self, job: Job, devices: Sequence[int]) -> None:
        """`job` gets these devices (rows of the fleet); devices that were held for it count no longer."""
        if job.team not in self._state.quotas:
            return
        used = self.used(job.team)
        for kind, milli in self._state.kept(job.id).items():
            used[kind] -= milli
        for kind, milli in self._usage(job, devices).items():
            used[kind] = used.get(kind, 0) + milli

    def give_back(self, team: str, claims: Iterable[Claim]) -> None:
        """A job of `team` gives these back."""
        if team not in self._state.quotas:
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
        other = Tally(self._state)
        other._used = {team: dict(used) for team, used in self._used.items()}
        return other

    def _usage(self, job: Job, devices: Sequence[int]) -> dict[str, int]:
        return {kind: count * job.shape.milli for kind, count in self._state.fleet.kinds(devices).items()}

    def _accelerators(self) -> tuple[str, ...]:
        if self._models is None:
            self._models = tuple(name for name in self._state.fleet.models.names if not named_only(name))
        return self._models
