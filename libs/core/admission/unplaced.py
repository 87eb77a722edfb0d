"""Why the placer finds no place with every device free, for jobs whose every field is all right by itself.

Each answer names the field whose change helps, and a fix that the placer was asked about where that is possible.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from libs.core.accelerators import catalog
from libs.core.accelerators.vendors import tpu_boxes
from libs.core.admission.fleet_shape import PATIENT, FleetShape
from libs.core.admission.refusal import Refusal, RefusalCause, refuse
from libs.core.placement.answer import Blocked, BlockReason
from libs.core.placement.search.constraints import candidates, fitting
from libs.core.placement.search.gang import role_shape
from libs.core.placement.search.topology import allowed_levels, spans_at
from libs.core.placement.view import NOBODY
from libs.core.state.levels import beyond, grouped
from libs.core.state.shape import RoleShape, Shape
from schemas.resources import WHOLE_MILLI, Level

_JOB = "job.resources"
_LOOKED_AT = 24
_SHOWN = 2
"""Torus boxes: how many are tried for a fix, and how many of those that fit are told."""


def unplaced(shape: Shape, blocked: Blocked, fleet: FleetShape) -> Iterator[Refusal]:
    """What to change of `shape`, which `blocked` says cannot be placed on the empty pool."""
    if shape.roles:
        yield from _nested(shape, fleet)
    else:
        yield _box(shape, fleet) if shape.torus else _gang(shape, blocked, fleet)


def count_of(devices: int, what: str = "") -> str:
    """A number of devices in words."""
    return _number(devices, f"{what}device")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _nested(shape: Shape, fleet: FleetShape) -> Iterator[Refusal]:
    """Each role by itself, then all in a pool that is one group, then all within the job's level."""
    alone = [refusal for i in range(len(shape.roles)) for refusal in _alone(shape, i, fleet)]
    if alone:
        yield from alone
        return
    sizes = " + ".join(f"{role.min_count}x{role.devices}" for role in shape.roles)
    anywhere = fleet.verdict(replace(shape, required=False))
    if anywhere is None:
        yield refuse(
            RefusalCause.TOPOLOGY, f"{_JOB}.topology.level", shape.level,
            f"even with every device free, no one {shape.level} holds all roles ({sizes} devices)",
            _wider(shape, fleet),
        )  # fmt: skip
        return
    yield refuse(
        RefusalCause.CAPACITY, f"{_JOB}.roles", f"{sizes} devices",
        f"each role fits this pool by itself, all of them do not, even with every device free "
        f"({count_of(anywhere.left)} could serve one of them)",
        "ask for fewer or smaller groups, or give a role other types",
    )  # fmt: skip


def _alone(shape: Shape, position: int, fleet: FleetShape) -> Iterator[Refusal]:
    """One role as if it were the only one, anywhere in the pool."""
    role = shape.roles[position]
    most, largest = _groups(shape, role, fleet)
    if most >= role.min_count and fleet.verdict(_only(shape, role, role.min_count)) is None:
        return
    most = min(most, role.min_count - 1)
    fix = "loosen a demand of this role"
    if most == 0 and largest <= 1 and _boxes_only(role_shape(shape, role), fleet):
        fix = "name other types: chips of a TPU are granted as boxes of a torus, which a role cannot ask for"
    elif most or largest:
        fix = f"ask for at most {_number(most, 'group')}" if most else f"ask for groups of at most {count_of(largest)}"
    within = f", each within one {grouped(role.level).value}" if role.required else ""
    yield refuse(
        RefusalCause.TOPOLOGY if role.required else RefusalCause.CAPACITY, f"{_JOB}.roles.{position}",
        f"{role.name}: {_number(role.min_count, 'group')} of {count_of(role.devices)}",
        f"even with every device free, {_number(most, 'such group') if most else 'no such group'} can be placed"
        f" in this pool: of one model{within}, on nodes that can serve them", fix,
    )  # fmt: skip


def _groups(shape: Shape, role: RoleShape, fleet: FleetShape) -> tuple[int, int]:
    """How many groups of a role, of one model, the pool could hold, and the largest group that it could."""
    view, request = fleet.empty_view(), role_shape(shape, role, role.count)
    mask, _ = candidates(view, request, NOBODY, PATIENT)
    rows, level = np.flatnonzero(mask), allowed_levels(request, PATIENT)[-1]
    most, largest = 0, 0
    for model in np.unique(fleet.fleet.model[rows]).tolist():
        there = np.bincount(spans_at(fleet.fleet, level, rows[fleet.fleet.model[rows] == model], within=level))
        most, largest = max(most, int((there // role.devices).sum())), max(largest, int(there.max()))
    return most, largest


def _only(shape: Shape, role: RoleShape, count: int) -> Shape:
    """`count` groups of one role anywhere in the pool."""
    roles = (replace(role, count=count, min_count=count),)
    return replace(shape, roles=roles, devices=count * role.devices, level=Level.POOL, required=False)


def _box(shape: Shape, fleet: FleetShape) -> Refusal:
    """A torus box that no torus of the pool holds."""
    chips = [
        name for name in fleet.models() if (m := catalog.find_model(name)) and m.model in catalog.tpu_generations()
    ]
    at, value = f"{_JOB}.torus", tpu_boxes.text(shape.torus)
    if not len(fleet.fleet.tori):
        return refuse(
            RefusalCause.TOPOLOGY, at, value, f"this pool has no TPU, and no other device is on a torus; it has "
            f"{', '.join(fleet.models())}", f"leave torus out and set devices to {shape.devices}",
        )  # fmt: skip
    tori = sorted({tpu_boxes.text(sides) for sides in fleet.fleet.torus_shapes.values()})
    boxes = _boxes(shape, fleet)
    return refuse(
        RefusalCause.TOPOLOGY, at, value,
        f"even with every chip free, no slice of this box fits a torus of this pool: {', '.join(chips)} of "
        f"{' and '.join(tori)} chips",
        f"set torus to {' or '.join(map(tpu_boxes.text, boxes))}" if boxes else "name other types, or leave torus out",
    )  # fmt: skip


def _boxes(shape: Shape, fleet: FleetShape) -> list[tuple[int, ...]]:
    """Boxes of about as many chips that the pool's tori could hold, nearest first."""
    largest = max(map(prod, fleet.fleet.torus_shapes.values()), default=0)
    boxes: dict[tuple[int, ...], None] = {}
    for name in shape.types or tuple(fleet.models()):
        known = catalog.find_model(name)
        generation = catalog.tpu_generations().get(known.model) if known else None
        if generation is not None:
            near = tpu_boxes.nearest(generation, min(shape.devices, largest), _LOOKED_AT)
            boxes |= dict.fromkeys(box for box in near if prod(box) <= largest)
    fit = [b for b in boxes if fleet.verdict(replace(shape, torus=b, devices=prod(b), min_devices=0)) is None]
    return sorted(fit, key=lambda b: abs(prod(b) - shape.devices))[:_SHOWN]


def _boxes_only(shape: Shape, fleet: FleetShape) -> bool:
    """Whether every device that could serve `shape` is a chip of a torus."""
    fits = fitting(fleet.empty_view(), replace(shape, devices=1, min_devices=0))
    return bool(fits.any() and (fleet.fleet.torus[np.flatnonzero(fits)] >= 0).all())


def _gang(shape: Shape, blocked: Blocked, fleet: FleetShape) -> Refusal:
    """One kind of device: told by the field whose change alone would help, else by how many there could be."""

    def helps(**changes: object) -> bool:
        return fleet.verdict(replace(shape, **changes)) is None  # type: ignore[arg-type]

    if not shape.whole and helps(milli=WHOLE_MILLI):
        return refuse(
            RefusalCause.TYPE, f"{_JOB}.share_milli", shape.milli, "no acceptable device of this pool can be shared",
            "leave share_milli out, or ask for types that can be shared",
        )  # fmt: skip
    if shape.devices > 1 and _boxes_only(shape, fleet):
        boxes = _boxes(replace(shape, required=False), fleet)
        near = f"set torus to {' or '.join(map(tpu_boxes.text, boxes))}" if boxes else "set torus to a box of chips"
        return refuse(
            RefusalCause.TOPOLOGY, f"{_JOB}.torus", "[]",
            f"all that could serve it in this pool are TPU chips, and {shape.devices} chips are a box of a torus",
            f"{near} instead of devices",
        )  # fmt: skip
    if shape.required and helps(required=False):
        return refuse(
            RefusalCause.TOPOLOGY, f"{_JOB}.topology.level", shape.level,
            f"even with every device free, no one {shape.level} can serve {count_of(shape.least)} of it",
            _wider(shape, fleet),
        )  # fmt: skip
    if shape.cpu_milli and helps(cpu_milli=0):
        return refuse(
            RefusalCause.CPU, f"{_JOB}.cpu_milli", shape.cpu_milli,
            f"even with every device free, the nodes have too few processors for {count_of(shape.least)}",
            "ask for fewer processors per device, or for fewer devices",
        )  # fmt: skip
    if shape.host_mib and helps(host_mib=0):
        return refuse(
            RefusalCause.HOST_MEMORY, f"{_JOB}.host_memory_mib", shape.host_mib,
            f"even with every device free, the nodes have too little host memory for {count_of(shape.least)}",
            "ask for less host memory per device, or for fewer devices",
        )  # fmt: skip
    most = _most(shape.least - 1, lambda n: helps(devices=n, min_devices=0))
    power = any(reason is BlockReason.POWER for reason, _ in blocked.removed)
    why = " (racks have power caps: rack_power_w)" if power else ""
    return refuse(
        RefusalCause.CAPACITY, f"{_JOB}.devices", shape.devices,
        f"even with every device free, this pool can serve {count_of(most)} of such a job{why}",
        f"ask for at most {count_of(most)}" if most
        else "name types that take less power, or have an operator raise the cap" if power else "loosen a demand",
    )  # fmt: skip


def _wider(shape: Shape, fleet: FleetShape) -> str:
    """The nearest wider level that would do."""
    fits = (level for level in beyond(shape.level) if fleet.verdict(replace(shape, level=level)) is None)
    return f"set topology.level to {next(fits, Level.POOL).value}, or policy to preferred, or ask for fewer devices"


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits, by bisection; 0 when none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
