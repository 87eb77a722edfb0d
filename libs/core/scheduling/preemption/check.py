"""Validates a preemption plan against the present state. The ledger's writer calls it: a plan made elsewhere may be stale.

Nothing in a plan is taken on trust. It holds if the beneficiary still waits; each victim still runs, and is of a lower class
or in a queue that borrowed from the beneficiary's (`libs.core.scheduling.queues.reclaim`); no limit protects any victim
(`libs.core.scheduling.preemption_guard`); and without the victims the beneficiary fits on exactly the planned devices.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of, reserve_host_resources
from libs.core.placement.find import find
from libs.core.placement.search.gang import shrink
from libs.core.placement.view import View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import kinds_asked
from libs.core.scheduling.precedence import Precedence
from libs.core.scheduling.precedence.moves import MoveTargets
from libs.core.scheduling.preemption.cost import cost_device_s
from libs.core.scheduling.preemption_guard import PreemptionGuard
from libs.core.scheduling.queues import Reclaim
from libs.core.state.job import Job
from libs.core.state.lifecycle import PREEMPTIBLE
from libs.core.state.model import State
from schemas.inbox import PreemptionPlanned
from schemas.jobs import JobState
from schemas.ledger import PlanDeclineReason as Reason


@dataclass(frozen=True, slots=True)
class Victim:
    """A job that gives way, and what that costs it, device-seconds."""

    job: Job
    cost_device_s: float
    moves: bool = False
    """It goes on elsewhere, so it frees nothing below a limit."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The plan holds: these give way, and its devices are held for its beneficiary."""

    victims: tuple[Victim, ...]


@dataclass(frozen=True, slots=True)
class Declined:
    """The plan does not hold. Nobody gives way."""

    reason: Reason
    text: str


def check(
    state: State, plan: PreemptionPlanned, t_us: int, precedence: Precedence | None = None
) -> Accepted | Declined:
    """The answer to `plan` in `state` at `t_us`. Changes nothing. `precedence`: the rule by which jobs of one class give way
    to each other; None: they do not."""
    job = state.jobs.get(plan.beneficiary)
    if job is None or job.state is not JobState.QUEUED:
        return Declined(Reason.BENEFICIARY_GONE, f"{plan.beneficiary} is not waiting any more")
    if job.team in state.suspended:
        return Declined(Reason.BENEFICIARY_GONE, state.suspended[job.team].text(job.team))
    if job.id in state.holds:
        return Declined(Reason.ALREADY_HELD, f"devices are already held for {job.id}")
    within = precedence if precedence is not None and precedence.rules.by_number(job.team) else None
    back = _back(state, plan, job)
    if not job.preempts and within is None and back is None:
        return Declined(Reason.MAY_NOT_PREEMPT, f"the class of {job.id} may not preempt")
    victims = _victims(state, plan, job, t_us, within, back)
    if isinstance(victims, Declined):
        return victims
    return _fits(state, plan, job, victims, t_us) or Accepted(victims)


def would_be_free(state: State, victims: list[Job]) -> View:
    """The fleet as it would be if `victims` had given everything back."""
    view = View.of(state.fleet)
    for victim in victims:
        if victim.current is None:
            continue
        for part in victim.current.parts.values():
            for claim in () if part.freed else part.claims:
                row = state.fleet.row(claim.device)
                view.free_milli[row] += claim.milli
                view.free_mib[row] += claim.memory_mib
                view.free_cpu[state.fleet.node[row]] += claim.cpu_milli
                view.free_host[state.fleet.node[row]] += claim.host_memory_mib
    reserve_host_resources(state, view)
    return view


class _Back(NamedTuple):
    """The job may take back what its queues lent, those from a level of its line on; or, with None, has less than its part of
    what is lent to all, also with `kinds` more."""

    reclaim: Reclaim
    entitled: int | None
    kinds: dict[str, int]

    def lends(self, victim: Job, job: Job) -> bool:
        if self.entitled is None:
            return self.reclaim.evens(victim, job, [self.kinds])
        return self.reclaim.lends(victim, job, kinds_asked(job.shape), self.entitled)


def _back(state: State, plan: PreemptionPlanned, job: Job) -> _Back | None:
    """What the job may take back to have exactly the planned devices; None: nothing."""
    if not len(state.tree):
        return None
    kinds = {kind: count * job.shape.milli for kind, count in state.fleet.kinds(_rows(state, plan.devices)).items()}
    reclaim = Reclaim(state)
    entitled = reclaim.entitled(job.team, kinds_asked(job.shape), kinds)
    lent = entitled is not None or reclaim.givers(job.team, [kinds])
    return _Back(reclaim, entitled, kinds) if lent else None


def _rows(state: State, devices: Iterable[str]) -> list[int]:
    """Of those that are in the pool."""
    return [row for row in map(state.fleet.devices.find, devices) if row >= 0]


def _victims(
    state: State, plan: PreemptionPlanned, job: Job, t_us: int, within: Precedence | None, back: _Back | None
) -> tuple[Victim, ...] | Declined:
    """Each once, with the cost that the plan was made with; a plan that does not tell costs gets those of now."""
    told = dict(zip(plan.victims, plan.costs_device_s, strict=False))
    victims, movers, guard = [], [], PreemptionGuard(state, t_us)
    for victim_id in dict.fromkeys(plan.victims):
        victim = state.jobs.get(victim_id)
        if victim is None or victim.state not in PREEMPTIBLE:
            return Declined(Reason.VICTIM_GONE, f"{victim_id} is not running any more")
        lower = job.preempts and victim.priority < job.priority
        given = lower
        if not lower and within is not None and within.exchanges(victim, job):
            given = within.gives_way(victim, job, t_us)
            if not given and within.may_move(victim, t_us):
                given = True
                movers.append(victim)
        lent = (not given or bool(guard.until_us(victim, lent=False))) and (
            back is not None and back.lends(victim, job)
        )
        evens = lent and back is not None and back.entitled is None
        if not given and not lent:
            return Declined(Reason.VICTIM_NOT_LOWER, f"{victim_id} is not of a lower class than {job.id}")
        how = {"lent": lent and not evens, "evens": evens, "own": not (lower or lent)}
        if (lower or lent or guard.exchanges) and guard.until_us(victim, **how):
            why = guard.text(victim, **how)
            return Declined(Reason.VICTIM_SPARED, f"{victim_id} is spared: {why}")
        cost = told[victim_id] if victim_id in told else cost_device_s(victim, t_us)
        victims.append(Victim(victim, cost, moves=victim in movers))
        if back is not None:
            back.reclaim.gave(victim)
    if (within is None or guard.exchanges) and not guard.together(len(victims), job.team):
        return Declined(Reason.TOO_MANY, guard.pool_text(len(victims), job.team))
    if movers and not MoveTargets(state, _rows(state, plan.devices)).take_all(movers):
        stay = ", ".join(victim.id for victim in movers)
        return Declined(Reason.VICTIM_NOT_LOWER, f"{stay} stands before {job.id} and finds no free devices elsewhere")
    return tuple(victims)


def _fits(
    state: State, plan: PreemptionPlanned, job: Job, victims: tuple[Victim, ...], t_us: int
) -> Declined | None:  # fmt: skip
    """Why `job` cannot have exactly the planned devices once the victims are gone; None when it can."""
    rows = []
    for device in plan.devices:
        row = state.fleet.devices.find(device)
        if row < 0:
            return Declined(Reason.NO_SUCH_DEVICE, f"no device {device}")
        rows.append(row)
    distinct = len(set(rows))
    request = shrink(job.shape, len(rows))
    if request is None or request.devices != distinct or distinct != len(rows):
        return Declined(Reason.BAD_SIZE, f"{distinct} devices for a job of {job.shape.devices}")
    view = would_be_free(state, [victim.job for victim in victims])
    outside = np.ones(len(view.blocked), dtype=np.bool_)
    outside[rows] = False
    view.blocked |= outside
    context = context_of(state, job, t_us, without={victim.job.id for victim in victims})
    if not isinstance(find(view, request, context=context), Placed):
        return Declined(Reason.DOES_NOT_FIT, f"{job.id} would not fit on the planned devices")
    if reached := Tally(state).exceeded(job, rows, [victim.job for victim in victims if not victim.moves]):
        return Declined(Reason.OVER_LIMIT, reached.text(job.team))
    return None
