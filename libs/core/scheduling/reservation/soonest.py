"""Where a job will fit soonest, if nobody behind it takes what comes free there."""

import numpy as np
import numpy.typing as npt

from libs.core.placement.search.gang import usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import NOBODY, Context, View, host_at_most, memory_of
from libs.core.state.fleet import NEVER_US, Bools, Fleet, Ints
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI

_NONE: Ints = np.zeros(0, dtype=np.int64)
_ROUNDED = 1e-6
"""Counts of devices are sums of fractions."""

Floats = npt.NDArray[np.float64]


def reserve(
    view: View, shape: Shape, context: Context = Context(), beside: View | None = None, until_us: int = 0
) -> Ints:
    """The devices where `shape` will fit soonest: their rows, none when it can never fit. `beside`: what is free when all jobs
    have ended but those that it must not count on; only devices with room there are kept. `until_us`: what is given back by
    then is as good as free.

    Soonest is guessed as: in the nearest level that can hold the gang (or the least of an elastic one) at all, the group
    with the most free devices now; in it the freest nodes that suffice. How roles nest is not looked at. Devices that are held
    for a job go to that job, so none of them is kept. Of single devices it is the one of which the least is lacking.
    """
    fleet = view.fleet
    mask = usable(view, shape) & ~view.blocked & (view.held == NOBODY)
    if beside is not None:
        mask &= beside.free_milli >= shape.milli
    rows = np.flatnonzero(mask)
    each = host_at_most(view.fleet, rows, shape)
    if beside is not None:
        node = fleet.node[rows]
        room = (beside.free_cpu[node] >= each[0]) & (beside.free_host[node] >= each[1])
        rows, each = rows[room], (each[0][room], each[1][room])
    end_us = fleet.end_us[rows]
    free = (view.free_milli[rows] == WHOLE_MILLI) | ((end_us > 0) & (end_us <= until_us))
    if shape.devices == 1:
        return _nearest_to_free(view, shape, rows, free, each)
    counts = _served(fleet, rows, each, beside) if not shape.roles else np.ones(len(rows))
    levels = allowed_levels(shape, context)
    for level in levels:
        groups = spans_at(fleet, level, rows, within=levels[-1])
        enough = np.bincount(groups, weights=counts) > shape.least - _ROUNDED
        if not enough.any():
            continue
        inside = groups == int(np.argmax(np.where(enough, np.bincount(groups, weights=free), -1)))
        capacity = np.bincount(fleet.node[rows[inside]], weights=counts[inside])
        members = np.flatnonzero(capacity)
        free_there = np.bincount(fleet.node[rows[inside]], weights=free[inside])[members]
        members = members[np.argsort(-free_there, kind="stable")]
        needed = int(np.searchsorted(np.cumsum(capacity[members]), shape.least - _ROUNDED)) + 1
        kept: Ints = rows[inside & np.isin(fleet.node[rows], members[:needed])]
        return kept
    return _NONE


def _served(fleet: Fleet, rows: Ints, each: tuple[Ints, Ints], beside: View | None) -> Floats:
    """As how many devices each of `rows` counts, shape (n,): 1, or less where its node has too few processors or too little
    memory for all of them."""
    counts = np.ones(len(rows))
    node = fleet.node[rows]
    has = (fleet.cpu_milli, fleet.host_mib) if beside is None else (beside.free_cpu, beside.free_host)
    for need, total in zip(each, has, strict=True):
        if len(rows) and (most := int(need.max())):
            there = np.bincount(node)
            if (total[: len(there)] < there * most).any():
                np.minimum(counts, total[node] // np.maximum(1, need) / there[node], out=counts, where=need > 0)
    return counts


def _nearest_to_free(view: View, shape: Shape, rows: Ints, free: Bools, each: tuple[Ints, Ints]) -> Ints:
    """The one of `rows` (shape (1,)) of which the least is lacking, where each part of a request counts by the part of it that
    is there: what is there only grows while it is kept, so that a job is never put back by what comes free elsewhere. Of equal
    ones, that which is given back first, as far as is known."""
    if not len(rows):
        return _NONE
    node, need_mib = view.fleet.node[rows], memory_of(view.fleet, rows, shape)
    there = np.where(free, 1.0, view.free_milli[rows] / shape.milli)
    for need, has in ((need_mib, view.free_mib[rows]), (each[0], view.free_cpu[node]), (each[1], view.free_host[node])):
        np.minimum(there, has / np.maximum(1, need), out=there, where=need > 0)
    end_us = view.fleet.end_us[rows]
    return rows[np.lexsort((np.where(end_us > 0, end_us, NEVER_US), -np.clip(there, 0.0, 1.0)))[:1]]
