"""Kinds of device by name, and how much of a whole accelerator one device of a kind is.

A kind is a model (`H100`), or a model and a MIG profile (`H100:1g.10gb`): the price book, limits and usage name devices
so. A MIG instance is as much of its board as it has of the board's compute slices: a `1g` slice of seven is a seventh, and
seven of them are exactly one board. Amounts are integers, so nothing is rounded before it is shown: a thousandth of an
accelerator is `GRAINS` grains, and 840 is divisible by every number of slices from 1 to 8.

Where the facts come from: `mig_boards.GEOMETRIES`, by way of the catalogue's entry for the model. A profile that the table
does not have counts by the number before its `g` (NVIDIA's MIG guide: that is its compute slices) of the board that its
model has. An instance of a model without any known board counts as a whole accelerator: too much rather than too little.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from libs.core.accelerators.catalog import catalog, find_model, models
from libs.core.accelerators.mig_boards import GEOMETRIES, Geometry
from libs.core.accelerators.spelling import meant
from schemas.resources import ANY_ACCELERATOR, NAMED_ONLY, DeviceKind, kind_of, parts_of

GRAINS = 840
"""Grains in a thousandth of an accelerator: the least common multiple of 1 to 8, the slices that a board may have."""
_SLICES = re.compile(r"(\d+)g\.")


@lru_cache(maxsize=4096)
def weight(key: str, kind: str) -> int:
    """Grains that a thousandth of a device of `kind` counts against a limit on `key`; 0: it does not count.

    A limit counts what its key names: `*` whole accelerators (a CPU is none), a model its boards (a slice is its part of
    one), a model with a profile its instances.
    """
    model, profile = parts_of(kind)
    if key == kind:
        return GRAINS
    if key == model or (key == ANY_ACCELERATOR and not is_cpu(model)):
        slices, of = _slices(model, profile)
        return GRAINS * slices // of
    return 0


def grains(key: str, held: Mapping[str, int]) -> int:
    """What `held` (kind -> thousandths of devices) counts against a limit on `key`, grains."""
    return sum(amount * weight(key, kind) for kind, amount in held.items())


def counted_milli(key: str, held: Mapping[str, int]) -> int:
    """What `held` counts against a limit on `key`, thousandths of what it names, rounded up: for people, not for limits."""
    return -(-grains(key, held) // GRAINS)


def accelerators_milli(held: Mapping[str, int]) -> int:
    """`held` (kind -> thousandths of devices) in thousandths of whole accelerators, rounded up."""
    return counted_milli(ANY_ACCELERATOR, held)


@lru_cache(maxsize=4096)
def is_cpu(model: str) -> bool:
    """Whether devices of this model are processors, which count as no accelerator."""
    known = find_model(model)
    return known is not None and known.kind is DeviceKind.CPU


@lru_cache(maxsize=4096)
def named_only(model: str) -> bool:
    """Whether devices of this model go only to requests that name it."""
    known = find_model(model)
    return known is not None and known.kind in NAMED_ONLY


@lru_cache(maxsize=4096)
def catalogued(kind: str) -> str:
    """`kind` with its model as the catalogue spells it: `v5e` for `TPU-v5e`; unchanged when the catalogue has none."""
    model, profile = parts_of(kind)
    known = find_model(model)
    return kind if known is None else kind_of(known.model, profile)


def problem_with(key: str, offered: Iterable[str] = ()) -> str:
    """What is wrong with `key` as the key of a limit, and the fix; empty when nothing is.

    Args:
        offered: kinds that the pool has, besides those that the catalogue knows.
    """
    model, profile = parts_of(key)
    kinds = {parts_of(kind) for kind in offered}
    names = models() | {name for name, _ in kinds}
    if model not in names:
        return f"no such device type: {meant(model, names)}a type is a model such as H100, A100 or CPU"
    profiles = {name for geometry in _geometries(model) for name in (p.name for p in geometry.profiles)}
    profiles |= {name for of, name in kinds if of == model and name}
    if ":" in key and profile not in profiles:
        there = f"{model} has {', '.join(sorted(profiles))}" if profiles else f"{model} has none: leave the profile out"
        return f"no such MIG profile: {meant(profile, profiles)}{there}"
    return ""


def _slices(model: str, profile: str) -> tuple[int, int]:
    """Compute slices of one device, and of its board; (1, 1) for a whole device."""
    boards = _geometries(model)
    if not profile or not boards:
        return 1, 1
    for board in boards:
        for known in board.profiles:
            if known.name == profile:
                return known.compute_slices, board.compute
    named, whole = _SLICES.match(profile), max(board.compute for board in boards)
    return (min(int(named[1]), whole), whole) if named else (1, 1)


@cache
def _geometries(model: str) -> tuple[Geometry, ...]:
    """Of all forms of a model."""
    known = find_model(model)
    name = known.model if known is not None else model
    keys = dict.fromkeys(a.mig for a in catalog().values() if a.model == name and a.mig in GEOMETRIES)
    return tuple(GEOMETRIES[key] for key in keys)
