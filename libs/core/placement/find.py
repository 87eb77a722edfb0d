"""Places one request on one view of free devices: constraints filter, then the best of the remaining ones is chosen.

The acceptable device models are tried in the job's order: one device (or a share of one) is placed by `_single`, a gang by
`libs.core.placement.search.topology`. A gang is of one device model: a mixed one would run at the pace of its slowest device;
roles of a nested gang may differ.
"""

import numpy as np

from libs.core.placement.answer import Blocked, BlockReason, Placed, dominant
from libs.core.placement.mig.fit import cheapest
from libs.core.placement.search.choice import NodeCosts, best_scored, on_processors
from libs.core.placement.search.constraints import candidates, cap_of, under_caps
from libs.core.placement.search.gang import place_nested
from libs.core.placement.search.locality import soonest
from libs.core.placement.search.models import models_in_order
from libs.core.placement.search.topology import confined, place_elastic, place_gang
from libs.core.placement.search.torus import place_box
from libs.core.placement.view import NOBODY, Context, View, processors_among
from libs.core.state.fleet import Fleet, Ints
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI, Level, Objective


def find(view: View, shape: Shape, beneficiary: int = NOBODY, context: Context = Context()) -> Placed | Blocked:
    """Where `shape` fits in `view` now.

    Args:
        view: free capacity, arrays of shape (D,).
        shape: the request.
        beneficiary: code of the job in `view.held`, for which held devices are open.
        context: what else bears on this request: how long it has waited, where its peers run, how fast it must be.
    """
    if shape.devices == 0:
        return on_processors(view, shape, context)
    if shape.roles:
        return place_nested(view, shape, beneficiary, context)
    mask, removed = candidates(view, shape, beneficiary, context)
    able = np.flatnonzero(mask)
    left = len(able)
    if left < shape.least:
        return Blocked(dominant(removed, left, shape.least), removed, left)
    costs = NodeCosts(view, shape, context)
    of_any = shape.objective == Objective.ANY
    full = able[under_caps(view.fleet, shape, shape.devices)[able]] if shape.caps else able
    if of_any and (placed := best_scored(view, shape, full, context, costs)) is not None:
        return placed
    models: list[int | None] = [None]
    if not of_any or shape.devices > 1:
        models = [*models_in_order(view, shape, able, costs)]
    for model in models:
        rows = _of_model(view.fleet, full, model)
        if len(rows) < shape.devices:
            continue
        if not of_any and (placed := best_scored(view, shape, rows, context, costs)) is not None:
            return placed
        if shape.torus:
            placed = place_box(view, shape, rows, context)
        elif shape.devices == 1:
            placed = _single(view, cheapest(view, shape, soonest(view.fleet, rows, shape)))
        else:
            placed = _gang(view, shape, rows, context)
        if placed is not None:
            return placed
    if shape.least < shape.devices:
        options = [_of_model(view.fleet, able, model) for model in models]
        most = [shape.devices if model is None else cap_of(shape, view.fleet.models.names[model]) for model in models]
        if (placed := place_elastic(view, shape, options, most, context)) is not None:
            return placed
    return Blocked(BlockReason.TOPOLOGY if shape.torus or confined(shape, context) else BlockReason.BUSY, removed, left)


def _of_model(fleet: Fleet, rows: Ints, model: int | None) -> Ints:
    """Those of `rows` that are of one model, or of any."""
    return rows if model is None else rows[fleet.model[rows] == model]


def _gang(view: View, shape: Shape, rows: Ints, context: Context) -> Placed | None:
    """On the nodes that are ready first, where that is no wider than elsewhere."""
    placed = place_gang(view, shape, rows, context)
    ready = soonest(view.fleet, rows, shape)
    if placed is None or len(ready) in (len(rows), 0):
        return placed
    there = place_gang(view, shape, ready, context)
    return there if there is not None and there.level == placed.level else placed


def _single(view: View, rows: Ints) -> Placed:
    """A share prefers the device with the least compute left, then either kind the fullest node, then the lowest row.
    Processors are taken first where the fewest accelerators need them."""
    if np.count_nonzero(processors_among(view.fleet, rows)):
        beside = np.bincount(view.fleet.node[view.fleet.up & ~view.fleet.cpu], minlength=len(view.fleet.leaf))
        accelerators = beside[view.fleet.node[rows]]
        rows = rows[accelerators == accelerators.min()]
    nodes, free_milli = view.fleet.node[rows], view.free_milli[rows]
    whole_on_node = np.bincount(nodes, weights=free_milli == WHOLE_MILLI).astype(np.int64)
    order = (free_milli * (whole_on_node.max() + 1) + whole_on_node[nodes]) * len(view.fleet.up) + rows
    return Placed(rows[[int(np.argmin(order))]], Level.NODE)
