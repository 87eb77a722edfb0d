"""One request against one view: constraints, then the tightest block that holds it.

Constraints are applied in a fixed order, and each counts the devices it removes: that is the explanation when nothing
is left. Then, for each acceptable device model in the job's order:

- one device (or a share of one): best fit. A share goes to the fullest shared device that still holds it, a whole
  device to the node with the fewest free ones, so that whole nodes stay whole for gangs.
- a gang: the smallest level (node, leaf, spine, zone, pool) that has enough. Within it, the group with the fewest free
  devices that suffices; inside a group the emptiest sub-groups first, so that it spans as few of them as possible, and
  for the remainder the tightest one. This is best fit on a tree (cf. HiveD, OSDI '20, buddy cells), without
  the alignment that buddy cells demand.

A gang is of one device model: a mixed one would run at the pace of its slowest device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from libs.core.fleet import Bools, Fleet, Ints
from libs.core.model import Shape
from libs.core.placement.view import NOBODY, View
from schemas.resources import WHOLE_MILLI


class Reason(StrEnum):
    """Why a job cannot be placed now: the constraint that takes out the last devices. Also metric label and event."""

    NO_DEVICES = "no-devices"
    TYPE = "type"
    PROFILE = "mig-profile"
    LABELS = "labels"
    MEMORY = "memory"
    SIMULATION = "simulation"
    HELD = "held"
    RESERVED = "reserved"
    BUSY = "busy"
    TOPOLOGY = "topology"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows of the fleet, in rank order, and the level that the gang spans."""

    rows: Ints
    level: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """The dominant reason, and how many devices each constraint removed, in order of application."""

    reason: Reason
    removed: tuple[tuple[Reason, int], ...]
    left: int
    """Free and fitting devices, fewer than were asked for or too far apart."""


LEVELS = ("node", "leaf", "spine", "zone", "pool")
_NARROW = {"device": "node", "nvlink": "node"}


def find(view: View, shape: Shape, beneficiary: int = NOBODY) -> Placed | Blocked:
    """Where `shape` fits in `view` now.

    Args:
        view: free capacity, arrays of shape (D,).
        shape: the request.
        beneficiary: code of the job in `view.held`, for which held devices are open.
    """
    mask, removed = _candidates(view, shape, beneficiary)
    left = int(np.count_nonzero(mask))
    if left < shape.devices:
        return Blocked(_dominant(removed), removed, left)
    for model in _models(view.fleet, shape, mask):
        rows = np.flatnonzero(mask & (view.fleet.model == model))
        if len(rows) < shape.devices:
            continue
        placed = _single(view, rows) if shape.devices == 1 else _gang(view.fleet, shape, rows)
        if placed is not None:
            return placed
    return Blocked(Reason.TOPOLOGY if shape.required else Reason.BUSY, removed, left)


def fitting(view: View, shape: Shape) -> Bools:
    """Devices (mask of shape (D,)) that `shape` could run on if all were free: the constraints that do not pass."""
    mask = view.fleet.up.copy()
    for _, allowed in _static(view.fleet, shape):
        mask &= allowed
    return mask


def _candidates(view: View, shape: Shape, beneficiary: int) -> tuple[Bools, tuple[tuple[Reason, int], ...]]:
    mask = view.fleet.up.copy()
    removed: list[tuple[Reason, int]] = []
    left = int(np.count_nonzero(mask))
    for reason, allowed in _constraints(view, shape, beneficiary):
        mask &= allowed
        now = int(np.count_nonzero(mask))
        if now != left:
            removed.append((reason, left - now))
        left = now
    return mask, tuple(removed)


def _constraints(view: View, shape: Shape, beneficiary: int) -> Iterator[tuple[Reason, Bools]]:
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


def _dominant(removed: tuple[tuple[Reason, int], ...]) -> Reason:
    """The constraint that removed the most; nothing removed means that the pool is too small."""
    return max(removed, key=lambda r: r[1])[0] if removed else Reason.NO_DEVICES


def _models(fleet: Fleet, shape: Shape, mask: Bools) -> list[int]:
    """Acceptable models, the job's order first; without one the smallest memory first, to keep big devices free."""
    if shape.types:
        return [code for name in shape.types if (code := fleet.models.find(name)) >= 0]
    present = np.flatnonzero(np.bincount(fleet.model[mask])).tolist()
    if len(present) == 1:
        return present
    memory = {m: int(fleet.memory_mib[mask & (fleet.model == m)].min()) for m in present}
    return sorted(present, key=lambda m: (memory[m], fleet.models.names[m]))


def _single(view: View, rows: Ints) -> Placed:
    """A share prefers the device with the least compute left, then either kind the fullest node, then the lowest row."""
    nodes, free_milli = view.fleet.node[rows], view.free_milli[rows]
    whole_on_node = np.bincount(nodes, weights=free_milli == WHOLE_MILLI).astype(np.int64)
    order = (free_milli * (whole_on_node.max() + 1) + whole_on_node[nodes]) * len(view.fleet.up) + rows
    return Placed(rows[[int(np.argmin(order))]], "node")


def _gang(fleet: Fleet, shape: Shape, rows: Ints) -> Placed | None:
    """The tightest group of the narrowest level that holds the gang; None when `required` forbids a wider one."""
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
