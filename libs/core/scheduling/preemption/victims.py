"""Which plans there are now: the beneficiaries in order, and the victims of each. The rules are in the package's text."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.gang import shrink, usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import Order, front, in_turn, is_due, kinds_asked
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.preemption.cost import ClassCosts
from libs.core.scheduling.preemption.index import Candidates, Holdings, RoomWithout, Together, VictimIndex
from libs.core.scheduling.queues import Reclaim
from libs.core.scheduling.reservation import Reservations
from libs.core.scheduling.spared import Spared
from libs.core.state.fleet import Bools, Ints
from libs.core.state.model import Job, QueueKey, State, running
from libs.core.state.shape import Shape
from schemas.ids import event_id
from schemas.inbox import MOST_VICTIMS, PreemptionPlanned

_TRIES = 32
"""The clean-up tries to spare each of up to so many victims. With more, it tries so many of the highest class, then drops
all at once those whose devices the beneficiary would not get, then tries a quarter of so many."""

_SWAPS = 4
"""So many cheaper victims are tried in place of the last one that was taken."""


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
    state: State, job: Job, t_us: int, policy: Policy = Policy(), spared: Spared | None = None
) -> VictimChoice | None:
    """Who gives way to `job`, which waits in `state`, after those that come before it; None when nobody does."""
    if not job.preempts and not len(state.tree):
        return None
    found = choices(state, t_us, policy, until=job.id, spared=spared)
    return {beneficiary.id: choice for beneficiary, choice in found}.get(job.id)


def choices(
    state: State,
    t_us: int,
    policy: Policy = Policy(),
    *,
    until: str = "",
    pending: Collection[PreemptionPlanned] = (),
    but_not: Container[str] = (),
    spared: Spared | None = None,
) -> Iterator[tuple[Job, VictimChoice]]:
    """Beneficiaries and who gives way to them, in the order in which a cycle would take them, none behind the job `until`.

    As in a cycle, a job that gets no place blocks its queue. Each is chosen as if the earlier ones were carried out, so
    that two never count on the same device. `pending` plans count as carried out from the start: their beneficiaries get
    no other, their victims and devices serve nobody else. What a cycle keeps for a gang whose reservation is due, of any
    class, serves nobody behind it: neither is it free to them, nor does anybody give way there. `spared`: who need not give
    way; None: as the limits of `state` say.
    """
    taken = _Taken.by(state, pending)
    holdings = Holdings(state, t_us, spared)
    kept = Reservations(state, replace(holdings.empty, blocked=taken.devices), t_us, policy)
    order, last = Order(state, t_us, policy, _considered(state, t_us, policy, taken)), state.jobs.get(until)
    while (job := order.next()) is not None:
        if job.id in taken.beneficiaries:
            order.granted(job, taken.beneficiaries[job.id])
        elif not taken.may_take(job) or job.id in state.holds or job.id in but_not:
            kept.keep(job, taken.tally.room(job).request)
            order.passed(job)
        else:
            room = taken.tally.room(job)
            requested = None if room.request is None else job.but(shape=room.request)
            placed, choice = _place(holdings, requested, taken) if requested is not None else (None, None)
            if placed is None and room.reached:
                requested, choice = job, _below_limits(holdings, job, taken)
                placed = choice.placed if choice is not None else None
            if placed is not None:
                taken.takes(state, job, placed.rows.tolist(), () if choice is None else choice.victims)
                order.granted(job, placed.rows.tolist())
            if choice is not None:
                taken.gone(choice.victims)
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
    return Spared(state, t_us).next_change_us(running(state))


@dataclass(slots=True)
class _Taken:
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
    full: bool = False
    """Too many gave way lately for one of the beneficiaries. Nobody gives way to those behind it, which would keep it so."""

    @classmethod
    def by(cls, state: State, pending: Collection[PreemptionPlanned]) -> "_Taken":
        taken = cls(
            {},
            set(),
            np.zeros(len(state.fleet.up), dtype=np.bool_),
            Tally(state),
            Reclaim(state) if len(state.tree) else None,
        )
        for plan in pending:
            rows = [row for row in map(state.fleet.devices.find, plan.devices) if row >= 0]
            taken.beneficiaries[plan.beneficiary] = rows
            taken.devices[rows] = True
            victims = [state.jobs[victim] for victim in plan.victims if victim in state.jobs]
            taken.gone(victims)
            job = state.jobs.get(plan.beneficiary)
            if job is not None:
                taken.takes(state, job, rows, victims)
        return taken

    def takes(self, state: State, job: Job, rows: list[int], victims: Collection[Job]) -> None:
        """`job` gets these devices, those of `victims` when they have gone."""
        self.devices[rows] = True
        if victims:
            self.tally.keep(job, rows, victims)
        else:
            self.tally.take(job, rows)
        if self.reclaim is not None:
            self.reclaim.got(job.team, {kind: n * job.shape.milli for kind, n in state.fleet.kinds(rows).items()})

    def gone(self, victims: Iterable[Job]) -> None:
        """These give way."""
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
        return self.reclaim is not None and least is not None and self.reclaim.uneven(key.team, _wanted(least))

    def entitled(self, key: QueueKey) -> bool:
        least = shrink(key.shape, key.shape.least)
        if self.reclaim is None or least is None:
            return False
        return self.reclaim.entitled(key.team, kinds_asked(least), *_wanted(least)) is not None


def _place(holdings: Holdings, job: Job, taken: _Taken) -> tuple[Placed | None, VictimChoice | None]:
    """Where the job goes: without victims (then the next cycle grants it), or else after its victims."""
    state, t_us = holdings.state, holdings.t_us
    view = holdings.empty.copy()  # processors and memory that are kept for others are not free
    view.blocked |= taken.devices
    now = find(view, job.shape, context=context_of(state, job, t_us))
    if isinstance(now, Placed):
        return now, None
    choice = _who_gives_way(holdings, job, taken)
    return (None, None) if choice is None else (choice.placed, choice)


def _below_limits(holdings: Holdings, job: Job, taken: _Taken) -> VictimChoice | None:
    """Who gives way to a job that waits at a limit of its team, or of a queue above: what they give back under that limit, it
    may have. So a guarantee can be had in a queue that is full of what others below it borrowed."""

    def room(shape: Shape, victims: Collection[Job]) -> Shape | None:
        return taken.tally.room(job, shape, victims).request

    return _who_gives_way(holdings, job, taken, room)


def _who_gives_way(holdings: Holdings, job: Job, taken: _Taken, room: RoomWithout | None = None) -> VictimChoice | None:
    """None also when too many gave way lately. Nobody is looked for when not even one more may."""
    if taken.full or not holdings.spared.together(1, len(taken.victims)):
        return None
    choice = _lower(holdings, job, taken, room) or _lent(holdings, job, taken, room)
    if choice is not None and not holdings.spared.together(len(choice.victims), len(taken.victims)):
        taken.full = True
        return None
    return choice


def _considered(state: State, t_us: int, policy: Policy, taken: _Taken) -> list[QueueKey]:
    """The queues in which a job waits to which somebody may have to give way; if there are any, also those for whose gangs a
    cycle keeps devices from it."""
    queues = [key for key in state.queues if key.preempts or taken.entitled(key) or taken.uneven(key)]
    lowest = min((key.priority for key in queues), default=None)
    if lowest is None:
        return []
    known = set(queues)
    due = (
        key
        for key in state.queues
        if key not in known
        and key.priority >= lowest
        and any(is_due(job, t_us, policy) for job in front(state, key, policy))
    )
    return [*queues, *due]


def _lower(holdings: Holdings, job: Job, taken: _Taken, room: RoomWithout | None = None) -> VictimChoice | None:
    """Who of lower classes gives way, if the job's may preempt. `room`: it waits at a limit."""
    if not job.preempts:
        return None
    return _best(job, taken, taken.lower(holdings, job.priority), room=room)


def _is_lower(holdings: Holdings, job: Job, victim: Job) -> bool:
    """The victim is of a lower class than the job, whose class may preempt, and nothing spares it."""
    return job.preempts and victim.priority < job.priority and not holdings.spared.until_us(victim, lent=False)


def _lent(holdings: Holdings, job: Job, taken: _Taken, room: RoomWithout | None = None) -> VictimChoice | None:
    """Who gives back what its queue borrowed of the job's, whose queue is within its guarantee with the whole job, or else with
    the least that the job runs on. Of lower classes others may have to give way besides. `room`: it waits at a limit."""
    reclaim, asked = taken.reclaim, kinds_asked(job.shape)
    if reclaim is None or (room is None and not _fits_without_all(holdings, job, taken)):
        return None
    for request in (job.shape, shrink(job.shape, job.shape.least)):
        entitled = reclaim.entitled(job.team, asked, *_wanted(request)) if request is not None else None
        if request is not None and entitled is not None:
            lower = partial(_is_lower, holdings, job)
            lends = partial(reclaim.lends, job=job, asked=asked, entitled=entitled)
            lenders = partial(reclaim.lenders, lower=lower, lends=lends)
            spared = holdings.spared
            some = [v for v in holdings.jobs.values() if not spared.until_us(v, lent=True) and lenders([v])]
            choice = _best(job.but(shape=request), taken, taken.of(holdings, some), lenders, room)
            return None if choice is None else replace(choice, takes_back=job.team)
    return _evening_out(holdings, job, taken, room)


def _fits_without_all(holdings: Holdings, job: Job, taken: _Taken) -> bool:
    """Whether the least that the job runs on would fit if all gave way who may be asked at all. If not, it is not worked out
    who borrowed what: that takes long with many that run."""
    state, asked = holdings.state, taken.askable(holdings, job)
    least = job.but(shape=shrink(job.shape, job.shape.least) or job.shape)
    possible = usable(View.of(state.fleet), least.shape) & ~taken.devices & (state.fleet.held < 0)
    return VictimIndex(least, asked, possible).fits(asked.victims.values(), possible) is not None


def _evening_out(holdings: Holdings, job: Job, taken: _Taken, room: RoomWithout | None) -> VictimChoice | None:
    """Who goes so that what is lent beyond guarantees is even, for a job whose queue has less of it."""
    reclaim, spared = taken.reclaim, holdings.spared
    if reclaim is None:
        return None
    for request in (job.shape, shrink(job.shape, job.shape.least)):
        options = _wanted(request) if request is not None else []
        uneven = request is not None and reclaim.uneven(job.team, options)
        givers = reclaim.givers(job.team, options) if uneven else set()
        if request is None or not givers:
            continue
        lower = partial(_is_lower, holdings, job)
        lenders = partial(reclaim.lenders, lower=lower, lends=partial(reclaim.evens, job=job, options=options))
        some = [
            v
            for v in holdings.jobs.values()
            if lower(v) or (v.team in givers and not spared.until_us(v, lent=False, evens=True) and lenders([v]))
        ]
        choice = _best(job.but(shape=request), taken, taken.of(holdings, some), lenders, room)
        if choice is not None:
            return replace(choice, evens=True)
    return None


def _wanted(request: Shape) -> list[dict[str, int]]:
    """What a request may take, thousandths by kind ("": any accelerator): each of its types would do. Roles take theirs
    together."""
    if request.roles:
        total: dict[str, int] = {}
        for role in request.roles:
            for kind in role.types or ("",):
                total[kind] = total.get(kind, 0) + role.count * role.devices * request.milli
        return [total]
    return [{kind: request.devices * request.milli} for kind in kinds_asked(request) or ("",)]


def _best(
    job: Job,
    taken: _Taken,
    candidates: Candidates,
    admitted: Together = list,
    room: RoomWithout | None = None,
) -> VictimChoice | None:
    """The victims, of `candidates`, of the lowest classes that suffice, on the nearest level where those do."""
    holdings = candidates.holdings
    state = holdings.state
    possible = usable(View.of(state.fleet), job.shape) & ~taken.devices & (state.fleet.held < 0)
    everyone = VictimIndex(job, candidates, possible, admitted, room)
    if not everyone.victims or everyone.fits(everyone.victims.values(), possible) is None:
        return None
    levels = allowed_levels(job.shape, context_of(state, job, holdings.t_us))
    rows = np.flatnonzero(possible)
    for highest in reversed(everyone.classes):
        index = everyone.up_to(highest)
        if index.fits(index.victims.values(), possible) is None:
            continue
        for level in levels:
            groups = _groups(rows, spans_at(state.fleet, level, rows, within=levels[-1]), job.shape.least)
            choice = _cheapest(holdings, index, groups)
            if choice is not None:
                return choice
    return None


def _cheapest(holdings: Holdings, index: VictimIndex, groups: list[Ints]) -> VictimChoice | None:
    """The best choice within one of `groups` (rows each), the most promising group searched first. One that takes more than a
    plan may name is none: its beneficiary waits."""
    best: list[Job] | None = None
    where: Placed | None = None
    bounds = sorted(
        ((bound, group) for group in groups if (bound := index.bound(group)) is not None), key=lambda found: found[0]
    )
    for (least, _, _), group in bounds:
        if best is not None and least >= index.costs(best):
            break
        found = _within(index, group)
        if found is None or len(found[0]) > MOST_VICTIMS:
            continue
        if best is None or _rank(index, found[0]) < _rank(index, best):
            best, where = found
    if best is None or where is None:
        return None
    return VictimChoice(tuple(best), tuple(holdings.cost_s[victim.id] for victim in best), where)


def _rank(index: VictimIndex, victims: list[Job]) -> tuple[ClassCosts, int, tuple[str, ...]]:
    return (index.costs(victims), len(victims), tuple(v.id for v in victims))


def _groups(rows: Ints, codes: Ints, least: int) -> list[Ints]:
    """`rows` of each code that has at least `least` of them."""
    order = np.argsort(codes, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(codes[order])) + 1, len(rows))
    starts = np.append(0, ends[:-1])
    large = (ends - starts >= least) & (ends > starts)
    return [rows[order[start:end]] for start, end in zip(starts[large].tolist(), ends[large].tolist(), strict=True)]


def _within(index: VictimIndex, rows: Ints) -> tuple[list[Job], Placed] | None:
    """The best victims found that let the job run on the devices `rows` alone, and where it then runs."""
    inside = np.zeros(len(index.possible), dtype=np.bool_)
    inside[rows] = True
    frees, missing = index.frees(rows), index.missing(rows)
    far = index.elsewhere(rows)
    victims = index.admitted(index.victims[v] for v in (*index.in_order(frees), *far))
    frees |= dict.fromkeys(far, 0)
    freed = list(accumulate(frees[v.id] for v in victims))
    least = bisect_left(freed, missing) + 1  # fewer cannot suffice
    count = _fewest(lambda n: index.fits(victims[:n], inside) is not None, max(1, least), len(victims))
    if count is None:
        return None
    options = [victims[:count]]
    instead = _instead_of_last(index, victims, count, frees, missing, inside)
    if instead is not None:
        options.append([*victims[: count - 1], instead])
    chosen = min((_cleaned(index, option, inside, frees, missing) for option in options), key=partial(_rank, index))
    placed = index.fits(chosen, inside)
    assert placed is not None
    return chosen, placed


def _instead_of_last(
    index: VictimIndex, victims: list[Job], count: int, frees: dict[str, int], missing: int, inside: Bools
) -> Job | None:
    """A victim of the same class that costs less than the last of the first `count` and serves as well; None: none found.

    The last one is cheap per device that it frees, and may free more than is needed."""
    first, last = victims[: count - 1], victims[count - 1]
    lacking = missing - sum(frees[v.id] for v in first)
    cheaper = [
        v
        for v in victims[count:]
        if v.priority == last.priority and index.cost[v.id] < index.cost[last.id] and frees[v.id] >= lacking
    ]
    for victim in sorted(cheaper, key=lambda v: (index.cost[v.id], v.id))[:_SWAPS]:
        if index.fits([*first, victim], inside) is not None:
            return victim
    return None


def _cleaned(index: VictimIndex, chosen: list[Job], inside: Bools, frees: dict[str, int], missing: int) -> list[Job]:
    """`chosen`, in order of classes, without those that are not needed."""
    if len(chosen) <= _TRIES:
        return _give_back(index, chosen, inside, frees, missing, tries=_TRIES)
    highest = chosen[-1].priority
    if chosen[0].priority < highest:
        chosen = _give_back(index, chosen, inside, frees, missing, tries=_TRIES, at_least=highest)
    return _give_back(index, _touched(index, chosen, inside), inside, frees, missing, tries=_TRIES // 4)


def _give_back(
    index: VictimIndex,
    chosen: list[Job],
    inside: Bools,
    frees: dict[str, int],
    missing: int,
    *,
    tries: int,
    at_least: int | None = None,
) -> list[Job]:
    """`chosen` without those that are not needed: highest class first, then the most expensive. At most `tries` searches;
    `at_least`: only victims of this priority and above are tried."""
    spare = sum(frees[v.id] for v in chosen) - missing
    for victim in sorted(chosen, key=lambda v: (-v.priority, -index.cost[v.id])):
        if not tries or (at_least is not None and victim.priority < at_least):
            break
        rest = [v for v in chosen if v is not victim]
        if rest and frees[victim.id] <= spare:  # else the others would free too few devices
            tries -= 1
            if index.fits(rest, inside) is not None:
                chosen, spare = rest, spare - frees[victim.id]
    return chosen


def _touched(index: VictimIndex, victims: list[Job], inside: Bools) -> list[Job]:
    """Those of `victims` on whose devices the job would be placed, if they suffice."""
    placed = index.fits(victims, inside)
    assert placed is not None
    touched = index.holds(placed.rows)
    held = [v for v in victims if v.id in touched]
    return held if index.fits(held, inside) is not None else victims


def _fewest(works: Callable[[int], bool], least: int, most: int) -> int | None:
    """The least n of `least`..`most` for which `works`, which never stops working as n grows; None when it never does."""
    if least > most:
        return None
    if works(least):
        return least
    bad, good = least, most
    if bad == good or not works(good):
        return None
    while good - bad > 1:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if works(middle) else (middle, good)
    return good
