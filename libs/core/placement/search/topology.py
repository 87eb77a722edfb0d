"""Gangs: where on the topology tree a gang of whole devices goes, and over which slowest link.

Levels, nearest first: an NVLink island (of a node, or of a fabric that joins nodes, as NVL72 does), node, leaf, spine,
zone, pool. The first level that has enough is taken: per model no wider level has a faster link (`links`), so this
maximises the slowest link of the gang. Within the level the group with the fewest free devices that suffices; of equal
ones that in the fullest parent. Inside the group, at each level, the emptiest sub-groups whole, and for the remainder the
tightest one. This is best fit on a tree (cf. HiveD, OSDI '20, buddy cells), without the alignment that buddy cells
demand.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from libs.core.placement.answer import Placed
from libs.core.placement.search.links import slowest
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.lasting import remembered
from libs.core.state.levels import LEVELS, NODE_LEVELS, beyond, grouped, up_to
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI, Level

Tier = Level | Literal["fabric"]
"""What `fill` takes sub-groups of: those of a level, or the fabrics of several nodes, which stand between leaf and node."""
_INSIDE_NODES: tuple[Tier, ...] = ("fabric", Level.NODE)


def place_gang(view: View, shape: Shape, rows: Ints, context: Context) -> Placed | None:
    """The whole gang on some of `rows` (candidates of one model); None when it does not fit in the levels it may span
    now."""
    return _place(view.fleet, shape, rows, shape.devices, context) if len(rows) >= shape.devices else None


def place_elastic(view: View, shape: Shape, options: list[Ints], most: list[int], context: Context) -> Placed | None:
    """The largest gang of at least `shape.least` devices, in whole units, on one of `options` (candidates of each model,
    best first), of each no more than `most`."""
    sizes = [
        min(shape.devices, shape.whole_units(min(at_most, largest(view.fleet, shape, rows, context))))
        for rows, at_most in zip(options, most, strict=True)
    ]
    size = max(sizes, default=0)
    return _place(view.fleet, shape, options[sizes.index(size)], size, context) if size >= shape.least else None


def _place(fleet: Fleet, shape: Shape, rows: Ints, need: int, context: Context) -> Placed | None:
    levels = allowed_levels(shape, context)
    for level in levels:
        if level is Level.NVLINK and need > 1 and not (fleet.domain[rows] >= 0).any():
            continue  # no islands at all
        codes = spans_at(fleet, level, rows, within=levels[-1])
        inside = tightest(fleet, level, rows, codes, need)
        if inside is not None:
            chosen = in_order(fleet, fill(fleet, rows[inside], need, below(level)))
            return Placed(chosen, level if need > 1 else Level.NODE, slowest(fleet, chosen, level))
    return None


def largest(fleet: Fleet, shape: Shape, rows: Ints, context: Context) -> int:
    """The most devices of `rows` that are together within the widest level that the gang may span now."""
    if len(rows) == 0:
        return 0
    levels = allowed_levels(shape, context)
    return int(np.bincount(spans_at(fleet, levels[-1], rows, within=levels[-1])).max())


def allowed_levels(shape: Shape, context: Context = Context()) -> tuple[Level, ...]:
    """The levels that the gang may span now, nearest first."""
    return up_to(shape.level) if confined(shape, context) else LEVELS


def confined(shape: Shape, context: Context) -> bool:
    """Whether the gang must keep within its level now: always when required, else until it has waited long enough."""
    return shape.required or context.waited_us < shape.widen_us


def below(level: Level) -> tuple[Tier, ...]:
    """What a group of `level` is made of, level by level, widest first. An island is made of nodes; above the node a
    fabric of several nodes keeps together, and a node's own islands come last."""
    if level is Level.NVLINK:
        return (Level.NODE,)
    between = NODE_LEVELS[1 : NODE_LEVELS.index(level)]
    return (*reversed(between), *(() if level is Level.NODE else _INSIDE_NODES), Level.NVLINK)


def span_of(fleet: Fleet, rows: Ints) -> Level:
    """The nearest level that holds all of `rows` (shape (n,))."""
    return next(level for level in LEVELS if len(np.unique(spans_at(fleet, level, rows))) == 1)


def spans_at(fleet: Fleet, level: Level, rows: Ints, within: Level = Level.POOL) -> Ints:
    """The group code at `level` of each device of `rows` (shape (n,)); codes are not below 0.

    A device without NVLink is an island of its own. A fabric that reaches beyond one group of `within` counts as one
    island in each.
    """
    if level is not Level.NVLINK:
        return groups_at(fleet, level, fleet.node[rows])
    islands = remembered(fleet, "islands", lambda: _islands(fleet))[rows]
    if within in (Level.NVLINK, Level.POOL) or not _reach_beyond(fleet, within):
        return islands
    outer = groups_at(fleet, within, fleet.node[rows])
    codes: Ints = np.unique(islands * (int(outer.max()) + 1) + outer, return_inverse=True)[1].astype(np.int64)
    return codes


def _islands(fleet: Fleet) -> Ints:
    """The island of each device (codes of shape (D,))."""
    return np.where(fleet.domain >= 0, fleet.domain, len(fleet.domains) + np.arange(len(fleet.domain)))


def _reach_beyond(fleet: Fleet, within: Level) -> bool:
    """Whether an island has devices in two groups of `within`."""

    def reckon() -> bool:
        islands, outer = _islands(fleet), groups_at(fleet, within, fleet.node)
        last = np.zeros(int(islands.max(initial=0)) + 1, dtype=np.int64)
        last[islands] = outer
        return bool((last[islands] != outer).any())

    return remembered(fleet, ("islands reach beyond", within), reckon)


def groups_at(fleet: Fleet, level: Level, nodes: Ints) -> Ints:
    """The group code of each node at a level of `NODE_LEVELS`; the pool is one group."""
    match level:
        case Level.NODE:
            return nodes
        case Level.LEAF:
            return fleet.leaf[nodes]
        case Level.SPINE:
            return fleet.spine[nodes]
        case Level.ZONE:
            return fleet.zone[nodes]
        case Level.POOL:
            return np.zeros(len(nodes), dtype=np.int64)
    raise ValueError(f"nodes are not grouped by {level}")


def nodes_near(fleet: Fleet, level: Level, nodes: Ints) -> Bools:
    """The nodes (mask of shape (N,)) that share a group of `level` with one of `nodes`; below a node it is the node itself."""
    near = np.zeros(len(fleet.leaf), dtype=np.bool_)
    near[nodes] = True
    if grouped(level) in (Level.NVLINK, Level.NODE):
        return near
    codes = groups_at(fleet, level, np.arange(len(near)))
    return np.isin(codes, codes[nodes])


def _single(fleet: Fleet, level: Level) -> bool:
    """Whether all nodes are in one group of `level`."""
    named = {Level.LEAF: fleet.leaves, Level.SPINE: fleet.spines, Level.ZONE: fleet.zones}
    return level in named and len(named[level]) == 1


def tightest(fleet: Fleet, level: Level, rows: Ints, codes: Ints, need: int) -> Bools | None:
    """Which of `rows` are in the group with the fewest devices that holds `need` (mask of shape (n,)); None: no group.

    Of equal groups the one in the fullest node, leaf, spine and zone, then that of the lowest code.
    """
    totals = np.bincount(codes)
    enough = np.flatnonzero(totals >= need)
    if len(enough) == 0:
        return None
    best = enough[totals[enough] == totals[enough].min()]
    for wider in beyond(level)[:-1]:
        if len(best) == 1:
            break
        if _single(fleet, wider):
            continue
        parents = groups_at(fleet, wider, fleet.node[rows])
        parent_of = np.zeros(len(totals), dtype=np.int64)
        parent_of[codes] = parents
        around = np.bincount(parents)[parent_of[best]]
        best = best[around == around.min()]
    inside: Bools = codes == best[0]
    return inside


def fill(fleet: Fleet, rows: Ints, need: int, levels: tuple[Tier, ...]) -> Ints:
    """`need` of `rows`, from as few sub-groups as can be, level by level (widest first): the emptiest ones whole, then
    the tightest one that holds the remainder."""
    if len(rows) == need:
        return rows
    if not levels:
        return rows[np.argsort(fleet.index[rows], kind="stable")[:need]]
    codes = _fabrics(fleet, rows) if levels[0] == "fabric" else spans_at(fleet, levels[0], rows)
    totals = np.bincount(codes)
    order = np.argsort(-totals, kind="stable")
    reach = np.cumsum(totals[order])
    whole = order[: int(np.searchsorted(reach, need))]
    rest = need - int(totals[whole].sum())
    others = order[len(whole) :]
    others = others[totals[others] >= rest]
    last = others[int(np.argmin(totals[others]))]
    taken = np.zeros(len(totals), dtype=np.bool_)
    taken[whole] = True
    return np.concatenate([rows[taken[codes]], fill(fleet, rows[codes == last], rest, levels[1:])])


def _fabrics(fleet: Fleet, rows: Ints) -> Ints:
    """The fabric of several nodes that each device belongs to, else its node (codes of shape (n,))."""
    nodes, domain = fleet.node[rows], fleet.domain[rows]
    some_node = np.zeros(len(fleet.domains) + 1, dtype=np.int64)
    some_node[domain] = nodes  # a domain of -1 writes to the last place
    wide = np.zeros(len(some_node), dtype=np.bool_)
    wide[domain[some_node[domain] != nodes]] = True
    return np.where(wide[domain] & (domain >= 0), len(fleet.leaf) + domain, nodes)


def in_order(fleet: Fleet, rows: Ints) -> Ints:
    """`rows` in rank order: neighbours in rank are neighbours on the tree; on a node by index within its islands."""
    if len(rows) < 2:
        return rows
    nodes = fleet.node[rows]
    island = np.where(fleet.domain[rows] >= 0, fleet.domain[rows], len(fleet.domains))
    first = np.full(len(fleet.domains) + 1, len(fleet.leaf), dtype=np.int64)
    np.minimum.at(first, island, nodes)  # an island of a fabric stands where its first node does
    keys = (fleet.index[rows], island, nodes, np.where(island < len(fleet.domains), first[island], nodes))
    return rows[np.lexsort((*keys, fleet.leaf[nodes], fleet.spine[nodes], fleet.zone[nodes]))]


def emptied(view: View) -> View:
    """The same fleet with nothing granted, held or reserved: what could be at best."""
    fleet = view.fleet
    return replace(
        view,
        free_milli=np.full(len(fleet.up), WHOLE_MILLI, dtype=np.int64),
        free_mib=fleet.memory_mib.copy(),
        held=np.full(len(fleet.up), -1, dtype=np.int64),
        free_cpu=fleet.cpu_milli.copy(),
        free_host=fleet.host_mib.copy(),
        blocked=np.zeros(len(fleet.up), dtype=np.bool_),
    )
