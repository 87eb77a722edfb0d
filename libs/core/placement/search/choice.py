"""Which node: the one whose use costs the requests to come the least (`score`), among those that are equally near."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.score import weights
from libs.core.placement.search.links import slowest
from libs.core.placement.search.locality import seconds_to_ready
from libs.core.placement.search.topology import allowed_levels, in_order, spans_at
from libs.core.placement.view import Context, Costs, View
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.lasting import remembered
from libs.core.state.shape import Shape
from schemas.resources import Level

Floats = npt.NDArray[np.float64]


class NodeCosts:
    """What each node would cost for one request, asked of the scorer at most once, and only when somebody looks."""

    def __init__(self, view: View, shape: Shape, context: Context) -> None:
        self._ask = None if context.fast else view.scorer
        self._view, self._shape = view, shape

    @cached_property
    def scored(self) -> Costs | None:
        """Cost per node and, for a share, the free compute of the device to take; None when scores do not apply: nothing
        is learned yet, or the request is latency-critical."""
        return None if self._ask is None else self._ask.costs(self._view, self._shape)

    @property
    def per_node(self) -> Floats | None:
        """Milli, shape (N,); inf where the request does not fit as a whole."""
        return None if self.scored is None else self.scored[0]


def best_scored(view: View, shape: Shape, rows: Ints, context: Context, costs: NodeCosts) -> Placed | None:
    """The cheapest node for `shape` among the devices `rows`; None when scores do not apply: nothing is learned yet, a
    latency-critical request, a MIG instance, or a gang that no single node holds."""
    if view.scorer is None or context.fast or shape.profile or shape.torus or not len(rows):
        return None
    level = Level.NODE
    if shape.devices > 1:
        together = _together(view.fleet, shape, rows, context)
        if together is None:
            return None
        level, rows = together
    if costs.scored is None:
        return None
    cost, pick = costs.scored
    if shape.contents:
        cost = cost + weights.MILLI_PER_SECOND * seconds_to_ready(view.fleet, np.arange(len(cost)), shape)
    nodes = view.fleet.node[rows]
    fits = np.bincount(nodes, minlength=len(cost))[: len(cost)] >= max(shape.devices, 1)
    node = int(np.argmin(np.where(fits, cost, np.inf)))
    if not fits[node] or not np.isfinite(cost[node]):
        return None
    here = rows[nodes == node]
    if shape.whole:
        chosen = in_order(view.fleet, _lowest(view.fleet, level, here, shape.devices))
        return Placed(chosen, level, slowest(view.fleet, chosen, level) if shape.devices > 1 else 0.0)
    free = view.free_milli[here]
    wanted = here[free == pick[node]]
    return Placed(wanted[:1] if len(wanted) else here[[int(np.argmin(free))]], Level.NODE)


def _together(fleet: Fleet, shape: Shape, rows: Ints, context: Context) -> tuple[Level, Ints] | None:
    """The nearest level within a node, and those of `rows` that lie where the gang fits in one group of it; None also
    where a fabric that joins nodes holds it over faster links than one node does."""
    levels = allowed_levels(shape, context)
    for level in (Level.NVLINK, Level.NODE):
        if level not in levels:
            return None
        codes = _of_one_model(fleet, level, rows)
        enough = np.bincount(codes)[codes] >= shape.devices
        if enough.any():
            return level, rows[enough]
        if level is Level.NVLINK and (fleet.domain[rows] >= 0).any():
            wide = _by_model(fleet, rows, spans_at(fleet, level, rows, within=levels[-1]))
            if (np.bincount(wide) >= shape.devices).any():
                return None
    return None


def _of_one_model(fleet: Fleet, level: Level, rows: Ints) -> Ints:
    """Codes (shape (n,)) of the groups of `level` within a node, each of one device model."""
    return _by_model(fleet, rows, spans_at(fleet, level, rows, within=Level.NODE))


def _by_model(fleet: Fleet, rows: Ints, codes: Ints) -> Ints:
    return codes * len(fleet.models) + fleet.model[rows]


def _lowest(fleet: Fleet, level: Level, rows: Ints, need: int) -> Ints:
    """The `need` devices of lowest index in the fullest group of `level` that holds them, all of one model."""
    codes = _of_one_model(fleet, level, rows)
    totals = np.bincount(codes)
    group = int(np.argmin(np.where(totals >= need, totals, len(rows) + 1)))
    inside = rows[codes == group]
    chosen: Ints = inside[np.argsort(fleet.index[inside], kind="stable")[:need]]
    return chosen


def on_processors(view: View, shape: Shape, context: Context) -> Placed | Blocked:
    """A request without devices: a node with enough free processors and memory, also one that has no devices; the cheapest
    or else the fullest."""
    fleet = view.fleet
    up = _nodes_up(fleet)
    with_cpu = up & (view.free_cpu >= shape.cpu_milli)
    nodes = np.flatnonzero(with_cpu & (view.free_host >= shape.host_mib))
    if not len(nodes):
        return Blocked(
            BlockReason.HOST_MEMORY if with_cpu.any() else BlockReason.CPU if up.any() else BlockReason.NO_DEVICES,
            (),
            0,
        )
    known = NodeCosts(view, shape, context).per_node
    cost = known[nodes] if known is not None else np.full(len(nodes), np.inf)
    if not np.isfinite(cost).any():
        cost = view.free_cpu[nodes].astype(np.float64)
    return Placed(np.zeros(0, dtype=np.int64), Level.NODE, node=int(nodes[int(np.argmin(cost))]))


def _nodes_up(fleet: Fleet) -> Bools:
    """Mask of shape (N,)."""

    def reckon() -> Bools:
        up = np.zeros(len(fleet.leaf), dtype=np.bool_)
        up[[fleet.node_names.find(node.name) for node in fleet.nodes.values() if node.up]] = True
        return up

    return remembered(fleet, "nodes", reckon)
