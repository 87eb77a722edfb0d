"""One scheduling cycle: snapshot -> order -> place -> plan.

The naive cycle tries every waiting job in order on what is free. This one does the same with three differences, so that
a long queue costs little:

1. Waiting jobs stand in lines by (priority, team, shape). What does not fit blocks its own line only, so a cycle costs
   one search per line and one per grant, not one per job.
2. Between teams of one priority the one that holds the least goes first, then the older job (a live max-min share).
3. A gang that has waited for `Policy.reserve_after_us` gets a reservation: the group of devices where it will fit
   soonest takes no more jobs of its priority or lower (backfill goes on elsewhere), so it cannot starve.

Priority is strict: a lower one gets only what the higher ones leave.
"""

import heapq
from dataclasses import dataclass, field, replace

import numpy as np

from libs.core.placement import Blocked, Placed, View, find
from libs.core.placement.context import (
    SpreadKey,
    context_of,
    nodes_kept_away,
    release_host_resources_of,
    reserve_host_resources,
    reserve_host_resources_of,
    spread_key,
)
from libs.core.placement.granted import claims_of, span_of_gang
from libs.core.placement.search.gang import usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.throughput import Chooser
from libs.core.placement.view import NOBODY, Context
from libs.core.scheduling.limits import OVER_LIMIT, Room, Tally
from libs.core.state.fold import hold_code
from libs.core.state.model import Job, QueueKey, State
from schemas.resources import WHOLE_MILLI, Claim, Span


@dataclass(frozen=True, slots=True)
class Policy:
    """Knobs of the cycle. An operator rarely turns them."""

    reserve_after_us: int = 60_000_000
    """How long a gang waits before devices are kept free for it."""
    reservations: int = 4
    """How many such gangs at once: each keeps devices idle that others could use."""
    claims_per_cycle: int = 1024
    """A cycle ends before it grants more than this (a larger gang goes alone): a record must fit into one message of
    the bus. The next cycle goes on with the next input, a tick at the latest."""
    chooser: Chooser | None = None
    """Orders device models by measured throughput, for jobs with an objective."""
    repartition: bool = True
    """Cut idle slices of dynamic MIG boards anew for requests that no instance serves (`libs.core.scheduling.repartition`)."""
    repartition_after_us: int = 30_000_000
    """How long such a request waits first: what runs may end soon, and its instance serves without a cut."""
    repartition_rest_us: int = 300_000_000
    """How long a board stays as it is after a recut, so that two profiles in competition do not cut it to and fro."""
    repartition_answer_us: int = 600_000_000
    """How long a node that is up may take to answer a recut before it is withdrawn. Cutting a board takes seconds; an
    agent tries again every few seconds."""


@dataclass(frozen=True, slots=True)
class Grant:
    job: Job
    claims: tuple[Claim, ...]
    span: Span | None = None
    """Of a gang: how close together it is."""


@dataclass(slots=True)
class Plan:
    """What a cycle decided: grants in order, and for each line that waits, why."""

    grants: list[Grant] = field(default_factory=list)
    waiting: dict[QueueKey, Blocked] = field(default_factory=dict)


def plan(state: State, t_us: int, policy: Policy = Policy()) -> Plan:
    """Grants for the jobs that fit now. Changes nothing; `state` is read at time `t_us`."""
    if not state.queues:
        return Plan()
    view = View.of(state.fleet, policy.chooser)
    reserve_host_resources(state, view)
    result = Plan()
    used = {team: state.committed_milli(team) for _, team, _ in state.queues}
    tally = Tally(state)
    lines = {key: iter(line) for key, line in state.queues.items()}
    heap: list[_Entry] = []

    def consider_next(key: QueueKey) -> None:
        job_id = next(lines[key], None)
        if job_id is not None:
            heapq.heappush(heap, _entry(state.jobs[job_id], used, t_us, policy))

    for key in lines:
        consider_next(key)
    stuck: dict[QueueKey, Job] = {}
    peers: dict[SpreadKey, set[int]] = {}
    reserved = claims = 0
    while heap:
        entry = heapq.heappop(heap)
        job = entry.job
        if entry.young and used[job.team] != entry.used:  # its team was granted something since: no longer first
            heapq.heappush(heap, _entry(job, used, t_us, policy))
            continue
        context = context_of(state, job, t_us, peers)
        room = tally.room(job)
        outcome = _try(state, view, job, room, context)
        if isinstance(outcome, Placed):
            claims += len(outcome.rows)
            if result.grants and claims > policy.claims_per_cycle:
                return result
            result.grants.append(
                Grant(job, claims_of(view, job.shape, outcome), span_of_gang(view, job.shape, outcome))
            )
            view.take(outcome.rows, job.shape, outcome.roles)
            if job.shape.spread[0]:
                nodes = state.fleet.node[outcome.rows].tolist()
                peers.setdefault(spread_key(job), set()).update(nodes_kept_away(state.fleet, job, nodes))
            result.waiting.pop(job.queue, None)
            used[job.team] += len(outcome.rows) * job.shape.milli - state.kept_milli(job.id)
            tally.take(job, outcome.rows.tolist())
            if job.id in state.holds:  # the rest of what was kept is open again, also to those turned away before
                view.held[view.held == hold_code(state, job.id)] = NOBODY
                for other in stuck.values():
                    heapq.heappush(heap, _entry(other, used, t_us, policy))
                stuck.clear()
            consider_next(job.queue)
            continue
        result.waiting[job.queue] = outcome
        stuck[job.queue] = job
        if not entry.young and room.request is not None and reserved < policy.reservations:
            reserved += reserve(view, replace(job, shape=room.request), context)
        if job.id in state.holds:  # it waits for its own devices: the next in its line may still fit elsewhere
            consider_next(job.queue)
    return result


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    """A line's head in the order of consideration: priority, gangs that waited long, the team's share, age."""

    minus_priority: int
    young: bool
    used: int
    submitted_us: int
    job_id: str
    job: Job = field(compare=False)


def _entry(job: Job, used: dict[str, int], t_us: int, policy: Policy) -> _Entry:
    young = job.shape.devices <= 1 or t_us - job.queued_us < policy.reserve_after_us
    return _Entry(-job.priority, young, used[job.team] if young else 0, job.submitted_us, job.id, job)


def _try(state: State, view: View, job: Job, room: Room, context: Context) -> Placed | Blocked:
    """Where `job` fits, as large as its team's limits allow."""
    if room.request is None:
        return OVER_LIMIT
    if job.id not in state.holds:
        return find(view, room.request, NOBODY, context)
    release_host_resources_of(state, view, job.id)
    outcome = find(view, room.request, hold_code(state, job.id), context)
    if isinstance(outcome, Blocked):
        reserve_host_resources_of(state, view, job.id)
    return outcome


def reserve(view: View, job: Job, context: Context = Context()) -> bool:
    """Keeps the devices where `job` will fit soonest from others in this cycle; False when it can never fit.

    Soonest is guessed as: in the nearest level that can hold the gang (or the least of an elastic one) at all, the group
    with the most free devices now; in it the freest nodes that suffice. How roles nest is not looked at.
    """
    fleet, shape = view.fleet, job.shape
    rows = np.flatnonzero(usable(view, shape) & ~view.blocked)
    free = view.free_milli[rows] == WHOLE_MILLI
    levels = allowed_levels(shape, context)
    for level in levels:
        groups = spans_at(fleet, level, rows, within=levels[-1])
        enough = np.bincount(groups) >= shape.least
        if not enough.any():
            continue
        inside = groups == int(np.argmax(np.where(enough, np.bincount(groups, weights=free), -1)))
        capacity = np.bincount(fleet.node[rows[inside]])
        members = np.flatnonzero(capacity)
        free_there = np.bincount(fleet.node[rows[inside]], weights=free[inside])[members]
        members = members[np.argsort(-free_there, kind="stable")]
        needed = int(np.searchsorted(np.cumsum(capacity[members]), shape.least)) + 1
        view.blocked[rows[inside & np.isin(fleet.node[rows], members[:needed])]] = True
        return True
    return False
