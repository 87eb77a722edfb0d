"""The promises to be told now."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from libs.core.placement.search.gang import usable
from libs.core.placement.view import NOBODY, View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import Shares, front
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import Precedence
from libs.core.scheduling.precedence.moves import needs
from libs.core.scheduling.precedence.own_delay import asked_for, held_by
from libs.core.scheduling.precedence.promise import expected_start_us, soonest_s
from libs.core.scheduling.precedence.remaining import remaining_of
from libs.core.scheduling.precedence.served import Floats, Ints
from libs.core.state.job import Job
from libs.core.state.model import State, running
from schemas import ledger as led
from schemas.jobs import StartPromise
from schemas.resources import WHOLE_MILLI

MOST = 64
"""Gangs of which a start is worked out in one decision; the others' turns come with the next ticks."""
LEAST_S = 1.0
SLACK_S, MARGIN = 60.0, 0.1
"""What a promise has beyond what is expected: time to stop and to start, and a part of the wait."""
MOVE_US = 60_000_000
"""A promise moves by so much at least, and so long after it was told at the soonest."""


def new_promises(state: State, policy: Policy, t_us: int) -> list[led.GangPromised]:
    """At `t_us`, for gangs that have none yet, and for those whose promise something moves. Changes nothing."""
    turns = policy.precedence
    if turns is None or not state.queues:
        return []
    free_s: Floats | None = None
    tally = Tally(state)
    found: list[led.GangPromised] = []
    for job in _first(state, policy):
        known = turns.book.of.get(job.id)
        cause = turns.book.cause(job.id, job.priority) if known is not None else None
        if len(found) >= MOST:
            break
        if known is not None and (cause is None or t_us < known.told_us + MOVE_US):
            continue
        if tally.room(job).request != job.shape:  # its limits keep it waiting, and nobody knows for how long
            continue
        if free_s is None:
            free_s = _free_s(state, turns, t_us)
        promise = _promise(state, turns, job, t_us, free_s)
        if promise is None or (known is not None and promise.start_us < known.last.start_us + MOVE_US):
            continue
        stays = _stays(state, turns, job, t_us, promise.start_us)
        found.append(led.GangPromised(job_id=job.id, promise=promise.model_copy(update={"cause": cause}), stays=stays))
    return found


def _first(state: State, policy: Policy) -> Iterator[Job]:
    """The first gang that waits of each class and team, and those that were the first and have a promise."""
    assert policy.precedence is not None
    shares = Shares(state, policy)
    first: dict[tuple[int, str], Job] = {}
    for key in state.queues:
        if key.shape.devices < 2:
            continue
        for job in front(state, key, policy):
            best = first.get((key.priority, key.team))
            if job.id not in state.holds and (best is None or _before(policy.precedence, shares, job, best)):
                first[key.priority, key.team] = job
    mine = {job.id: job for job in first.values() if not job.attempts}
    promised = {job_id: state.jobs[job_id] for job_id in policy.precedence.book.of if job_id in state.jobs}
    yield from {**mine, **{id_: job for id_, job in promised.items() if job.queue in state.queues}}.values()


def _before(turns: Precedence, shares: Shares, job: Job, other: Job) -> bool:
    def rank(one: Job) -> tuple[Fraction, float, int, str]:
        number = turns.rank_number(one.id, 0) if turns.rules.by_number(one.team) else 0.0
        return (shares.of_user(one.queue), number, one.submitted_us, one.id)

    return rank(job) < rank(other)


def _free_s(state: State, turns: Precedence, t_us: int) -> Floats:
    """Seconds until each device is free, P50 and P90, shape (2, devices); infinite: nobody knows."""
    fleet, served, jobs = state.fleet, turns.served, running(state)
    slots = np.array([served.slots[job.id] for job in jobs], dtype=np.int64)
    ends_s: Floats = np.zeros((2, len(served.width)))
    ends_s[:, slots] = remaining_of(turns, jobs, t_us)
    free_s: Floats = np.full((2, len(fleet.up)), np.inf)
    free_s[:, (fleet.free_milli == WHOLE_MILLI) & (fleet.held == NOBODY)] = 0.0
    owned = np.flatnonzero(served.owner >= 0)
    free_s[:, owned] = ends_s[:, served.owner[owned]]
    others = [
        (slot, fleet.rows_of(job.current.claims))
        for job, slot in zip(jobs, slots.tolist(), strict=True)
        if job.current is not None and not (served.running[slot] and job.shape.whole)
    ]
    for _, rows in others:
        free_s[:, rows] = 0.0
    for slot, rows in others:  # who shares a device, or stops, owns none
        free_s[:, rows] = np.maximum(free_s[:, rows], ends_s[:, [slot]])
    return free_s


def _promise(state: State, turns: Precedence, job: Job, t_us: int, free_s: Floats) -> StartPromise | None:
    """None: nothing is known of what it would need. `free_s` as `_free_s` says."""
    expected = [_when(state, job, of_each) for of_each in free_s]
    by_order = None
    if turns.rules.by_number(job.team):
        by_order = expected_start_us(state, turns, job, turns.rank_number(job.id, t_us), t_us)
    if by_order is None and (not np.isfinite(expected[0]) or expected[0] <= 0):
        return None  # it never fits, or enough is free, and it waits for what this does not see
    p50_us, p90_us = (t_us + int(min(s, 1e9) * 1e6) for s in (max(LEAST_S, one) for one in expected))
    start_us = p90_us + int((SLACK_S + MARGIN * (p90_us - t_us) / 1e6) * 1e6)
    if by_order is not None:
        start_us = max(by_order, t_us + int(LEAST_S * 1e6))
        p50_us = min(p50_us, start_us)
        p90_us = min(p90_us, start_us)
    return StartPromise(start_us=max(start_us, p50_us), p50_us=p50_us, p90_us=max(p50_us, p90_us))


def _stays(state: State, turns: Precedence, job: Job, t_us: int, start_us: int) -> tuple[str, ...]:
    """Jobs of its team that are expected to run on beyond the start, on devices such as it asks for; the widest, if there are
    many. Not those that give way to it when it is due."""
    usable = asked_for(state, job.spec.resources)
    own = [
        other
        for other in running(state)
        if other.team == job.team
        and other.current is not None
        and not turns.exchanges(other, job)
        and any(usable[row] for row, _ in held_by(state.fleet, other.current))
    ]
    p90_s = remaining_of(turns, own, t_us)[1].tolist() if own else []
    on = [other for other, left_s in zip(own, p90_s, strict=True) if t_us + left_s * 1e6 > start_us]
    on.sort(key=lambda other: (-other.shape.devices, other.id))
    return tuple(other.id for other in on[: led.MOST_STAYING])


def _when(state: State, job: Job, free_s: Floats) -> float:
    """Seconds until so many devices that it could use are free, s; infinite: never. `free_s` of each device."""
    fleet, shape = state.fleet, job.shape
    rows = np.flatnonzero(usable(View.of(fleet), shape))
    if (shape.roles or shape.required) and (groups := needs(shape)) is not None:
        return soonest_s(groups, fleet.node[rows], free_s[rows], len(fleet.node_names))
    need = shape.min_devices or shape.devices
    if len(rows) < need:
        return float("inf")
    whole = _on_one_node(fleet.node[rows], free_s[rows], need)
    return whole if np.isfinite(whole) else float(np.partition(free_s[rows], need - 1)[need - 1])


def _on_one_node(nodes: Ints, free_s: Floats, need: int) -> float:
    """The soonest that one node has so many; infinite: none ever."""
    order = np.lexsort((free_s, nodes))
    nodes, free_s = nodes[order], free_s[order]
    begins = np.flatnonzero(np.diff(nodes, prepend=-1))
    last = begins + need - 1
    able = last < np.append(begins[1:], len(nodes))
    return float(free_s[last[able]].min()) if able.any() else float("inf")
