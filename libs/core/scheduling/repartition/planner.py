"""Which MIG boards are repartitioned, and how, for requests that no instance serves.

Pure. The rules, the strictest first:

- An instance that is in use or held for a job is never touched.
- A board has one repartition at a time, and rests between two.
- Idle instances that serve a queue of higher rank stay.
- A board is repartitioned only when that brings at least one instance that a queue has waited for.
- A team has no more boards cut than its bucket allows (`libs.core.state.unused_cuts`). Its jobs wait for instances that
  exist then.
- A board that was cut for a team which did not use it is cut for other teams first.

Queues are ranked by class, then by profile, the larger first (small instances fit around large ones, not the other way),
then by the order of all scheduling (`libs.core.scheduling.order`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from libs.core.accelerators.mig_boards import Geometry
from libs.core.accelerators.precisions import computes
from libs.core.placement import mig
from libs.core.placement.context import context_of
from libs.core.placement.search.constraints import cap_of, fitting
from libs.core.placement.view import NOBODY, View
from libs.core.scheduling.cycle import Plan
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import Order, front
from libs.core.scheduling.policy import Policy
from libs.core.state.fleet import Board, Fleet
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.ledger import BoardRecut
from schemas.resources import WHOLE_MILLI, MigPlace, Recut, Runtime

AT_ONCE = 16
"""Repartitions in one record at most, so that a tick stays short and its record small. The next tick goes on."""
_LOOKED_AT = 8
"""Boards whose layouts are worked out for one repartition: 1 to 3 ms each."""


def plan_repartitions(state: State, plan: Plan, t_us: int, policy: Policy) -> list[BoardRecut]:
    """Repartitions for the queues of `plan` that wait for MIG instances. Changes nothing; `plan` was granted already."""
    if not policy.repartition or not state.fleet.boards:
        return []
    queues = _waiting_queues(state, plan, t_us, policy)
    if not any(queue.waited_us >= policy.repartition_after_us for queue in queues):
        return []
    table = _Boards(state, t_us, policy, queues)
    result: list[BoardRecut] = []
    for again in (False, True):
        for queue in queues:
            if not again:
                table.use_what_is_there(queue)
            while table.is_due(queue) and len(result) < AT_ONCE:
                repartition = table.repartition_for(queue, again=again)
                if repartition is None:
                    break
                result.append(repartition)
    return result


@dataclass(slots=True, eq=False)
class _WaitingQueue:
    """Jobs that wait for one profile. `unmet`: how many instances they lack; `blocked`: the idle ones do not suffice for
    the first of them."""

    head: Job
    profile: str
    size: int
    waited_us: int
    unmet: int
    request: Shape
    """All of their requests as one, with the caps that their team's limits set."""
    blocked: bool = True

    @property
    def shape(self) -> Shape:
        return self.head.shape

    @property
    def team(self) -> str:
        return self.head.team


@dataclass(slots=True, eq=False)
class _OpenBoard:
    """A board that may be repartitioned now. `fixed`: instances that stay, `idle`: row -> one that may go."""

    id: str
    board: Board
    geometry: Geometry
    fixed: list[mig.Instance]
    idle: dict[int, mig.Instance] = field(default_factory=dict)
    unused_by: str = ""
    """The team for which it was cut last, and that has not used that."""


def _waiting_queues(state: State, plan: Plan, t_us: int, policy: Policy) -> list[_WaitingQueue]:
    """Queues that more instances would help, by rank. Left out: what waits for its quota, for devices that are held for it
    already, or for its spread peers to go."""
    queues: list[_WaitingQueue] = []
    tally = Tally(state)
    sizes: dict[str, int] = {}
    for key in plan.waiting:
        shape, waiting = key.shape, state.queues.get(key)
        if not shape.profile or shape.torus or shape.roles or not waiting:
            continue
        *held, head = front(state, key, policy)
        if head.id in state.holds or context_of(state, head, t_us).avoid:
            continue
        sizes = sizes or _sizes(state.fleet)
        all_of_them = replace(shape, devices=(len(waiting) - len(held)) * shape.devices, min_devices=1)
        allowed = tally.room(head, all_of_them).request
        if allowed is None:
            continue
        if shape.profile in sizes:
            waited_us = t_us - head.queued_us
            queues.append(_WaitingQueue(head, shape.profile, sizes[shape.profile], waited_us, allowed.devices, allowed))
    places = _places(state, [queue.head.queue for queue in queues], t_us, policy)
    return sorted(queues, key=lambda x: (-x.head.priority, -x.size, places[x.head.id]))


def _places(state: State, queues: list[QueueKey], t_us: int, policy: Policy) -> dict[str, int]:
    """Job id -> its place in the order of scheduling, of the first job of each of `queues` for which nothing is held."""
    places: dict[str, int] = {}
    order = Order(state, t_us, policy, queues)
    while (job := order.next()) is not None:
        if job.id in state.holds:
            order.passed(job)
        else:
            places[job.id] = len(places)
    return places


def _sizes(fleet: Fleet) -> dict[str, int]:
    """Profiles that boards offer -> their slices, memory before compute."""
    return {
        p.name: 16 * p.memory_slices + p.compute_slices for board in fleet.boards.values() for p in board.board.profiles
    }


class _Boards:
    """The boards while the plan is made: which may still be repartitioned, and which instances are to come."""

    def __init__(self, state: State, t_us: int, policy: Policy, queues: list[_WaitingQueue]) -> None:
        self._state, self._queues = state, queues
        fleet = state.fleet
        self._view = View.of(fleet)
        idle = fleet.up & (fleet.free_milli == WHOLE_MILLI) & (fleet.held == NOBODY)
        self._unused = idle.copy()
        """Idle devices that no queue counts on yet."""
        idle_rows = idle.tolist()
        self._open: dict[str, _OpenBoard] = {}
        for name, board in fleet.boards.items():
            rests = name in state.repartition_us and t_us - state.repartition_us[name] < policy.repartition_rest_us
            if rests or name in state.repartitions or not fleet.nodes[board.node].up:
                continue
            geometry = mig.geometry_of(board.board)
            if not mig.legal(
                geometry, board.rows.values()
            ):  # its driver has rules that it did not tell: leave the board alone
                continue
            fixed = [instance for row, instance in board.rows.items() if not idle_rows[row]]
            self._open[name] = _OpenBoard(
                name, board, geometry, fixed, {row: i for row, i in board.rows.items() if idle_rows[row]},
                state.unused_cuts.unused_by(name, t_us),
            )  # fmt: skip
        self._coming = [
            (fleet.boards[name], place.profile)
            for name, asked in state.repartitions.items()
            if name in fleet.boards and name not in state.withdrawn
            for place in asked.recut.create
        ]
        self._after_us = policy.repartition_after_us
        self._left = {queue.team: state.unused_cuts.left(queue.team, t_us) for queue in queues}
        """Team -> how many boards may be cut for it."""
        self._layouts: dict[tuple[object, ...], mig.Layout] = {}
        self._room: dict[tuple[object, ...], bool] = {}

    def use_what_is_there(self, queue: _WaitingQueue) -> None:
        """Counts idle instances, and those that are to come, as `queue`'s. Each counts for one queue only, and stays."""
        there = np.flatnonzero(fitting(self._view, queue.shape) & self._unused)
        queue.blocked = len(there) < queue.shape.least
        if queue.blocked:  # else it lacks something else than instances, and none are set aside for it
            mine = there[: max(0, queue.unmet)].tolist()
            self._unused[mine] = False
            queue.unmet -= len(mine)
            for row in mine:
                open_ = self._open.get(self._state.fleet.board_of.get(row, ""))
                if open_ is not None:
                    open_.fixed.append(open_.idle.pop(row))
            self._count_coming(queue)

    def is_due(self, queue: _WaitingQueue) -> bool:
        """Whether a board may be cut for it now."""
        waits = queue.blocked and queue.unmet > 0 and queue.waited_us >= self._after_us
        return waits and self._left[queue.team] > 0

    def repartition_for(self, queue: _WaitingQueue, *, again: bool) -> BoardRecut | None:
        """The repartition that brings the most of what `queue` lacks and destroys the least; None when none brings any.
        `again`: of the boards that its team had cut and has not used; else of the others."""
        best: tuple[tuple[int, int, int], _OpenBoard, mig.Layout] | None = None
        for open_ in self._promising(queue, again):
            layout = self._layout(open_, queue, again)
            brought = min(queue.unmet, _count(layout, queue.profile) - _count(_now(open_), queue.profile))
            if brought <= 0:
                continue
            kept = set(layout)
            gone = [instance for instance in open_.idle.values() if instance not in kept]
            worth = (brought, -len(gone), -len(open_.idle))
            if best is None or worth > best[0]:
                best = (worth, open_, layout)
        return None if best is None else self._cut(queue, best[1], best[2])

    def _promising(self, queue: _WaitingQueue, again: bool) -> list[_OpenBoard]:
        """Boards where an instance for `queue` would fit. The fullest come first: what is left of them is worth the least."""
        team = queue.team
        found = [
            o
            for o in self._open.values()
            if (o.unused_by == team) is again and self._has_room(o, queue.profile) and self._serves(o.board, queue)
        ]
        return sorted(found, key=lambda o: (-len(o.fixed), len(o.idle)))[:_LOOKED_AT]

    def _has_room(self, open_: _OpenBoard, profile: str) -> bool:
        key = (open_.geometry, tuple(open_.fixed), profile)
        known = self._room.get(key)
        if known is None:
            known = self._room[key] = bool(mig.fits(open_.geometry, open_.fixed, profile))
        return known

    def _layout(self, open_: _OpenBoard, queue: _WaitingQueue, again: bool) -> mig.Layout:
        """The layout that serves all queues, if `queue` gets as many instances from it as from the layout that serves only
        `queue` and those before it for which the board may be cut, too; else the latter."""
        before = self._queues[: self._queues.index(queue)]
        ahead = [one for one in before if self.is_due(one) and (again or one.team != open_.unused_by)]
        everyone, first = self._demand(open_, self._queues), self._demand(open_, [*ahead, queue])
        both, own = self._best(open_, everyone), self._best(open_, first)
        return both if _count(both, queue.profile) >= _count(own, queue.profile) else own

    def _best(self, open_: _OpenBoard, demand: dict[str, float]) -> mig.Layout:
        key = (open_.geometry, tuple(open_.fixed), tuple(open_.idle.values()), tuple(sorted(demand.items())))
        known = self._layouts.get(key)
        if known is None:
            known = mig.best_layout(open_.geometry, open_.fixed, demand, open_.idle.values())
            self._layouts[key] = known
        return known

    def _demand(self, open_: _OpenBoard, queues: list[_WaitingQueue]) -> dict[str, float]:
        """Profile -> instances wanted of this board: those that `queues` lack, and the idle ones that are there already."""
        demand: dict[str, float] = {}
        for queue in queues:
            if queue.unmet > 0 and self._serves(open_.board, queue):
                demand[queue.profile] = demand.get(queue.profile, 0) + queue.unmet
        for profile, _ in open_.idle.values():
            if profile in demand:
                demand[profile] += 1
        return demand

    def _cut(self, queue: _WaitingQueue, open_: _OpenBoard, layout: mig.Layout) -> BoardRecut:
        """The event. From now on the board may not be repartitioned again, and `queue` counts on what it brings."""
        state, fleet = self._state, self._state.fleet
        del self._open[open_.id]
        self._left[queue.team] -= 1
        now, then = set(_now(open_)), set(layout)
        gone = tuple(fleet.devices.names[row] for row, instance in open_.idle.items() if instance not in then)
        create = tuple(
            MigPlace(profile=profile, start=start) for profile, start in layout if (profile, start) not in now
        )
        why = f"{queue.unmet} more {queue.profile} wanted; {queue.head.id} has waited {queue.waited_us // 1_000_000} s"
        self._unused[[row for row, instance in open_.idle.items() if instance not in then]] = False
        self._coming += [(open_.board, place.profile) for place in create]
        before = len(self._coming)
        self._count_coming(queue)
        assert len(self._coming) < before, "a repartition brings what its queue lacks"
        return BoardRecut(
            node=open_.board.node,
            incarnation=fleet.nodes[open_.board.node].incarnation,
            recut=Recut(
                board=open_.id, number=state.repartition_number.get(open_.id, 0) + 1, destroy=gone, create=create
            ),
            why=why,
            for_job=queue.head.id,
        )  # fmt: skip

    def _count_coming(self, queue: _WaitingQueue) -> None:
        rest = []
        for board, profile in self._coming:
            if queue.unmet > 0 and profile == queue.profile and self._serves(board, queue):
                queue.unmet -= 1
            else:
                rest.append((board, profile))
        self._coming = rest

    def _serves(self, board: Board, queue: _WaitingQueue) -> bool:
        """Whether an instance of `queue`'s profile on this board would serve it."""
        shape, model = queue.shape, board.board.model
        offered = next((p for p in board.board.profiles if p.name == queue.profile), None)
        if offered is None or offered.memory_mib < shape.memory_mib:
            return False
        if cap_of(queue.request, model) < shape.least:
            return False
        if (shape.types and model not in shape.types) or (shape.precision and not computes(model, shape.precision)):
            return False
        fleet = self._state.fleet
        node, at = fleet.nodes[board.node], fleet.node_names.find(board.node)
        if shape.simulated and not fleet.simulated[at]:
            return False
        if shape.runtime and shape.runtime != _runtime(fleet, board):
            return False
        if (shape.cpu_milli and fleet.free_cpu[at] < shape.cpu_milli) or (
            shape.host_mib and fleet.free_host[at] < shape.host_mib
        ):
            return False
        return all(node.labels.get(key) == value for key, value in shape.labels)


def _runtime(fleet: Fleet, board: Board) -> str:
    """The runtime of its instances; CUDA while it has none."""
    row = next(iter(board.rows), None)
    return Runtime.CUDA.value if row is None else fleet.runtimes.names[int(fleet.runtime[row])]


def _now(open_: _OpenBoard) -> Iterator[mig.Instance]:
    yield from open_.fixed
    yield from open_.idle.values()


def _count(instances: mig.Layout | Iterator[mig.Instance], profile: str) -> int:
    return sum(name == profile for name, _ in instances)
