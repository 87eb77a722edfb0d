"""Who gives way to whom: the cheapest set of whole gangs whose devices let the beneficiary run at once.

Solved on the would-be-free fleet first: nobody is evicted unless the whole placement then fits. Two steps:

1. *Where*: for each group of the narrowest level that could hold the beneficiary (node, then leaf, ...), victims are
   taken in order of cost per device that they would free there, until it fits; each victim that turns out not to be
   needed is given back (most expensive first). The cheapest group of that level wins.
2. *Cost* of a victim: device-seconds since its last checkpoint (or its start) x its gang's size, plus a restart. What a
   gang has done since its checkpoint is redone by all of its devices, also those that nobody needs.

A gang is never cut: all of it gives way, also its parts elsewhere. Greedy with a clean-up pass is not always the
optimum of the underlying set-cover problem; it is within one victim per group of it and costs O(groups x victims).
"""

from dataclasses import dataclass, replace

import numpy as np

from libs.core.context import context_of
from libs.core.decide import would_be_free
from libs.core.lifecycle import PREEMPTIBLE
from libs.core.model import Job, State
from libs.core.placement import Placed, View, find
from libs.core.placement.gang import usable, within_quota
from libs.core.placement.topology import allowed_levels, spans_at
from schemas.ids import event_id
from schemas.inbox import PreemptionPlanned

RESTART_S = 30.0
"""What a restart costs a gang besides lost work, s per device: start, load of the checkpoint, warm-up."""


@dataclass(frozen=True, slots=True)
class _Choice:
    cost: float
    victims: tuple[Job, ...]
    placed: Placed


def plans(state: State, t_us: int, base_seq: int) -> list[PreemptionPlanned]:
    """Plans for the waiting jobs whose class may preempt and that do not fit now, highest priority and oldest first.

    Each plan is made as if the earlier ones were carried out, so that two never count on the same device.
    """
    result: list[PreemptionPlanned] = []
    spent: set[str] = set()
    promised = np.zeros(len(state.fleet.up), dtype=np.bool_)
    extra_milli: dict[str, int] = {}
    for job in _beneficiaries(state):
        limit = state.quotas.get(job.team)
        committed = state.committed_milli(job.team) + extra_milli.get(job.team, 0)
        wish = within_quota(job.shape, limit, committed)
        if wish is None:
            continue
        job = replace(job, shape=wish)
        view = View.of(state.fleet)
        view.blocked |= promised
        now = find(view, job.shape, context=context_of(state, job, t_us))
        if isinstance(now, Placed):  # it fits as things are: the next cycle grants it
            promised[now.rows] = True
            continue
        choice = _cheapest(state, job, t_us, spent, promised)
        if choice is None:
            continue
        promised[choice.placed.rows] = True
        extra_milli[job.team] = extra_milli.get(job.team, 0) + len(choice.placed.rows) * job.shape.milli
        spent.update(victim.id for victim in choice.victims)
        names = state.fleet.devices.names
        result.append(
            PreemptionPlanned(
                plan_id=event_id(f"{base_seq}", "preemption.plan", job.id),
                base_seq=base_seq,
                beneficiary=job.id,
                victims=tuple(victim.id for victim in choice.victims),
                devices=tuple(names[row] for row in choice.placed.rows.tolist()),
                cost_device_s=choice.cost,
                reason=f"priority {job.priority} of {job.spec.priority_class}",
            )
        )
    return result


def cost_device_s(job: Job, t_us: int) -> float:
    """What preempting `job` now throws away, device-seconds: work since its checkpoint, and a restart, for each device."""
    attempt = job.current
    assert attempt is not None
    since_us = attempt.checkpoint_us or attempt.running_us or t_us
    return sum(c.milli for c in attempt.claims) / 1000 * ((t_us - since_us) / 1e6 + RESTART_S)


def _beneficiaries(state: State) -> list[Job]:
    waiting = [
        state.jobs[job_id]
        for (_, _, _), line in state.queues.items()
        for job_id in line
        if state.jobs[job_id].preempts and job_id not in state.holds
    ]
    return sorted(waiting, key=lambda j: (-j.priority, j.submitted_us, j.id))


def _cheapest(state: State, job: Job, t_us: int, spent: set[str], promised: np.ndarray) -> _Choice | None:
    possible = usable(View.of(state.fleet), job.shape) & ~promised & (state.fleet.held < 0)
    victims = [
        v
        for v in state.jobs.values()
        if v.state in PREEMPTIBLE and v.priority < job.priority and v.id not in spent and v.current is not None
    ]
    rows = np.flatnonzero(possible)
    levels = allowed_levels(job.shape, context_of(state, job, t_us))
    for level in levels:
        codes = spans_at(state.fleet, level, rows, within=levels[-1])
        choices = [
            choice
            for group in np.flatnonzero(np.bincount(codes) >= job.shape.least)
            if (choice := _within(state, job, t_us, victims, rows[codes == group])) is not None
        ]
        if choices:
            return min(choices, key=lambda c: (c.cost, len(c.victims), tuple(v.id for v in c.victims)))
    return None


def _within(state: State, job: Job, t_us: int, victims: list[Job], rows: np.ndarray) -> _Choice | None:
    """The cheapest victims found that let `job` run on the devices `rows` alone."""
    inside = np.zeros(len(state.fleet.up), dtype=np.bool_)
    inside[rows] = True
    helpful = []
    for victim in victims:
        frees = _devices_inside(state, victim, inside)
        if frees:
            helpful.append((cost_device_s(victim, t_us) / frees, victim.id, victim))
    chosen: list[Job] = []
    for _, _, victim in sorted(helpful, key=lambda h: h[:2]):
        chosen.append(victim)
        if _fits(state, job, t_us, chosen, inside) is not None:
            break
    else:
        return None
    for victim in sorted(chosen, key=lambda v: -cost_device_s(v, t_us)):
        rest = [v for v in chosen if v is not victim]
        if rest and _fits(state, job, t_us, rest, inside) is not None:
            chosen = rest
    placed = _fits(state, job, t_us, chosen, inside)
    assert placed is not None
    return _Choice(sum(cost_device_s(v, t_us) for v in chosen), tuple(chosen), placed)


def _devices_inside(state: State, victim: Job, inside: np.ndarray) -> int:
    assert victim.current is not None
    return sum(bool(inside[state.fleet.row(c.device)]) for c in victim.current.claims)


def _fits(state: State, job: Job, t_us: int, victims: list[Job], inside: np.ndarray) -> Placed | None:
    view = would_be_free(state, victims)
    view.blocked |= ~inside
    placed = find(view, job.shape, context=context_of(state, job, t_us, without={v.id for v in victims}))
    return placed if isinstance(placed, Placed) else None
