"""Where a job will fit soonest, if nobody behind it takes what comes free there."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from libs.core.placement.search.gang import usable
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import NOBODY, Context, View, host_at_most, memory_of
from libs.core.state.fleet import NEVER_US, Bools, Fleet, Ints
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI

_NONE: Ints = np.zeros(0, dtype=np.int64)
_GROUPS = 4
"""Of a level, of which `fits` is asked: those with the most free devices first."""

Fits = Callable[[Ints], Ints]
"""Of these rows those on which a gang fits; none: it does not."""


def reserve(
    view: View,
    shape: Shape,
    context: Context = Context(),
    beside: View | None = None,
    until_us: int = 0,
    *,
    fits: Fits | None = None,
) -> Ints:
    """The devices where `shape` will fit soonest: their rows, none when it can never fit. `beside`: what is free when all jobs
    have ended but those that it must not count on; only devices with room there are kept. `until_us`: what is given back by
    then is as good as free.

    Soonest is guessed as: in the nearest level that can hold the gang (or the least of an elastic one) at all, the group
    with the most free devices of one model now; in it the freest nodes that suffice. A gang may not fit there: its roles are of
    several models, or want devices beside each other, or a leaf has too little power for all of it. So `fits` is asked of these
    nodes, then of twice as many, then of the next group. Devices that are held for a job go to that job, so none of them is
    kept. Of single devices it is the one of which the least is lacking.
    """
    fleet = view.fleet
    mask = usable(view, shape) & ~view.blocked & (view.held == NOBODY)
    if beside is not None:
        mask &= beside.free_milli >= shape.milli
    rows = np.flatnonzero(mask)
    each = host_at_most(view.fleet, rows, shape)
    if beside is not None:
        node = fleet.node[rows]
        has = (beside.free_cpu[node] >= each[0]) & (beside.free_host[node] >= each[1])
        rows, each = rows[has], (each[0][has], each[1][has])
    end_us = fleet.end_us[rows]
    free = (view.free_milli[rows] == WHOLE_MILLI) | ((end_us > 0) & (end_us <= until_us))
    if shape.devices == 1:
        return _nearest_to_free(view, shape, rows, free, each)
    levels = allowed_levels(shape, context)
    for level in levels:
        groups = spans_at(fleet, level, rows, within=levels[-1])
        if not shape.roles:  # the devices of a gang are of one model, and what is kept of two is of no use to it
            groups = groups * len(fleet.models) + fleet.model[rows]
        elif shape.caps:  # what its team may have no more of is of no use to it either
            some = _within_caps(fleet, shape, rows, groups, free)
            rows, groups, free = rows[some], groups[some], free[some]
        group, node, room = _room(fleet, rows, groups, each if not shape.roles else None, beside)
        enough = np.bincount(group, weights=room) >= shape.least
        if not enough.any():
            continue
        free_in = np.where(enough, np.bincount(groups, weights=free), -1)
        for best in [int(np.argmax(free_in))] if fits is None else _best(free_in):
            inside = groups == best
            capacity = np.bincount(node[group == best], weights=room[group == best])
            members = np.flatnonzero(capacity)
            free_there = np.bincount(fleet.node[rows[inside]], weights=free[inside])[members]
            members = members[np.argsort(-free_there, kind="stable")]
            needed = int(np.searchsorted(np.cumsum(capacity[members]), shape.least)) + 1
            for most in _doubling(needed, len(members)):
                kept: Ints = rows[inside & np.isin(fleet.node[rows], members[:most])]
                if fits is None:
                    return kept
                if len(together := fits(kept)):
                    return kept[np.isin(fleet.node[kept], fleet.node[together])]
    return _NONE


def _best(free_in: npt.NDArray[np.float64]) -> list[int]:
    """The groups with the most free devices; -1: none that can hold the gang."""
    found: list[int] = np.argsort(-free_in, kind="stable")[:_GROUPS].tolist()
    return [group for group in found if free_in[group] >= 0]


def _doubling(first: int, last: int) -> Iterator[int]:
    """`first`, twice as many, and so on, to `last`."""
    while first < last:
        yield first
        first *= 2
    yield last


def _within_caps(fleet: Fleet, shape: Shape, rows: Ints, groups: Ints, free: Bools) -> Bools:
    """Which of `rows` (mask of shape (n,)): in each group of a capped model no more than the cap, free ones first."""
    some = np.ones(len(rows), dtype=np.bool_)
    for cap in shape.caps:
        of = np.flatnonzero(some & np.isin(fleet.model[rows], [fleet.models.find(model) for model in cap.models]))
        of = of[np.lexsort((rows[of], ~free[of], groups[of]))]
        first = np.searchsorted(groups[of], groups[of])
        some[of[np.arange(len(of)) - first >= cap.devices]] = False
    return some


def _room(
    fleet: Fleet, rows: Ints, groups: Ints, each: tuple[Ints, Ints] | None, beside: View | None
) -> tuple[Ints, Ints, Ints]:
    """For how many devices of a gang each node has room in each of `groups` (codes, of each of `rows`), where a device takes
    `each` of its processors and memory; as three columns: group, node, devices, of which several lines may be of one node.
    None: it is not looked at what they take."""
    nodes = len(fleet.cpu_milli)
    if each is None or not _scarce(fleet, rows, each, beside):  # all have room: no sorting
        return groups, fleet.node[rows], np.ones(len(rows), dtype=np.int64)
    pairs, place, room = np.unique(groups * nodes + fleet.node[rows], return_inverse=True, return_counts=True)
    group, node = pairs // nodes, pairs % nodes
    for need, total in zip(each, _there(fleet, beside), strict=True):
        if need.any():
            most = np.zeros_like(pairs)
            np.maximum.at(most, place, need)
            np.minimum(room, total[node] // np.maximum(1, most), out=room, where=most > 0)
    return group, node, room


def _there(fleet: Fleet, beside: View | None) -> tuple[Ints, Ints]:
    """Processors and memory of each node that a gang may come to have."""
    return (fleet.cpu_milli, fleet.host_mib) if beside is None else (beside.free_cpu, beside.free_host)


def _scarce(fleet: Fleet, rows: Ints, each: tuple[Ints, Ints], beside: View | None) -> bool:
    """Whether a node may have too few processors, or too little memory, for all of its devices among `rows`."""
    on_node = np.bincount(fleet.node[rows])
    return any(
        bool((on_node * int(need.max(initial=0)) > total[: len(on_node)]).any())
        for need, total in zip(each, _there(fleet, beside), strict=True)
    )


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
