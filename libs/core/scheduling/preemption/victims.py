"""Which plans there are now: the beneficiaries in order, and the victims of each. The rules are in the package's text."""

from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.gang import shrink, usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import View
from libs.core.scheduling.order import Order, front, in_turn, kinds_asked
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.preemption.already_planned import EVERYBODY, AlreadyPlanned, wanted
from libs.core.scheduling.preemption.cheapest import cheapest, groups_of
from libs.core.scheduling.preemption.index import Candidates, Holdings, Possible, RoomWithout, Together, VictimIndex
from libs.core.scheduling.preemption_guard import PreemptionGuard
from libs.core.scheduling.reservation import PartedDevices, Reservations, is_kept_for
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State, running
from libs.core.state.shape import Shape
from schemas.ids import event_id
from schemas.inbox import PreemptionPlanned


@dataclass(frozen=True, slots=True)
class VictimChoice:
    """Victims, what each costs (device-seconds), and where the beneficiary would then run."""

    victims: tuple[Job, ...]
    costs: tuple[float, ...]
    placed: Placed
    takes_back: str | None = None
    """The queue that takes back what it is guaranteed, where some of them are of no lower class."""
    evens: bool = False
    """They go so that what is lent is even."""

    @property
    def cost(self) -> float:
        """Of all victims, device-seconds."""
        return sum(self.costs)


def plans(
    state: State,
    t_us: int,
    base_seq: int,
    pending: Collection[PreemptionPlanned] = (),
    but_not: Container[str] = (),
    policy: Policy = Policy(),
) -> list[PreemptionPlanned]:
    """Plans for the waiting jobs that do not fit now, where their class may preempt, or their queue may take back what others
    borrowed; in the order of all scheduling.

    Args:
        state: the ledger folded up to `base_seq`.
        t_us: now.
        base_seq: names the plans: the same job has one plan per ledger sequence.
        pending: plans that are sent and not yet answered; see `choices`.
        but_not: beneficiaries that are not planned for.
        policy: that of the pool's cycles, for the order.
    """
    names = state.fleet.devices.names
    return [
        PreemptionPlanned(
            plan_id=event_id(f"{base_seq}", "preemption.plan", job.id),
            base_seq=base_seq,
            beneficiary=job.id,
            victims=tuple(victim.id for victim in choice.victims),
            devices=tuple(names[row] for row in choice.placed.rows.tolist()),
            cost_device_s=choice.cost,
            costs_device_s=choice.costs,
            reason=_reason(job, choice),
        )
        for job, choice in choices(state, t_us, policy, pending=pending, but_not=but_not)
    ]


def _reason(job: Job, choice: VictimChoice) -> str:
    if choice.evens:
        return f"fair share: queue {job.team} holds less than its share of what nobody is guaranteed"
    if choice.takes_back is None:
        return f"priority {job.priority} of {job.spec.priority_class}"
    return f"reclaim: queue {choice.takes_back} is within its guarantee"


def choice_for(
    state: State,
    job: Job,
    t_us: int,
    policy: Policy = Policy(),
    guard: PreemptionGuard | None = None,
    full: set[str] | None = None,
) -> VictimChoice | None:
    """Who gives way to `job`, which waits in `state`, after those that come before it; None when nobody does. `full`: see
    `choices`."""
    if not job.preempts and not len(state.tree):
        return None
    found = choices(state, t_us, policy, until=job.id, guard=guard, full=full)
    return {beneficiary.id: choice for beneficiary, choice in found}.get(job.id)


def choices(
    state: State,
    t_us: int,
    policy: Policy = Policy(),
    *,
    until: str = "",
    pending: Collection[PreemptionPlanned] = (),
    but_not: Container[str] = (),
    guard: PreemptionGuard | None = None,
    full: set[str] | None = None,
) -> Iterator[tuple[Job, VictimChoice]]:
    """Beneficiaries and who gives way to them, in the order in which a cycle would take them, none behind the job `until`.

    As in a cycle, a job that gets no place blocks its queue. Each is chosen as if the earlier ones were carried out, so
    that two never count on the same device. `pending` plans count as carried out from the start: their beneficiaries get
    no other, their victims and devices serve nobody else. What a cycle keeps for a gang whose reservation is due, of any
    class, serves nobody behind it: neither is it free to them, nor does anybody give way there. `guard`: who need not give
    way; None: as the limits of `state` say. `full` takes for whose jobs too many gave way lately (`AlreadyPlanned`).
    """
    planned = AlreadyPlanned.by(state, pending)
    if full is not None:
        planned.full = full
    holdings = Holdings(state, t_us, guard)
    kept = planned.reservations = Reservations(state, replace(holdings.empty, blocked=planned.devices), t_us, policy)
    order, last = Order(state, t_us, policy, _considered(state, t_us, policy, planned)), state.jobs.get(until)
    while (job := order.next()) is not None:
        if job.id in planned.beneficiaries:
            order.granted(job, planned.beneficiaries[job.id])
        elif not planned.may_take(job) or job.id in state.holds or job.id in but_not:
            kept.keep(job, planned.tally.room(job).request)
            order.passed(job)
        else:
            room = planned.tally.room(job)
            requested = None if room.request is None else job.but(shape=room.request)
            placed, choice = _place(holdings, requested, planned) if requested is not None else (None, None)
            if placed is None and room.reached:
                requested, choice = job, _below_limits(holdings, job, planned)
                placed = choice.placed if choice is not None else None
            if placed is not None:
                planned.takes(state, job, placed.rows.tolist(), () if choice is None else choice.victims)
                order.granted(job, placed.rows.tolist())
            if choice is not None:
                planned.gone(choice.victims, job.team)
                yield requested or job, choice
            elif placed is None:
                kept.keep(job, room.request)
                if last is not None and last.queue == job.queue:
                    return
        if job.id == until:
            return


def next_turn_us(state: State, t_us: int, passed: Container[str] = (), policy: Policy = Policy()) -> int:
    """When a beneficiary may look further than at `t_us`, or comes back into its queue, although nothing else has changed; 0:
    never. `passed`: jobs that do not block their queues, because they have plans or are not planned for."""
    moments = (
        state.jobs[job_id].queued_us + widen_us
        for key in state.queues
        if (key.preempts or len(state.tree)) and any(waits := _widen_us(key.shape))
        for job_id in _looked_at(state, key, passed, policy)
        for widen_us in waits
        if widen_us
    )
    back = (at_us for job_id, at_us in state.backing_off.items() if state.jobs[job_id].preempts or len(state.tree))
    spared = (moment for moment in (_spared_until_us(state, t_us),) if moment)
    return min((moment for moment in chain(moments, back, spared) if moment > t_us), default=0)


def _widen_us(shape: Shape) -> list[int]:
    return [shape.widen_us, *(role.widen_us for role in shape.roles)]


def _looked_at(state: State, key: QueueKey, passed: Container[str], policy: Policy) -> Iterator[str]:
    """The jobs of a queue up to the first that blocks it: who stands behind that is not looked at, however long it waits."""
    for job_id in in_turn(state, key, policy):
        yield job_id
        if job_id not in passed and job_id not in state.holds:
            return


def _spared_until_us(state: State, t_us: int) -> int:
    """When somebody need no longer be spared whom a waiting job might ask; 0: nobody is, or no such job waits."""
    if not any(key.preempts or len(state.tree) for key in state.queues):
        return 0
    return PreemptionGuard(state, t_us).next_change_us(running(state))


def _place(holdings: Holdings, job: Job, planned: AlreadyPlanned) -> tuple[Placed | None, VictimChoice | None]:
    """Where the job goes: without victims (then the next cycle grants it), or else after its victims."""
    view = holdings.empty.copy()  # processors and memory that are kept for others are not free
    planned.closed_to(job).in_view(view)
    now = find(view, job.shape, context=holdings.first_search(job))
    if isinstance(now, Placed):
        return now, None
    choice = _who_gives_way(holdings, job, planned)
    return (None, None) if choice is None else (choice.placed, choice)


def _below_limits(holdings: Holdings, job: Job, planned: AlreadyPlanned) -> VictimChoice | None:
    """Who gives way to a job that waits at a limit of its team, or of a queue above: what they give back under that limit, it
    may have. So a guarantee can be had in a queue that is full of what others below it borrowed."""

    def room(shape: Shape, victims: Collection[Job]) -> Shape | None:
        return planned.tally.room(job, shape, victims).request

    return _who_gives_way(holdings, job, planned, room)


def _who_gives_way(
    holdings: Holdings, job: Job, planned: AlreadyPlanned, room: RoomWithout | None = None
) -> VictimChoice | None:
    """None also when too many gave way lately. Nobody is looked for when not even one more may. Then nobody gives way to jobs
    behind this one either, so that it is not put off for ever; but where those of its own team alone are too many, only to no
    other job of its team: they count for nobody else."""
    so_far = len(planned.victims), planned.victims_for.get(job.team, 0)
    guard = holdings.guard
    if planned.full_for(job.team) or not guard.together(1, job.team, *so_far):
        return None
    choice = _lower(holdings, job, planned, room) or _lent(holdings, job, planned, room)
    if choice is not None and not guard.together(len(choice.victims), job.team, *so_far):
        others = sum(victim.team != job.team for victim in choice.victims)
        by_itself = guard.uses(job.team, so_far[1]) > 0 or guard.together(others, job.team, *so_far)
        planned.full.add(job.team if by_itself else EVERYBODY)
        return None
    return choice


def _considered(state: State, t_us: int, policy: Policy, planned: AlreadyPlanned) -> list[QueueKey]:
    """The queues in which a job waits to which somebody may have to give way; if there are any, also those for whose gangs a
    cycle keeps devices from it."""
    queues = [key for key in state.queues if key.preempts or planned.entitled(key) or planned.uneven(key)]
    lowest = min((key.priority for key in queues), default=None)
    if lowest is None:
        return []
    known, parted = set(queues), PartedDevices.of(state)
    due = (
        key
        for key in state.queues
        if key not in known
        and key.priority >= lowest
        and any(is_kept_for(job, t_us, policy, parted) for job in front(state, key, policy))
    )
    return [*queues, *due]


def _lower(
    holdings: Holdings, job: Job, planned: AlreadyPlanned, room: RoomWithout | None = None
) -> VictimChoice | None:
    """Who of lower classes gives way, if the job's may preempt. `room`: it waits at a limit."""
    if not job.preempts:
        return None
    return _best(job, planned, planned.lower(holdings, job.priority), room=room)


def _is_lower(holdings: Holdings, job: Job, victim: Job) -> bool:
    """The victim is of a lower class than the job, whose class may preempt, and nothing spares it."""
    return job.preempts and victim.priority < job.priority and not holdings.guard.until_us(victim, lent=False)


def _lent(
    holdings: Holdings, job: Job, planned: AlreadyPlanned, room: RoomWithout | None = None
) -> VictimChoice | None:
    """Who gives back what its queue borrowed of the job's, whose queue is within its guarantee with the whole job, or else with
    the least that the job runs on. Of lower classes others may have to give way besides. `room`: it waits at a limit."""
    reclaim, asked = planned.reclaim, kinds_asked(job.shape)
    if reclaim is None or (room is None and not _fits_without_all(holdings, job, planned)):
        return None
    for request in (job.shape, shrink(job.shape, job.shape.least)):
        entitled = reclaim.entitled(job.team, asked, *wanted(request)) if request is not None else None
        if request is not None and entitled is not None:
            lower = partial(_is_lower, holdings, job)
            lends = partial(reclaim.lends, job=job, asked=asked, entitled=entitled)
            lenders = partial(reclaim.lenders, lower=lower, lends=lends)
            guard = holdings.guard
            some = [v for v in holdings.jobs.values() if not guard.until_us(v, lent=True) and lenders([v])]
            choice = _best(job.but(shape=request), planned, planned.of(holdings, some), lenders, room)
            return None if choice is None else replace(choice, takes_back=job.team)
    return _evening_out(holdings, job, planned, room)


def _fits_without_all(holdings: Holdings, job: Job, planned: AlreadyPlanned) -> bool:
    """Whether the least that the job runs on would fit if all gave way who may be asked at all. If not, it is not worked out
    who borrowed what: that takes long with many that run."""
    state, asked = holdings.state, planned.askable(holdings, job)
    least = job.but(shape=shrink(job.shape, job.shape.least) or job.shape)
    return VictimIndex(least, asked, _open_to(state, least, planned)).might_fit()


def _open_to(state: State, job: Job, planned: AlreadyPlanned) -> Possible:
    """What may become the job's, if others give way."""
    closed = planned.closed_to(job)
    return Possible(usable(View.of(state.fleet), job.shape) & ~closed.rows & (state.fleet.held < 0), closed)


def _evening_out(
    holdings: Holdings, job: Job, planned: AlreadyPlanned, room: RoomWithout | None
) -> VictimChoice | None:
    """Who goes so that what is lent beyond guarantees is even, for a job whose queue has less of it."""
    reclaim, guard = planned.reclaim, holdings.guard
    if reclaim is None:
        return None
    for request in (job.shape, shrink(job.shape, job.shape.least)):
        options = wanted(request) if request is not None else []
        uneven = request is not None and reclaim.uneven(job.team, options)
        givers = reclaim.givers(job.team, options) if uneven else set()
        if request is None or not givers:
            continue
        lower = partial(_is_lower, holdings, job)
        lenders = partial(reclaim.lenders, lower=lower, lends=partial(reclaim.evens, job=job, options=options))
        some = [
            v
            for v in holdings.jobs.values()
            if lower(v) or (v.team in givers and not guard.until_us(v, lent=False, evens=True) and lenders([v]))
        ]
        choice = _best(job.but(shape=request), planned, planned.of(holdings, some), lenders, room)
        if choice is not None:
            return replace(choice, evens=True)
    return None


def _best(
    job: Job,
    planned: AlreadyPlanned,
    candidates: Candidates,
    admitted: Together = list,
    room: RoomWithout | None = None,
) -> VictimChoice | None:
    """The victims, of `candidates`, of the lowest classes that suffice, on the nearest level where those do."""
    holdings = candidates.holdings
    state = holdings.state
    possible = _open_to(state, job, planned)
    everyone = VictimIndex(job, candidates, possible, admitted, room)
    if not everyone.victims or not everyone.might_fit():
        return None
    levels = allowed_levels(job.shape, context_of(state, job, holdings.t_us))
    rows = np.flatnonzero(possible.rows)
    for highest in reversed(everyone.classes):
        index = everyone.up_to(highest)
        if index.fits(index.victims.values(), possible.rows) is None:
            continue
        for level in levels:
            groups = groups_of(rows, spans_at(state.fleet, level, rows, within=levels[-1]), job.shape.least)
            if (found := cheapest(index, groups)) is not None:
                victims, placed = found
                return VictimChoice(tuple(victims), tuple(holdings.cost_s[victim.id] for victim in victims), placed)
    return None
