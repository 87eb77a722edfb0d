"""Which devices a request may use at all: constraints in a fixed order, each counting what it removes.

The counts are the explanation when nothing is left. The first constraints are static: waiting does not change them.
"""

from collections.abc import Iterator

import numpy as np

from libs.core.fleet import Bools, Fleet
from libs.core.model import Shape
from libs.core.placement.answer import Reason
from libs.core.placement.view import NOBODY, Context, View
from schemas.resources import WHOLE_MILLI


def fitting(view: View, shape: Shape) -> Bools:
    """Devices (mask of shape (D,)) that `shape` could run on if all were free: the constraints that do not pass."""
    mask = view.fleet.up.copy()
    for _, allowed in _static(view.fleet, shape):
        mask &= allowed
    return mask


def candidates(
    view: View, shape: Shape, beneficiary: int, context: Context
) -> tuple[Bools, tuple[tuple[Reason, int], ...]]:
    """The devices that `shape` may use now (mask of shape (D,)), and how many each constraint removed, in order."""
    mask = view.fleet.up.copy()
    removed: list[tuple[Reason, int]] = []
    left = int(np.count_nonzero(mask))
    for reason, allowed in _constraints(view, shape, beneficiary, context):
        mask &= allowed
        now = int(np.count_nonzero(mask))
        if now != left:
            removed.append((reason, left - now))
        left = now
    return mask, tuple(removed)


def _constraints(view: View, shape: Shape, beneficiary: int, context: Context) -> Iterator[tuple[Reason, Bools]]:
    yield from _static(view.fleet, shape)
    if shape.whole:
        yield Reason.BUSY, view.free_milli == WHOLE_MILLI
    else:
        need = shape.memory_mib or view.fleet.memory_mib * shape.milli // WHOLE_MILLI
        yield Reason.BUSY, (view.free_milli >= shape.milli) & (view.free_mib >= need)
    yield Reason.HELD, (view.held == NOBODY) | (view.held == beneficiary)
    if beneficiary == NOBODY:
        yield Reason.RESERVED, ~view.blocked


def _static(fleet: Fleet, shape: Shape) -> Iterator[tuple[Reason, Bools]]:
    """The constraints that waiting does not change. CPUs are taken only by jobs that name them."""
    if shape.types:
        codes = [fleet.models.find(name) for name in shape.types]
        yield Reason.TYPE, np.isin(fleet.model, [c for c in codes if c >= 0])
    else:
        yield Reason.TYPE, ~fleet.cpu
    profile = fleet.profiles.find(shape.profile)
    yield Reason.PROFILE, fleet.profile == (profile if profile >= 0 else -1)
    if shape.memory_mib:
        yield Reason.MEMORY, fleet.memory_mib >= shape.memory_mib
    if shape.labels:
        yield Reason.LABELS, _labelled(fleet, shape)
    if shape.simulated:
        yield Reason.SIMULATION, fleet.simulated[fleet.node] == 1


def _labelled(fleet: Fleet, shape: Shape) -> Bools:
    """Devices on nodes that carry all labels of the request."""
    good = np.zeros(len(fleet.leaf), dtype=np.bool_)
    for node in fleet.nodes.values():
        labels = node.inventory.labels
        good[fleet.node_names.find(node.name)] = all(labels.get(k) == v for k, v in shape.labels)
    return good[fleet.node]
