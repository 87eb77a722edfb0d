"""What earlier choices and pending plans count on, while the plans of one moment are chosen: nobody else may."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from libs.core.placement.search.gang import shrink
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import kinds_asked
from libs.core.scheduling.preemption.index import Candidates, Holdings
from libs.core.scheduling.queues import Reclaim
from libs.core.scheduling.reservation import Closed, Reservations
from libs.core.state.fleet import Bools
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.inbox import PreemptionPlanned

EVERYBODY = ""
"""In the place of a team."""


@dataclass(slots=True)
class AlreadyPlanned:
    """What earlier choices and pending plans count on. `devices`: mask of shape (D,); `tally`: what their teams then hold."""

    beneficiaries: dict[str, list[int]]
    """Of pending plans, with their devices (rows)."""
    victims: set[str]
    devices: Bools
    tally: Tally
    reclaim: Reclaim | None
    """None in a pool without queues."""
    _lower: dict[int, Candidates] = field(default_factory=dict)
    """Priority -> those of lower classes who do not give way yet."""
    _askable: dict[tuple[int, str], Candidates] = field(default_factory=dict)
    """Priority and team -> those whom such a job may ask at all."""
    victims_for: dict[str, int] = field(default_factory=dict)
    """Team -> how many give way for its jobs."""
    reservations: Reservations | None = None
    """What gangs keep beside `devices`."""
    full: set[str] = field(default_factory=set)
    """Teams for a job of which too many gave way lately, or `EVERYBODY`: nobody gives way to their jobs that stand behind it,
    which would keep it so."""

    def full_for(self, team: str) -> bool:
        """Whether nobody gives way to a job of `team` any more."""
        return not self.full.isdisjoint((team, EVERYBODY))

    @classmethod
    def by(cls, state: State, pending: Collection[PreemptionPlanned]) -> "AlreadyPlanned":
        planned = cls(
            {},
            set(),
            np.zeros(len(state.fleet.up), dtype=np.bool_),
            Tally(state),
            Reclaim(state) if len(state.tree) else None,
        )
        for plan in pending:
            rows = [row for row in map(state.fleet.devices.find, plan.devices) if row >= 0]
            planned.beneficiaries[plan.beneficiary] = rows
            planned.devices[rows] = True
            victims = [state.jobs[victim] for victim in plan.victims if victim in state.jobs]
            job = state.jobs.get(plan.beneficiary)
            planned.gone(victims, "" if job is None else job.team)
            if job is not None:
                planned.takes(state, job, rows, victims)
        return planned

    def closed_to(self, job: Job) -> Closed:
        """What a job may not count on."""
        return Closed(self.devices) if self.reservations is None else self.reservations.closed_to(job)

    def takes(self, state: State, job: Job, rows: list[int], victims: Collection[Job]) -> None:
        """`job` gets these devices, those of `victims` when they have gone."""
        self.devices[rows] = True
        if victims:
            self.tally.keep(job, rows, victims)
        else:
            self.tally.take(job, rows)
        if self.reclaim is not None:
            self.reclaim.got(job.team, {kind: n * job.shape.milli for kind, n in state.fleet.kinds(rows).items()})

    def gone(self, victims: Collection[Job], team: str) -> None:
        """These give way for a job of `team`."""
        self.victims_for[team] = self.victims_for.get(team, 0) + len(victims)
        self._lower.clear()
        self._askable.clear()
        for victim in victims:
            self.victims.add(victim.id)
            if self.reclaim is not None:
                self.reclaim.gave(victim)

    def lower(self, holdings: Holdings, priority: int) -> Candidates:
        """Who of lower classes may give way, and does not yet: the same for all beneficiaries of a class."""
        found = self._lower.get(priority)
        if found is None:
            found = self._lower[priority] = self.of(holdings, holdings.lower(priority))
        return found

    def askable(self, holdings: Holdings, job: Job) -> Candidates:
        """Who may have to give way to the job whatever its queue is guaranteed, and does not yet: the same for all of its team
        and class."""
        found = self._askable.get((job.priority, job.team))
        if found is None:
            found = self._askable[job.priority, job.team] = self.of(
                holdings,
                (
                    v
                    for v in holdings.jobs.values()
                    if v.priority < job.priority or (v.priority == job.priority and v.team != job.team)
                ),
            )
        return found

    def of(self, holdings: Holdings, jobs: Iterable[Job]) -> Candidates:
        """Those of `jobs` who do not give way yet."""
        return Candidates(holdings, (job for job in jobs if job.id not in self.victims))

    def may_take(self, job: Job) -> bool:
        """Whether anybody might give way to a job like this: its class may preempt, or its queue is within its guarantee."""
        return job.preempts or self.entitled(job.queue) or self.uneven(job.queue)

    def uneven(self, key: QueueKey) -> bool:
        """Whether somebody might go so that a job like this has its part of what is lent."""
        least = shrink(key.shape, key.shape.least)
        return self.reclaim is not None and least is not None and self.reclaim.uneven(key.team, wanted(least))

    def entitled(self, key: QueueKey) -> bool:
        least = shrink(key.shape, key.shape.least)
        if self.reclaim is None or least is None:
            return False
        return self.reclaim.entitled(key.team, kinds_asked(least), *wanted(least)) is not None


def wanted(request: Shape) -> list[dict[str, int]]:
    """What a request may take, thousandths by kind ("": any accelerator): each of its types would do. Roles take theirs
    together."""
    if request.roles:
        total: dict[str, int] = {}
        for role in request.roles:
            for kind in role.types or ("",):
                total[kind] = total.get(kind, 0) + role.count * role.devices * request.milli
        return [total]
    return [{kind: request.devices * request.milli} for kind in kinds_asked(request) or ("",)]
