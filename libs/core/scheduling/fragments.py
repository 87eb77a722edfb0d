"""Fragmentation: what is free but of no use to waiting jobs. Whole devices that are too few for a gang, instances and shares
that are too small, parts of a board that are in no instance.

A cycle that looked at everything leaves nothing free that a waiting job could have. So as soon as a job waits for devices, all
that is idle is fragmented, except what a job could have that waits for its team's limit or budget. A job that the pool has no
devices for waits for other nodes, and does not count.

It is pure. It costs one pass over the free devices, and one more for each shape that a limit keeps out.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from libs.core.billing.accounts.capacity import units_of
from libs.core.placement.answer import TRANSIENT, Blocked, BlockReason
from libs.core.placement.search.gang import usable_of
from libs.core.placement.view import NOBODY
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.job import QueueKey
from libs.core.state.lasting import remembered
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.resources import DEVICE_UNITS, WHOLE_MILLI, kind_of

_OF_LIMITS: Final = frozenset({BlockReason.QUOTA, BlockReason.BUDGET})
_OF_DEVICES: Final = (TRANSIENT - _OF_LIMITS) | {BlockReason.TOPOLOGY, BlockReason.PROFILE}
"""Why a job waits for devices that are not free, or not free together. All others: the pool has nothing that it could have."""
_MOST_SHAPES: Final = 64
"""Shapes that limits keep out and that are looked at; with more of them, what is free may be of use to one."""


def fragments(state: State, waiting: Mapping[QueueKey, Blocked]) -> dict[str, int]:
    """Kind of device -> capacity units that are idle and of no use to what waits, where there are any. `waiting`: why each
    queue waits, by a cycle that has looked at all of them."""
    if not any(blocked.reason in _OF_DEVICES for blocked in waiting.values()):
        return {}
    fleet = state.fleet
    rows = np.flatnonzero(fleet.up & (fleet.free_milli > 0) & (fleet.held == NOBODY))
    if state.reserved:
        kept = {fleet.row(device) for devices in state.reserved.values() for device in devices}
        rows = rows[~np.isin(rows, list(kept))]
    limited = {key.shape for key, blocked in waiting.items() if blocked.reason in _OF_LIMITS}
    if len(limited) > _MOST_SHAPES:
        return {}
    of_use = np.zeros(len(rows), dtype=np.bool_)
    for shape in limited:
        of_use |= _could_have(fleet, shape, rows)
    units = _units(fleet, rows[~of_use])
    for board, node, kind, rest in remembered(fleet, "what is in no instance", lambda: _rests(fleet)):
        out = (
            node in state.silent or node in state.cordoned or board in state.repartitions or board in state.quarantined
        )
        if fleet.nodes[node].up and not out:
            units[kind] += rest
    return {kind: number for kind, number in sorted(units.items()) if number > 0}


def _could_have(fleet: Fleet, shape: Shape, rows: Ints) -> Bools:
    """Which of `rows` a job could be given if nothing limited it (mask of shape (n,)). Where they are is not looked at."""
    able = (fleet.free_milli[rows] >= shape.milli) & (fleet.free_mib[rows] >= shape.memory_mib)
    able[able] = usable_of(fleet, shape, rows[able])
    return able if np.count_nonzero(able) >= shape.least else np.zeros(len(rows), dtype=np.bool_)


def _units(fleet: Fleet, rows: Ints) -> Counter[str]:
    """Kind of device -> what is free of `rows`. A part of a unit that a share leaves is in nobody's share."""
    units: Counter[str] = Counter()
    width = len(fleet.profiles)
    codes = fleet.model[rows] * width + fleet.profile[rows]
    for code in np.unique(codes).tolist():
        model, profile = fleet.models.names[code // width], fleet.profiles.names[code % width]
        of_kind = fleet.free_milli[rows[codes == code]] * units_of(model, profile) // WHOLE_MILLI
        units[kind_of(model, profile)] += int(of_kind.sum())
    return units


def _rests(fleet: Fleet) -> list[tuple[str, str, str, int]]:
    """Board that may be repartitioned, its node, its kind, and its capacity units that are in no instance. Those of other
    boards nobody can ever have: they are idle whatever waits."""
    found = []
    for name, board in fleet.boards.items():
        model = board.board.model
        rest = DEVICE_UNITS - sum(units_of(model, profile) for profile, _ in board.rows.values())
        if rest > 0:
            found.append((name, board.node, kind_of(model), rest))
    return found
