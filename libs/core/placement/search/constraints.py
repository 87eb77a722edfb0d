"""Which devices a request may use at all: constraints in a fixed order, each counting what it removes.

The counts are the explanation when nothing is left. The first constraints are static: waiting does not change them.

Processors, host memory and rack power are not a device's own: many devices draw on one node's or one leaf's. Of such a
group, `candidates` leaves no more devices than what is free there can serve, so that whichever of them are chosen, they
are served. A group that can serve the whole job loses none, because the job takes no more than its size anyway.
"""

from collections.abc import Callable, Iterator

import numpy as np

from libs.core.accelerators.precisions import computes
from libs.core.accelerators.vendors import sharable
from libs.core.placement.answer import BlockReason
from libs.core.placement.search.sieve import DeviceStates, first_of_each, open_devices, served
from libs.core.placement.search.topology import nodes_near
from libs.core.placement.view import NOBODY, Context, View, host_part
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.lasting import remembered
from libs.core.state.shape import Shape
from schemas.resources import NO_SHARING, SHARING, WHOLE_MILLI, Level, Runtime

EACH = -1

Rows = Ints | slice
_ALL = slice(None)


def fitting(view: View, shape: Shape) -> Bools:
    """Devices (mask of shape (D,)) that `shape` could run on if all were free: the constraints that do not pass."""
    mask = _lasting(view.fleet, shape)[0].copy()
    for _, allowed in _able(view.fleet, shape):
        mask &= allowed
    return mask


def fitting_of(fleet: Fleet, shape: Shape, rows: Ints) -> Bools:
    """`fitting` of a few devices: which of `rows` (mask of shape (n,)). No pass over the fleet."""
    known = fleet.lasting.get(_kind_of(shape)) if fleet.lasting_version == fleet.version else None
    mask: Bools = fleet.up[rows] if known is None else known[0][rows]
    for _, allowed in (*(_static(fleet, shape, rows) if known is None else ()), *_able(fleet, shape, rows)):
        mask &= allowed
    return mask


def candidates(
    view: View,
    shape: Shape,
    beneficiary: int,
    context: Context,
    together: int = 0,
    within: Bools | None = None,
) -> tuple[Bools, tuple[tuple[BlockReason, int], ...]]:
    """The devices that `shape` may use now (mask of shape (D,)), and how many each constraint removed, in order.

    Args:
        together: how many devices must be near each other (of a role those of one group; 0: all of them). Of a node with
            too little for all its devices, whole islands' worth of so many are left where there are any. `EACH`: every
            device is judged by itself, and none is left out for the sake of others.
        within: the only devices that count (mask of shape (D,)); those outside are not counted as removed.
    """
    known, counted, _ = _lasting(view.fleet, shape)
    mask, removed = known.copy(), dict(counted)
    if within is not None:
        mask &= within
    for reason, gone in _narrowed(view, shape, beneficiary, context, mask, together or shape.devices):
        if gone:
            removed[reason] = removed.get(reason, 0) + gone
    return mask, tuple(removed.items())


def _narrowed(
    view: View, shape: Shape, beneficiary: int, context: Context, mask: Bools, together: int
) -> Iterator[tuple[BlockReason, int]]:
    """Narrows `mask` by what is free now, and says how many devices each constraint took out. Those on shared resources
    count the devices that the constraints so far have left."""
    fleet = view.fleet
    if shape.caps:
        yield BlockReason.QUOTA, _cut(mask, under_caps(fleet, shape, max(1, min(together, shape.least))))
    devices = DeviceStates(view.free_milli, view.free_mib, fleet.memory_mib, view.held, view.blocked)
    gone = open_devices(mask, devices, shape.milli, shape.memory_mib, beneficiary)
    yield from zip((BlockReason.BUSY, BlockReason.HELD, BlockReason.RESERVED), gone, strict=True)
    if fleet.full:
        yield BlockReason.PARTS, _cut(mask, ~np.isin(fleet.node, list(fleet.full)))
    if context.avoid:
        yield BlockReason.SPREAD, _cut(mask, _apart(fleet, context.avoid, shape.spread[1]))
    for reason, limit in _host_limits(view, shape):
        yield reason, _at_most(fleet, shape, mask, limit, together)
    yield from _own_processors(view, shape, mask)
    if np.count_nonzero(fleet.rack_w):
        yield BlockReason.POWER, _cut(mask, _powered(view, shape, beneficiary, mask, together))


def under_caps(fleet: Fleet, shape: Shape, devices: int) -> Bools:
    """Devices (mask of shape (D,)) of the models of which `shape` may get so many; its caps are its team's limits."""
    short = [fleet.models.find(model) for cap in shape.caps if cap.devices < devices for model in cap.models]
    return ~np.isin(fleet.model, short)


def cap_of(shape: Shape, model: str) -> int:
    """The most devices of one model that `shape` may get."""
    return min((cap.devices for cap in shape.caps if model in cap.models), default=shape.devices)


def _cut(mask: Bools, allowed: Bools) -> int:
    before = int(np.count_nonzero(mask))
    mask &= allowed
    return before - int(np.count_nonzero(mask))


def _lasting(fleet: Fleet, shape: Shape) -> tuple[Bools, dict[BlockReason, int], int]:
    """What `_static` leaves (shape (D,), not to be written to), what it removes, and how many are left.

    Remembered for the last few kinds of request.
    """
    key = _kind_of(shape)

    def reckon() -> tuple[Bools, dict[BlockReason, int], int]:
        mask = fleet.up.copy()
        removed: dict[BlockReason, int] = {}
        left = int(np.count_nonzero(mask))
        for reason, allowed in _static(fleet, shape):
            mask &= allowed
            now = int(np.count_nonzero(mask))
            if now != left:
                removed[reason] = removed.get(reason, 0) + left - now
            left = now
        return mask, removed, left

    return remembered(fleet, key, reckon)


def _kind_of(shape: Shape) -> tuple[object, ...]:
    """What of a request `_static` looks at."""
    return (
        shape.types, shape.whole, bool(shape.torus), shape.devices > 1, shape.profile, shape.memory_mib, shape.runtime,
        shape.precision, shape.labels, shape.simulated,
    )  # fmt: skip


def _static(fleet: Fleet, shape: Shape, rows: Rows = _ALL) -> Iterator[tuple[BlockReason, Bools]]:
    """The constraints that waiting does not change. CPUs are taken only by jobs that name them."""
    if shape.types:
        codes = [fleet.models.find(name) for name in shape.types]
        yield BlockReason.TYPE, np.isin(fleet.model[rows], [c for c in codes if c >= 0])
    else:
        yield BlockReason.TYPE, ~fleet.cpu[rows]
    if not shape.whole:
        whole_only = [code for code, name in enumerate(fleet.models.names) if not sharable(name)]
        yield BlockReason.TYPE, ~np.isin(fleet.model[rows], whole_only)
        shares = _nodes(fleet, fleet.node[rows], lambda labels: labels.get(SHARING) != NO_SHARING)
        yield BlockReason.TYPE, shares | fleet.cpu[rows]
    if shape.torus or shape.devices > 1:  # chips of a torus are granted as boxes: anything else would split their hosts
        yield BlockReason.TYPE, (fleet.torus[rows] >= 0) == bool(shape.torus)
    profile = fleet.profiles.find(shape.profile)
    yield BlockReason.PROFILE, fleet.profile[rows] == (profile if profile >= 0 else -1)
    if shape.memory_mib:
        yield BlockReason.MEMORY, fleet.memory_mib[rows] >= shape.memory_mib
    if shape.runtime:
        yield BlockReason.RUNTIME, fleet.runtime[rows] == fleet.runtimes.find(shape.runtime)
    if shape.precision:
        able = [code for code, name in enumerate(fleet.models.names) if computes(name, shape.precision)]
        yield BlockReason.PRECISION, np.isin(fleet.model[rows], able)
    if shape.labels:
        wanted = frozenset(shape.labels)
        yield BlockReason.LABELS, _nodes(fleet, fleet.node[rows], lambda labels: wanted <= labels.items())
    if shape.simulated:
        yield BlockReason.SIMULATION, fleet.simulated[fleet.node[rows]] == 1


def _able(fleet: Fleet, shape: Shape, rows: Rows = _ALL) -> Iterator[tuple[BlockReason, Bools]]:
    """Nodes that have enough for one device of the job. Requests differ much in these two, so they are not remembered."""
    if shape.cpu_milli:
        yield BlockReason.CPU, (fleet.cpu_milli >= shape.cpu_milli)[fleet.node[rows]]
    if shape.host_mib:
        yield BlockReason.HOST_MEMORY, (fleet.host_mib >= shape.host_mib)[fleet.node[rows]]


def _nodes(fleet: Fleet, nodes: Ints, suit: Callable[[dict[str, str]], bool]) -> Bools:
    """Which of `nodes` (codes of shape (n,)) have labels that suit."""
    names, good = fleet.node_names.names, np.zeros(len(fleet.leaf), dtype=np.bool_)
    for code in np.unique(nodes).tolist() if len(fleet.nodes) else ():
        good[code] = suit(fleet.nodes[names[code]].labels)
    return good[nodes]


def _host_limits(view: View, shape: Shape) -> Iterator[tuple[BlockReason, Ints]]:
    if shape.cpu_milli:
        yield BlockReason.CPU, np.maximum(0, view.free_cpu) // shape.cpu_milli
    if shape.host_mib:
        yield BlockReason.HOST_MEMORY, np.maximum(0, view.free_host) // shape.host_mib


def _own_processors(view: View, shape: Shape, mask: Bools) -> Iterator[tuple[BlockReason, int]]:
    """Of devices that are processors, leaves those whose node still has the part that the request would take: its
    accelerators draw on the same ones."""
    if not shape.types:  # processors are granted to jobs that name them
        return
    fleet, code = view.fleet, view.fleet.runtimes.find(Runtime.CPU.value)
    if code < 0:
        return
    every = remembered(fleet, ("processors", shape.types), lambda: _named_processors(fleet, shape, code))
    rows = every[mask[every]]
    if not len(rows):
        return
    nodes, (cpu, host) = fleet.node[rows], host_part(view.fleet, rows, shape)
    for reason, lacking in (
        (BlockReason.CPU, cpu > np.maximum(0, view.free_cpu[nodes])),
        (BlockReason.HOST_MEMORY, host > np.maximum(0, view.free_host[nodes])),
    ):
        gone = rows[lacking]
        yield reason, int(np.count_nonzero(mask[gone]))
        mask[gone] = False


def _named_processors(fleet: Fleet, shape: Shape, code: int) -> Ints:
    models = [fleet.models.find(name) for name in shape.types]
    return np.flatnonzero((fleet.runtime == code) & np.isin(fleet.model, models))


def _apart(fleet: Fleet, avoid: tuple[int, ...], level: Level) -> Bools:
    """Devices that share no group of `level` with the nodes `avoid`; levels below a node keep clear of the whole node."""
    taken = nodes_near(fleet, level, np.array(avoid, dtype=np.int64))[fleet.node]
    if level is Level.NVLINK:  # a fabric may span nodes
        islands = np.unique(fleet.domain[taken & fleet.up])
        taken |= np.isin(fleet.domain, islands[islands >= 0])
    return ~taken


def _powered(view: View, shape: Shape, beneficiary: int, mask: Bools, together: int) -> Bools:
    """Devices that their leaf's power cap can serve, beside what is granted and what is kept for others.

    A device counts its board limit, a share of one pro rata. All in milliwatts, so that nothing is rounded.
    """
    fleet = view.fleet
    caps_w = np.full(len(fleet.leaves), np.iinfo(np.int64).max // WHOLE_MILLI, dtype=np.int64)
    capped = np.flatnonzero(fleet.rack_w)
    np.minimum.at(caps_w, fleet.leaf[capped], fleet.rack_w[capped])
    kept = (view.held != NOBODY) & (view.held != beneficiary)
    drawn_mw = fleet.power_w * np.where(kept, WHOLE_MILLI, WHOLE_MILLI - view.free_milli)
    leaf = fleet.leaf[fleet.node]
    free_mw = caps_w * WHOLE_MILLI - np.bincount(leaf, weights=drawn_mw, minlength=len(caps_w)).astype(np.int64)
    need_mw = fleet.power_w * shape.milli
    allowed = need_mw <= free_mw[leaf]
    if together == EACH or shape.devices == 1:
        return allowed
    rows = _fullest_first(fleet, shape, mask & allowed, leaf, together)
    group = _groups(fleet, shape, leaf, rows)
    drawn = np.cumsum(need_mw[rows])
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]]) if len(rows) else np.zeros(0, dtype=np.int64)
    before = np.repeat(drawn[starts] - need_mw[rows[starts]], np.diff(np.r_[starts, len(rows)]))
    most = np.zeros(len(caps_w), dtype=np.int64)  # what the hungriest devices of this job could draw on each leaf
    np.maximum.at(most, leaf[rows], need_mw[rows] * shape.devices)
    surplus = (drawn - before > free_mw[leaf[rows]]) & (most > free_mw)[leaf[rows]]
    allowed[rows[surplus]] = False
    return allowed


def _at_most(fleet: Fleet, shape: Shape, mask: Bools, limit: Ints, together: int) -> int:
    """Leaves in `mask` no more devices of each node than its `limit` (shape (N,)), islands together; how many it took out."""
    gone, left = served(mask, fleet.node, limit)
    if together == EACH or shape.devices <= 1:
        return gone
    short = (limit < shape.devices) & (left > limit)
    if not short.any():
        return gone
    rows = np.flatnonzero(mask & short[fleet.node])
    group = _groups(fleet, shape, fleet.node, rows)
    islands, size, over = _islands(fleet, rows, together)
    order = np.lexsort((fleet.index[rows], islands, -size, over, group))
    rows = rows[order]
    return gone + first_of_each(mask, rows, group[order], limit[fleet.node[rows]])


def _groups(fleet: Fleet, shape: Shape, where: Ints, rows: Ints) -> Ints:
    """What is counted together, shape of `rows`: a gang is of one model, so models do not compete; roles may be of several."""
    return where[rows] if shape.roles else where[rows] * len(fleet.models) + fleet.model[rows]


def _fullest_first(fleet: Fleet, shape: Shape, mask: Bools, where: Ints, together: int) -> Ints:
    """Rows of `mask`, group by group; in each the nodes with the most of them first, so that nodes stay together."""
    rows = np.flatnonzero(mask)
    node = fleet.node[rows]
    on_node = np.bincount(node, minlength=len(fleet.leaf))[node]
    islands, size, over = _islands(fleet, rows, together)
    group = _groups(fleet, shape, where, rows)
    return rows[np.lexsort((fleet.index[rows], islands, -size, node, -on_node, over, group))]


def _islands(fleet: Fleet, rows: Ints, together: int) -> tuple[Ints, Ints, Ints]:
    """For each of `rows` (shape (n,)): its island (code), how many of them are of that island of its node, and 1 if it is
    over: of those beyond a multiple of `together`, by index. All 0 without islands."""
    islands = fleet.domain[rows] + 1
    if not islands.any():
        return islands, islands, islands
    node = fleet.node[rows]
    order = np.lexsort((fleet.index[rows], islands, node))
    starts = np.ones(len(rows), dtype=np.bool_)
    starts[1:] = (np.diff(node[order]) != 0) | (np.diff(islands[order]) != 0)
    run = np.cumsum(starts) - 1
    count = np.bincount(run)[run]
    place = np.arange(len(rows)) - np.flatnonzero(starts)[run]
    size, over = np.empty_like(count), np.empty_like(count)
    size[order], over[order] = count, place >= count // together * together
    return islands, size, over
