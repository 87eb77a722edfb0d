"""Gangs: where on the topology tree a gang of whole devices goes, and over which slowest link.

The smallest level (node, leaf, spine, zone, pool) that has enough. Within it, the group with the fewest free devices that
suffices; inside a group the emptiest sub-groups first, so that it spans as few of them as possible, and for the
remainder the tightest one. This is best fit on a tree (cf. HiveD, OSDI '20, buddy cells), without the alignment that
buddy cells demand.
"""

import numpy as np

from libs.core.fleet import Fleet, Ints
from libs.core.model import Shape
from libs.core.placement.answer import Placed
from libs.core.placement.view import Context, View

LEVELS = ("node", "leaf", "spine", "zone", "pool")
_NARROW = {"device": "node", "nvlink": "node"}


def place_gang(view: View, shape: Shape, rows: Ints, context: Context) -> Placed | None:
    """The tightest group of the narrowest level that holds the gang; None when `required` forbids a wider one."""
    fleet = view.fleet
    nodes, counts = np.unique(fleet.node[rows], return_counts=True)
    for level in allowed_levels(shape):
        groups = groups_at(fleet, level, nodes)
        totals = np.bincount(groups, weights=counts).astype(np.int64)
        enough = np.flatnonzero(totals >= shape.devices)
        if len(enough) == 0:
            continue
        group = enough[np.argmin(totals[enough])]
        inside = groups == group
        chosen = _fewest(fleet, nodes[inside], counts[inside], shape.devices)
        return Placed(_rows_of(fleet, rows, chosen), level)
    return None


def allowed_levels(shape: Shape) -> tuple[str, ...]:
    """The levels that the gang may span, narrowest first."""
    widest = LEVELS.index(_NARROW.get(shape.level, shape.level)) if shape.required else len(LEVELS) - 1
    return LEVELS[: widest + 1]


def groups_at(fleet: Fleet, level: str, nodes: Ints) -> Ints:
    """The group code of each node at a level; the pool is one group."""
    if level == "node":
        return nodes
    if level == "pool":
        return np.zeros(len(nodes), dtype=np.int64)
    codes: Ints = {"leaf": fleet.leaf, "spine": fleet.spine, "zone": fleet.zone}[level]
    return codes[nodes]


def _fewest(fleet: Fleet, nodes: Ints, counts: Ints, need: int) -> list[tuple[int, int]]:
    """(node, devices) pairs: leaves with the most free first, in each the emptiest nodes, the remainder tightest."""
    leaf_total = np.bincount(fleet.leaf[nodes], weights=counts)
    order = np.lexsort((nodes, -counts, fleet.leaf[nodes], -leaf_total[fleet.leaf[nodes]]))
    chosen: list[tuple[int, int]] = []
    for i in order:
        if need <= 0:
            break
        node, count = int(nodes[i]), int(counts[i])
        if count > need:
            used = {n for n, _ in chosen}
            same = [
                (int(counts[j]), int(nodes[j]))
                for j in range(len(nodes))
                if counts[j] >= need and int(nodes[j]) not in used and fleet.leaf[nodes[j]] == fleet.leaf[node]
            ]
            count, node = min(same)
        chosen.append((node, min(count, need)))
        need -= min(count, need)
    return chosen


def _rows_of(fleet: Fleet, rows: Ints, chosen: list[tuple[int, int]]) -> Ints:
    """Rows in rank order: node by node, devices by index, so that neighbours in rank are neighbours in the machine."""
    picked: list[Ints] = []
    for node, count in chosen:
        here = rows[fleet.node[rows] == node]
        picked.append(here[np.argsort(fleet.index[here], kind="stable")][:count])
    return np.concatenate(picked)
