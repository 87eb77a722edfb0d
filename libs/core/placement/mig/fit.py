"""Among idle MIG instances the one whose use costs the rest of its board the least.

On a board that may be repartitioned, a running 1g decides whether a 3g can still be made there: so it goes beside what runs
already, and where it leaves the profiles possible that others will ask for (`libs.core.placement.mig.layouts`): by the mix of
requests as the scorer has learned it, those that wait included; every profile alike while nothing is known. Instances of
boards that stay as they were found cost nothing.
"""

import numpy as np

from libs.core.placement import mig
from libs.core.placement.view import NOBODY, View
from libs.core.state.fleet import Ints
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI


def cheapest(view: View, shape: Shape, rows: Ints) -> Ints:
    """Those of `rows` (shape (n,), idle instances that `shape` may use) that cost their boards the least; all of them
    when the request is not of a MIG profile or no board may be repartitioned."""
    board_of = view.fleet.board_of
    if not shape.profile or not board_of:
        return rows
    demand = view.scorer.profiles if view.scorer is not None else {}
    taken: dict[str, mig.Layout] = {}
    costs = np.zeros(len(rows))
    for i, row in enumerate(rows.tolist()):
        board = board_of.get(row)
        if board is not None:
            if board not in taken:
                taken[board] = busy_instances(view, board)
            known = view.fleet.boards[board]
            costs[i] = mig.instance_cost(mig.geometry_of(known.board), taken[board], known.rows[row], demand)
    kept: Ints = rows[costs == costs.min()]
    return kept


def busy_instances(view: View, board: str) -> mig.Layout:
    """The instances of a board that no repartition may touch: in use, kept for somebody, or not usable now."""
    return tuple(instance for row, instance in view.fleet.boards[board].rows.items() if not idle(view, row))


def idle(view: View, row: int) -> bool:
    """Nothing runs on this device, nothing is kept for somebody on it, and it is usable."""
    return bool(view.fleet.up[row] and view.free_milli[row] == WHOLE_MILLI and view.held[row] == NOBODY)
