"""Which device model first: the order in which the acceptable ones are tried.

1. Types that the job lists: in its order, unless it has an objective and its family was measured (`throughput`).
2. A job that lists none takes the model that costs the least, where waste counts as cost:

       cost(model) = price * (1 + MEMORY_LEFT_OVER * left over + REQUESTS_LOST * lost)

       price       of a device and hour, from the price book
       left over   the part of the device's memory that the job does not ask for; 0 when it names no need
       lost        compute of requests to come that could no longer be served, per unit of compute placed on the model's
                   best node (the score); 0 while nothing is learned, or where scores do not apply

   So a job of 10 GiB goes to a T4 and not to an H100, but to the next dearer model when others need the T4s more. Models
   without a price come after those with one, the smallest memory first; without any price that is the order of all.
"""

import numpy as np

from libs.core.placement.score import weights
from libs.core.placement.search.choice import NodeCosts
from libs.core.placement.view import View
from libs.core.state.fleet import Ints
from libs.core.state.shape import Shape
from schemas.resources import Objective


def models_in_order(view: View, shape: Shape, rows: Ints, costs: NodeCosts) -> list[int]:
    """Codes of the acceptable models among the candidates `rows` (shape (n,)), best first."""
    fleet = view.fleet
    if shape.types:
        codes = [code for name in shape.types if (code := fleet.models.find(name)) >= 0]
    else:
        codes = _by_price_and_fit(view, shape, rows, costs)
    if view.chooser is None or not shape.family or shape.objective == Objective.LISTED or len(codes) < 2:
        return codes
    names = tuple(fleet.models.names[code] for code in codes)
    ranked = view.chooser.order(shape.objective, shape.family, shape.devices, shape.profile, names)
    return [fleet.models.find(name) for name in ranked]


def _by_price_and_fit(view: View, shape: Shape, rows: Ints, costs: NodeCosts) -> list[int]:
    fleet = view.fleet
    models = fleet.model[rows]
    present: list[int] = np.flatnonzero(np.bincount(models)).tolist()
    if len(present) < 2:
        return present
    memory_mib = np.full(len(fleet.models), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(memory_mib, models, fleet.memory_mib[rows])
    names = fleet.models.names
    prices = {m: view.chooser.price_of(names[m], shape.profile) if view.chooser else None for m in present}
    if not any(prices.values()):
        return sorted(present, key=lambda m: (int(memory_mib[m]), names[m]))
    lost = _lost(view, shape, rows, costs)

    def cost(model: int) -> float:
        left_over = 1 - shape.memory_mib / max(1, int(memory_mib[model])) if shape.memory_mib and shape.whole else 0.0
        waste = weights.MEMORY_LEFT_OVER * left_over + weights.REQUESTS_LOST * lost.get(model, 0.0)
        return (prices[model] or 0) * (1 + waste)

    return sorted(present, key=lambda m: (not prices[m], cost(m), int(memory_mib[m]), names[m]))


def _lost(view: View, shape: Shape, rows: Ints, costs: NodeCosts) -> dict[int, float]:
    """Model -> compute lost to requests to come per unit placed, on the node where that is the least. Models of which no
    node holds the request are left out."""
    if shape.profile or shape.torus or (cost := costs.per_node) is None:
        return {}
    fleet = view.fleet
    of_row = cost[fleet.node[rows]]
    out = {}
    for model in np.unique(fleet.model[rows]).tolist():
        least = float(of_row[fleet.model[rows] == model].min())
        if np.isfinite(least):
            out[model] = max(0.0, least / (shape.devices * shape.milli))
    return out
