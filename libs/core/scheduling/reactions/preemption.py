"""What preemption says: who should give way to whom."""

import numpy as np

from libs.core.placement import Placed, View, find
from libs.core.placement.context import context_of, reserve_host_resources
from libs.core.placement.search.gang import cut
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state.lifecycle import PREEMPTIBLE
from libs.core.state.model import Job, State
from schemas import inbox, ledger
from schemas.jobs import JobState


def preemption_planned(d: Decision, m: inbox.PreemptionPlanned) -> None:
    """A plan may be stale: everything is checked again, on the fleet as it would be without the victims."""
    state = d.state
    job = state.jobs.get(m.beneficiary)
    if job is None or job.state is not JobState.QUEUED:
        raise InputRefused(f"plan {m.plan_id}: {m.beneficiary} is not waiting any more")
    if m.beneficiary in state.holds:
        raise InputRefused(f"plan {m.plan_id}: devices are already held for {m.beneficiary}")
    if not job.preempts:
        raise InputRefused(f"plan {m.plan_id}: the class of {m.beneficiary} may not preempt")
    victims = [_victim(d, m, job, victim) for victim in dict.fromkeys(m.victims)]
    view = would_be_free(state, victims)
    rows = [_plan_row(state, m, device) for device in m.devices]
    request = cut(job.shape, len(rows))
    if request is None or request.devices != len(set(rows)) or len(set(rows)) != len(rows):
        raise InputRefused(f"plan {m.plan_id}: {len(set(rows))} devices for a job of {job.shape.devices}")
    _keep_only(view, rows)
    context = context_of(state, job, d.t_us, without={victim.id for victim in victims})
    if not isinstance(find(view, request, context=context), Placed):
        raise InputRefused(f"plan {m.plan_id}: {m.beneficiary} would not fit on the planned devices")
    if reached := Tally(state).exceeded(job, rows):
        raise InputRefused(f"plan {m.plan_id}: {reached.text(job.team)}")
    for victim in victims:
        assert victim.current is not None
        d.emit(
            ledger.AttemptPreempting(
                job_id=victim.id,
                attempt=victim.current.number,
                beneficiary=job.id,
                plan_id=m.plan_id,
                reason=m.reason,
            )
        )
    d.emit(ledger.DevicesHeld(job_id=job.id, devices=m.devices))


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


def _keep_only(view: View, rows: list[int]) -> None:
    outside = np.ones(len(view.blocked), dtype=np.bool_)
    outside[rows] = False
    view.blocked |= outside


def _victim(d: Decision, m: inbox.PreemptionPlanned, job: Job, victim_id: str) -> Job:
    victim = d.state.jobs.get(victim_id)
    if victim is None or victim.state not in PREEMPTIBLE:
        raise InputRefused(f"plan {m.plan_id}: {victim_id} is not running any more")
    if victim.priority >= job.priority:
        raise InputRefused(f"plan {m.plan_id}: {victim_id} is not of a lower class than {job.id}")
    return victim


def _plan_row(state: State, m: inbox.PreemptionPlanned, device: str) -> int:
    row = state.fleet.devices.find(device)
    if row < 0:
        raise InputRefused(f"plan {m.plan_id}: no device {device}")
    return row
