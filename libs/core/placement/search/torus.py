"""TPU slices: where a box of chips goes on a torus.

Chips sit at the coordinates of a torus, hosts are boxes of chips (2x2x1 or 2x4). A slice is a contiguous box:

    within one host    any chips of it that form the box, e.g. 1x2; the other chips stay grantable
    of whole hosts     its corners are corners of hosts; a host is never split between two slices
    below a cube       in a 3D torus it lies within one cube of 4x4x4 chips: only the faces of cubes are switched
    of whole cubes     sides are multiples of 4, corners are corners of cubes; optical switches close every ring, so that it
                       may reach over the torus's edge. All others may not, unless a side is the whole length

A box may lie along any axes in which its hosts and cubes fit. Among the free positions the one is taken that breaks up
least: within the host, then the cube, that has the fewest free chips; then with the most of its surface against what
is occupied or an edge, so that what stays free stays in large boxes; then the lowest coordinates.
"""

from collections.abc import Sequence
from itertools import permutations, product

import numpy as np

from libs.core.accelerators.catalog import Accelerator, find_model, tpu_generations
from libs.core.accelerators.vendors.tpu_boxes import CUBE, legal
from libs.core.placement.answer import Placed
from libs.core.placement.search.topology import allowed_levels, groups_at
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.levels import NODE_LEVELS
from libs.core.state.shape import Shape
from schemas.resources import Level


def place_box(view: View, shape: Shape, rows: Ints, context: Context) -> Placed | None:
    """`shape.torus` among `rows` (free chips of one model, shape (n,)), in the torus with the fewest free chips that has
    room; within one group of the widest level that the job may span now (a torus is an island: `nvlink` asks no more).
    Ranks follow the slice's coordinates, host by host. None when there is no room or the box is not legal."""
    fleet = view.fleet
    if len(rows) == 0 or (model := find_model(fleet.models.names[fleet.model[rows[0]]])) is None:
        return None
    generation = tpu_generations().get(model.model)
    if generation is None or not legal(generation, shape.torus):
        return None
    rows = rows[fleet.torus[rows] >= 0]
    widest = allowed_levels(shape, context)[-1]
    groups = groups_at(fleet, Level.POOL if widest is Level.NVLINK else widest, fleet.node[rows])
    places, free = np.unique(np.stack([fleet.torus[rows], groups]), axis=1, return_counts=True)
    by_fullest = sorted(
        zip(free.tolist(), *places.tolist(), strict=True), key=lambda t: (t[0], fleet.tori.names[t[1]], t[2])
    )
    for _, code, group in by_fullest:
        torus = fleet.torus_shapes.get(code)
        if torus is None or len(torus) != generation.dims:
            continue
        grid = _grid(fleet, code, torus)
        host = _host_shape(fleet, grid)
        if host is None:
            continue
        cube = (CUBE,) * 3 if generation.cubes else None
        found = find_box(
            np.isin(grid, rows[groups == group]), shape.torus, host, _rings(shape.torus, torus, cube), cube
        )
        if found is not None:
            chosen: Ints = grid[tuple(found.T)]
            return Placed(chosen, _level(fleet, chosen), _slowest_gb_s(model, chosen))
    return None


def find_box(
    free: Bools, box: Sequence[int], host: Sequence[int], wrap: Sequence[bool], cube: Sequence[int] | None = None
) -> Ints | None:
    """Coordinates (shape (chips, dims), host by host) of a free box that breaks up least, or None.

    Args:
        free: which chips are free, array of the torus's shape.
        box: sides of the slice, chips; tried along all axes.
        host: sides of a host, chips; they divide the torus.
        wrap: per axis, whether the box may reach over the edge.
        cube: sides of the block that smaller slices may not cross and larger ones are made of.
    """
    best: tuple[tuple[int, ...], Ints, tuple[int, ...]] | None = None
    for sides in sorted(set(permutations(box)), key=lambda s: (s != tuple(box), s)):
        starts = _starts(free.shape, sides, host, wrap, cube)
        if len(starts) == 0:
            continue
        occupied = _table(free, sides, wrap)
        starts = starts[_count(occupied, starts, sides) == 0]
        if len(starts) == 0:
            continue
        cells = [c for c in (host, cube) if c is not None and _inside(sides, c)]
        keys = [_free_in_cell(free, cell)[tuple(starts.T)] for cell in cells]
        keys.append(-sum(_count(occupied, starts, sides, axis) for axis in range(free.ndim)))
        first = int(np.lexsort((*starts.T[::-1], *keys[::-1]))[0])
        score = tuple(int(key[first]) for key in keys)
        if best is None or score < best[0]:
            best = score, starts[first], sides
    return None if best is None else _coordinates(best[1].tolist(), best[2], free.shape, host)


def _starts(
    torus: Sequence[int], sides: tuple[int, ...], host: Sequence[int], wrap: Sequence[bool], cube: Sequence[int] | None
) -> Ints:
    """Where a box may start if all were free: aligned, hosts and cubes whole. Shape (starts, dims), in order."""
    nowhere = np.zeros((0, len(sides)), dtype=np.int64)
    if any(side > length for side, length in zip(sides, torus, strict=True)):
        return nowhere
    step, cell = tuple(host), None
    if _inside(sides, host):
        step, cell = (1,) * len(sides), tuple(host)
    elif not _divides(host, sides):
        return nowhere
    elif cube is not None and _divides(cube, sides):
        step = tuple(cube)
    elif cube is not None and _inside(sides, cube):
        cell = tuple(cube)
    elif cube is not None:
        return nowhere
    along: list[Ints] = []
    for axis, (side, length) in enumerate(zip(sides, torus, strict=True)):
        at = np.arange(0, length, step[axis])
        if cell is not None:
            at = at[at % cell[axis] + side <= cell[axis]]
        if side == length:
            at = at[:1]  # a whole ring: where it starts makes no difference
        elif not wrap[axis] or length % step[axis]:
            at = at[at + side <= length]
        along.append(at)
    out: Ints = np.stack(np.meshgrid(*along, indexing="ij"), axis=-1).reshape(-1, len(sides))
    return out


def _table(free: Bools, sides: tuple[int, ...], wrap: Sequence[bool]) -> Ints:
    """Summed-area table of what is occupied, with one place before and `side` places after each axis: the other edge's
    where the axis wraps, else all occupied."""
    table = (~free).astype(np.int64)
    for axis, length in enumerate(free.shape):
        reach = np.arange(-1, length + sides[axis])
        over = (
            (reach < 0) | (reach >= length) if sides[axis] == length or not wrap[axis] else np.zeros_like(reach, bool)
        )
        table = np.take(table, reach, axis=axis, mode="wrap")
        table = np.where(over.reshape([-1 if a == axis else 1 for a in range(free.ndim)]), 1, table)
    for axis in range(free.ndim):
        table = np.cumsum(table, axis=axis)
    return np.pad(table, [(1, 0)] * free.ndim)


def _count(table: Ints, starts: Ints, sides: tuple[int, ...], wider: int | None = None) -> Ints:
    """Occupied places in the box at each of `starts`, by 2^dims look-ups whatever its size. With `wider`, the box has one
    more place at both ends of that axis: the box itself being free, these are what its two faces touch."""
    margin = np.array([int(axis == wider) for axis in range(len(sides))])
    low, high = starts + 1 - margin, starts + 1 + np.array(sides) + margin
    total = np.zeros(len(starts), dtype=np.int64)
    for ends in product((False, True), repeat=len(sides)):
        corner = np.where(np.array(ends), high, low)
        total += (-1) ** (len(sides) - sum(ends)) * table[tuple(corner.T)]
    return total


def _free_in_cell(free: Bools, cell: Sequence[int]) -> Ints:
    """For each chip, how many chips of its cell (host or cube) are free."""
    of = tuple(np.arange(length) // side for length, side in zip(free.shape, cell, strict=True))
    counts = np.zeros(tuple(int(o[-1]) + 1 for o in of), dtype=np.int64)
    np.add.at(counts, np.ix_(*of), free)
    out: Ints = counts[np.ix_(*of)]
    return out


def _coordinates(start: Sequence[int], sides: Sequence[int], torus: Sequence[int], host: Sequence[int]) -> Ints:
    """Chips of the box in the slice's own order, host by host; coordinates of the torus, shape (chips, dims)."""
    offsets = np.indices(sides).reshape(len(sides), -1).T
    chips = (np.array(start) + offsets) % np.array(torus)
    hosts = offsets // np.array(host)  # a box of whole hosts starts at one; a smaller one is all in one
    if _inside(sides, host):
        hosts = np.zeros_like(offsets)
    order = np.lexsort((*offsets.T[::-1], *hosts.T[::-1]))
    out: Ints = chips[order].astype(np.int64)
    return out


def _inside(sides: Sequence[int], cell: Sequence[int]) -> bool:
    return all(side <= c for side, c in zip(sides, cell, strict=True))


def _divides(cell: Sequence[int], sides: Sequence[int]) -> bool:
    return not any(side % c for side, c in zip(sides, cell, strict=True))


def _rings(box: Sequence[int], torus: Sequence[int], cube: Sequence[int] | None) -> tuple[bool, ...]:
    """Per axis, whether a slice may reach over the edge: only one of whole cubes, in a torus of whole cubes."""
    if cube is None or not _divides(cube, box):
        return (False,) * len(box)
    return tuple(length % c == 0 for length, c in zip(torus, cube, strict=True))


def _grid(fleet: Fleet, code: int, torus: tuple[int, ...]) -> Ints:
    """The row at each coordinate, or -1 where no chip is up. Shape: the torus's."""
    grid = np.full(torus, -1, dtype=np.int64)
    rows = np.flatnonzero((fleet.torus == code) & fleet.up)
    at = (fleet.t0[rows], fleet.t1[rows], fleet.t2[rows])[: len(torus)]
    grid[at] = rows
    return grid


def _host_shape(fleet: Fleet, grid: Ints) -> tuple[int, ...] | None:
    there = np.argwhere(grid >= 0)
    return host_box(there, fleet.node[grid[tuple(there.T)]], grid.shape)


def host_box(there: Ints, nodes: Ints, torus: Sequence[int]) -> tuple[int, ...] | None:
    """The box of chips that each host is; None when hosts differ, or are no boxes aligned to their own size. `there`: places of
    chips, shape (n, dims); `nodes`: whose each is, shape (n,)."""
    if len(there) == 0:
        return None
    _, node = np.unique(nodes, return_inverse=True)
    low = np.full((int(node.max()) + 1, len(torus)), max(torus), dtype=np.int64)
    high = np.full_like(low, -1)
    np.minimum.at(low, node, there)
    np.maximum.at(high, node, there)
    host = tuple((high - low + 1).max(axis=0).tolist())  # of the largest, as a host may lack a chip
    if any(length % side for length, side in zip(torus, host, strict=True)):
        return None
    cells = np.ravel_multi_index(tuple((there // np.array(host)).T), tuple(np.array(torus) // np.array(host)))
    pairs = np.unique(np.stack([cells, node]), axis=1)
    split = len(pairs[0]) > len(np.unique(cells)) or len(pairs[0]) > len(np.unique(node))
    return None if split else host


def _level(fleet: Fleet, rows: Ints) -> Level:
    """The narrowest level of the topology tree that holds `rows`."""
    nodes = fleet.node[rows]
    return next(level for level in NODE_LEVELS if len(np.unique(groups_at(fleet, level, nodes))) == 1)


def _slowest_gb_s(model: Accelerator, rows: Ints) -> float:
    """Neighbours in a slice talk over one link of the torus, whatever hosts they are in."""
    return model.link.pair_gb_s if len(rows) > 1 else 0.0
