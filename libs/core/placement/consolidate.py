"""Which running jobs to move so that a block of devices opens up: consolidation, as a proposal that changes nothing.

Small jobs that started at different times leave holes that no gang fits into, however much is free in all. `propose`
looks for the cheapest moves that open one block, and proposes them only when the block is worth more than they cost, both
in GPU-seconds:

- *gain*: what jobs that wait for such a block would use of it within a horizon (`block_gain`);
- *cost*: for each gang that moves, the work since its last checkpoint and a restart, on all of its devices.

Three steps: sets of movers that would open a block in one group (node, leaf, ...), from the occupants of each group, the
cheapest first; then the block, and then a new place for each mover, both by `find`: what places jobs is what moves them,
so a proposal respects every constraint that placement knows. A mover never goes onto the block that it opens, and never
ends up further apart than it was. Its devices free up before others are asked for, in that order: it stops, then it starts.

Effort is bounded (`Effort`): this is a heuristic for the cheapest *set*. Every single job whose move would do is tried
within `tries`; of larger sets one greedy choice for each of the `groups` groups that look cheapest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.placement.find import find
from libs.core.placement.search.constraints import fitting
from libs.core.placement.search.topology import span_of, spans_at
from libs.core.placement.view import NOBODY, View
from libs.core.state.fleet import Bools, Ints
from libs.core.state.levels import distance, grouped
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class Movable:
    """A running attempt that may be stopped and started elsewhere."""

    job: str
    rows: Ints
    """Its devices, in rank order."""
    shape: Shape
    cost_gpu_s: float
    """GPU-seconds lost by a move: (since its last checkpoint + restart) x devices."""


@dataclass(frozen=True, slots=True)
class Move:
    job: str
    rows_from: Ints
    rows_to: Ints


@dataclass(frozen=True, slots=True)
class Proposal:
    """Moves, to be carried out together, and the block that they open. `gain` and `cost` in GPU-seconds."""

    moves: tuple[Move, ...]
    block: Ints
    gain: float
    cost: float


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look."""

    tries: int = 32
    """Sets of movers for which places are sought: each costs one search for the block and one per mover."""
    groups: int = 16
    """Groups for which a set of several movers is put together."""


def block_gain(devices: int, waiting: int, mean_run_s: float, horizon_s: float) -> float:
    """What a block of `devices` is worth, GPU-seconds: what `waiting` jobs of `mean_run_s` each would use of it, one
    after the other, within the horizon."""
    return devices * min(horizon_s, waiting * mean_run_s)


def propose(
    view: View, movable: Sequence[Movable], want: Shape, gain: float, effort: Effort = Effort()
) -> Proposal | None:
    """The cheapest moves found that make room for `want` within its topology level, or None when it fits as things are,
    when nothing that opens it costs less than `gain`, or when `want` is not one block of whole devices.

    Args:
        view: what is free now; not changed.
        movable: the attempts that may move, in any order. Nested gangs (with roles) stay where they are.
        want: the block: so many whole devices within `want.level`, also where that level is only preferred.
        gain: what the block is worth, GPU-seconds.
    """
    block = replace(want, required=True)
    if not want.whole or want.roles or isinstance(find(view, block), Placed):
        return None
    movers = sorted((m for m in movable if not m.shape.roles), key=lambda m: m.job)
    board = _board(view, movers, block)
    for cost, _, group, chosen in sorted(_sets(board, movers, block, gain, effort))[: effort.tries]:
        found = _places(view, [movers[i] for i in chosen], block, board.group == group)
        if found is not None:
            moves, rows = found
            return Proposal(moves, rows, gain, cost)
    return None


@dataclass(frozen=True, slots=True)
class _Board:
    """The occupied devices that moves could free: one entry of shape (P,) per device of a mover in a group."""

    group: Ints
    """Group of each device at the block's level, shape (D,); -1 where the block cannot be."""
    free: Ints
    """Free devices in each group that could hold the block, shape (G,)."""
    mover: Ints
    row: Ints


def _board(view: View, movers: list[Movable], block: Shape) -> _Board:
    """Where the block could be: devices that fit it and are free, or that the movers alone keep busy."""
    fleet = view.fleet
    mover = np.repeat(np.arange(len(movers)), [len(m.rows) for m in movers])
    row = np.concatenate([m.rows for m in movers]) if movers else np.zeros(0, dtype=np.int64)
    moved = np.zeros(len(fleet.up), dtype=np.int64)
    np.add.at(moved, row, np.array([m.shape.milli for m in movers], dtype=np.int64)[mover])
    possible = fitting(view, block) & ~view.blocked & (view.held == NOBODY) & (view.free_milli + moved == WHOLE_MILLI)
    group = np.where(possible, spans_at(fleet, grouped(block.level), np.arange(len(fleet.up))), -1)
    free = possible & (view.free_milli == WHOLE_MILLI)
    inside = possible[row]
    return _Board(group, np.bincount(group[free], minlength=int(group.max(initial=0)) + 1), mover[inside], row[inside])


def _sets(
    board: _Board, movers: list[Movable], block: Shape, gain: float, effort: Effort
) -> set[tuple[float, int, int, tuple[int, ...]]]:
    """(cost, movers, group, their positions) of sets that cost less than `gain` and would free enough in a group."""
    cost = np.array([m.cost_gpu_s for m in movers])
    order = np.argsort(board.group[board.row], kind="stable")
    mover, row = board.mover[order], board.row[order]
    groups, begins = np.unique(board.group[row], return_index=True)
    ends = np.append(begins, len(row))[1:]
    estimates: list[tuple[float, int, slice]] = []
    result: set[tuple[float, int, int, tuple[int, ...]]] = set()
    for group, begin, end in zip(groups.tolist(), begins.tolist(), ends.tolist(), strict=True):
        here = slice(begin, end)
        need = block.devices - int(board.free[group])
        who, position, shares = np.unique(mover[here], return_inverse=True, return_counts=True)
        devices, device = np.unique(row[here], return_inverse=True)
        if need > len(devices):
            continue
        alone = np.bincount(device)[device] == 1
        freed = np.bincount(position[alone], minlength=len(who))
        for i in who[(freed >= need) & (cost[who] < gain)].tolist():
            result.add((float(cost[i]), 1, group, (i,)))
        price = np.sort(np.bincount(device, weights=(cost[who] / shares)[position]))
        estimates.append((float(price[:need].sum()), group, here))
    for _, group, here in sorted(estimates, key=lambda e: e[:2])[: effort.groups]:
        chosen = _greedy(mover[here], row[here], cost, block.devices - int(board.free[group]))
        total = float(cost[list(chosen)].sum())
        if total < gain:
            result.add((total, len(chosen), group, chosen))
    return result


def _greedy(mover: Ints, row: Ints, cost: Ints, need: int) -> tuple[int, ...]:
    """Movers (positions, ascending) that free `need` devices of one group: again and again the device that costs the
    least per device that it frees together with others, then whoever turns out not to be needed stays."""
    on = {int(r): frozenset(mover[row == r].tolist()) for r in np.unique(row)}
    chosen: frozenset[int] = frozenset()

    def freed(moved: frozenset[int]) -> int:
        return sum(owners <= moved for owners in on.values())

    while (now := freed(chosen)) < need:
        options = {owners - chosen for owners in on.values() if not owners <= chosen}
        chosen |= min(
            options,
            key=lambda o: (sum(cost[list(o)]) / min(need - now, freed(chosen | o) - now), sorted(o)),
        )
    for i in sorted(chosen, key=lambda i: (-cost[i], i)):
        if freed(chosen - {i}) >= need:
            chosen -= {i}
    return tuple(sorted(chosen))


def _places(view: View, movers: list[Movable], block: Shape, group: Bools) -> tuple[tuple[Move, ...], Ints] | None:
    """The block within `group` and the movers' new places, the largest first; None when not all of it fits."""
    trial = view.copy()
    for mover in movers:
        trial.give_back(mover.rows, mover.shape)
    before = trial.blocked.copy()
    trial.blocked |= ~group
    opened = find(trial, block)
    if not isinstance(opened, Placed):
        return None
    trial.blocked[:] = before
    trial.take(opened.rows, block)
    moves: list[Move] = []
    for mover in sorted(movers, key=lambda m: (-len(m.rows), -m.shape.milli, m.job)):
        shape = replace(mover.shape, devices=len(mover.rows), min_devices=0)
        placed = find(trial, shape)
        if not isinstance(placed, Placed) or _span(view, placed.rows) > _span(view, mover.rows):
            return None
        trial.take(placed.rows, shape)
        moves.append(Move(mover.job, mover.rows, placed.rows))
    return tuple(moves), opened.rows


def _span(view: View, rows: Ints) -> int:
    """How far apart `rows` are: the distance of the nearest level that holds them all."""
    return distance(span_of(view.fleet, rows))
