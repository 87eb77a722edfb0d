"""What each team holds while a plan is made, and so what its limits leave. Nothing is written to the state.

What is kept for a job whose victims have not gone yet counts once (`rule.KeptUse`), for those who plan and for the ledger's
writer alike: so a queue at its limit can have one of its jobs give way to another.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from libs.core.accelerators.kinds import named_only
from libs.core.scheduling.limits.budget_headroom import BudgetHeadroom, BudgetShort, headrooms_of
from libs.core.scheduling.limits.rule import KeptUse, LimitsUse, Reached, Room, exceeded, room_within
from libs.core.state.job import Job
from libs.core.state.limits import Limits, Usage
from libs.core.state.model import State, running
from libs.core.state.shape import Shape
from schemas.resources import Claim


class _KeptFor(NamedTuple):
    """What is kept for a job of `team`, kind -> thousandths."""

    team: str
    kinds: Usage
    leaving: dict[tuple[str, int], tuple[str, str, int]]
    """Of those that give way for it: device and epoch of each claim -> team, kind, thousandths."""

    def use(self, teams: Collection[str]) -> KeptUse:
        """As it counts against a limit of `teams`."""
        total: dict[str, int] = {}
        for team, kind, milli in self.leaving.values():
            if team in teams:
                total[kind] = total.get(kind, 0) + milli
        return KeptUse(self.kinds, total)


class Tally:
    """Begins with what each team holds, and what is kept for its jobs, in `state`."""

    def __init__(self, state: State, t_us: int | None = None) -> None:
        """`t_us`: when; the state's own time without it."""
        self._state = state
        self._t_us = state.t_us if t_us is None else t_us
        self._spent: dict[str, int] = {}
        """Budget -> what is held of it for those that were granted meanwhile."""
        self._used: dict[str, dict[str, int]] = {}
        self._kept: dict[str, _KeptFor] | None = None
        self._models: tuple[str, ...] | None = None

    def room(self, job: Job, shape: Shape | None = None, victims: Collection[Job] = ()) -> Room:
        """How much of `shape` (its own without one) `job` may have; what is kept for the job is its own, once those that give
        way for it are gone. `victims`: as if these running jobs gave way for it."""
        shape = shape or job.shape
        if not self.limited(job.team):
            return Room(shape)
        bounds, headrooms = self._bounds(job.team, job.id, victims), self._headrooms(job)
        kept = self._holds().get(job.id)
        own = kept.kinds if kept is not None and not self._leaves(job) else {}
        return room_within(bounds, shape, self._accelerators(), own, headrooms)

    def _headrooms(self, job: Job) -> list[BudgetHeadroom]:
        return headrooms_of(self._state, job, self._t_us, self._spent)

    def exceeded(self, job: Job, devices: Sequence[int], victims: Collection[Job] = ()) -> Reached | BudgetShort | None:
        """The limit that `job` on these devices (rows of the fleet) would lift its team above once `victims` are gone, or the
        budget that does not cover them; None when none."""
        if not self.limited(job.team):
            return None
        over = exceeded(self._bounds(job.team, victims=victims), self._usage(job, devices))
        return over or self.uncovered(job, devices)

    def uncovered(self, job: Job, devices: Sequence[int]) -> BudgetShort | None:
        """The budget that does not cover the hold of `job` on these devices (rows of the fleet); None when all do."""
        held = self._held(devices, job) if self._state.budgets else []
        return next(
            (short for headroom in self._headrooms(job) if (short := headroom.uncovered(held)) is not None), None
        )

    def limited(self, team: str) -> bool:
        """Whether the team, or a queue that it is in, has a limit or a budget."""
        state = self._state
        return team in state.quotas or bool(state.tree.bounds(team)) or bool(state.budgets.covering(team))

    def _bounds(self, team: str, but_for: str = "", victims: Collection[Job] = ()) -> list[LimitsUse]:
        """All limits that hold for `team`, with what counts against each; without what is kept for the job `but_for`, and
        without what `victims` hold."""
        state, found = self._state, []
        if (own := state.quotas.get(team)) is not None:
            found.append(self._against(own, frozenset((team,)), "", but_for, victims))
        found += [
            self._against(limits, state.tree.below(queue), queue, but_for, victims)
            for queue, limits in state.tree.bounds(team)
        ]
        return found

    def _against(
        self, limits: Limits, teams: Collection[str], queue: str, but_for: str, victims: Collection[Job]
    ) -> LimitsUse:
        kept = [held.use(teams) for job, held in self._holds().items() if held.team in teams and job != but_for]
        return LimitsUse(limits, self._sum(teams, victims), queue, kept)

    def _sum(self, teams: Collection[str], less: Collection[Job]) -> Usage:
        if len(teams) == 1 and not less:
            return self.used(next(iter(teams)))
        total: dict[str, int] = {}
        for team in teams:
            for kind, milli in self.used(team).items():
                total[kind] = total.get(kind, 0) + milli
        for victim in less:
            for _, _, kind, milli in self._claims(victim) if victim.team in teams else ():
                total[kind] = total.get(kind, 0) - milli
        return total

    def take(self, job: Job, devices: Sequence[int]) -> None:
        """`job` gets these devices (rows of the fleet); devices that were held for it count no longer."""
        if not self.limited(job.team):
            return
        self._spends(job, devices)
        used = self.used(job.team)
        self._holds().pop(job.id, None)
        for kind, milli in self._usage(job, devices).items():
            used[kind] = used.get(kind, 0) + milli

    def keep(self, job: Job, devices: Sequence[int], victims: Iterable[Job]) -> None:
        """These devices will be held for `job`, to which `victims` give way."""
        if not self.limited(job.team):
            return
        self._spends(job, devices)
        kept = self._holds()[job.id] = _KeptFor(job.team, self._usage(job, devices), {})
        for victim in victims:
            kept.leaving.update(self._leaving(victim))

    def _spends(self, job: Job, devices: Sequence[int]) -> None:
        for headroom in self._headrooms(job):
            self._spent[headroom.key] = self._spent.get(headroom.key, 0) + headroom.cost(self._held(devices, job))

    def give_back(self, team: str, claims: Iterable[Claim]) -> None:
        """A job of `team` gives these back."""
        if not self.limited(team):
            return
        used, fleet = self.used(team), self._state.fleet
        for claim in claims:
            used[fleet.kind(fleet.row(claim.device))] -= claim.milli
            for kept in self._holds().values():
                kept.leaving.pop((claim.device, claim.epoch), None)

    def used(self, team: str) -> dict[str, int]:
        """What attempts of a team that has limits hold: kind -> thousandths of devices. Not to be changed."""
        known = self._used.get(team)
        if known is None:
            known = self._used[team] = dict(self._state.used.get(team, ()))
        return known

    def _holds(self) -> dict[str, _KeptFor]:
        """What is kept, by whom for."""
        if self._kept is None:
            state = self._state
            self._kept = {
                job: _KeptFor(state.jobs[job].team, state.kept(job), {}) for job in state.holds if job in state.jobs
            }
            for victim in running(state) if self._kept else ():
                kept = self._kept.get(victim.current.beneficiary) if victim.current is not None else None
                if kept is not None:
                    kept.leaving.update(self._leaving(victim))
        return self._kept

    def _leaves(self, job: Job) -> bool:
        """Whether somebody under a limit of the job's has still to go for what is kept for it."""
        kept, together = self._holds().get(job.id), self._state.tree.bounded_with(job.team)
        return kept is not None and any(team in together for team, _, _ in kept.leaving.values())

    def _leaving(self, victim: Job) -> Iterator[tuple[tuple[str, int], tuple[str, str, int]]]:
        for device, epoch, kind, milli in self._claims(victim):
            yield (device, epoch), (victim.team, kind, milli)

    def _claims(self, job: Job) -> Iterator[tuple[str, int, str, int]]:
        """What its attempt holds still: device, epoch, kind, thousandths."""
        fleet = self._state.fleet
        for part in job.current.parts.values() if job.current is not None else ():
            for claim in () if part.freed else part.claims:
                yield claim.device, claim.epoch, fleet.kind(fleet.row(claim.device)), claim.milli

    def copy(self) -> "Tally":
        """An independent copy."""
        other = Tally(self._state, self._t_us)
        other._spent = dict(self._spent)
        other._used = {team: dict(used) for team, used in self._used.items()}
        if self._kept is not None:
            other._kept = {job: kept._replace(leaving=dict(kept.leaving)) for job, kept in self._kept.items()}
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
