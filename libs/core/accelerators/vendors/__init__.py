"""One plugin per vendor. Whoever needs a vendor's fact asks its plugin; no fact about a vendor has a second home.

visibility(granted)      the agent: which variables show a process its devices
REFUSED, REFUSED_PREFIXES  libs.core.admission.environment: which variables a job may not set
problems(resources)      admission: what can never be served, with the field, the value and the fix
sharable(model)          placement: whether a fraction may be granted
"""

from collections.abc import Iterator, Sequence

from libs.core.accelerators.catalog import CPU, find_model, tpu_generations
from libs.core.accelerators.vendors import tpu_boxes
from libs.core.accelerators.vendors.amd import Amd
from libs.core.accelerators.vendors.aws import Aws
from libs.core.accelerators.vendors.base import Granted, RequestProblem, Vendor
from libs.core.accelerators.vendors.cards import FPGA, NPU
from libs.core.accelerators.vendors.cpu import Cpu
from libs.core.accelerators.vendors.google import Google
from libs.core.accelerators.vendors.intel import Intel
from libs.core.accelerators.vendors.nvidia import Nvidia
from schemas.resources import Device, DeviceKind, Resources

__all__ = [
    "REFUSED", "REFUSED_PREFIXES", "VENDORS", "Granted", "RequestProblem", "Vendor", "problems", "sharable", "vendor_named",
    "vendor_of", "visibility",
]  # fmt: skip

VENDORS: tuple[Vendor, ...] = (Nvidia(), Amd(), Google(), Intel(), Aws(), FPGA, NPU, Cpu())

REFUSED: frozenset[str] = frozenset().union(*(v.refused for v in VENDORS))
REFUSED_PREFIXES: tuple[str, ...] = tuple(prefix for v in VENDORS for prefix in v.refused_prefixes)

_BY_NAME = {v.name: v for v in VENDORS}
_BY_RUNTIME = {runtime: v for v in VENDORS for runtime in v.runtimes}
_BY_KIND = {
    DeviceKind.MIG: "nvidia",
    DeviceKind.TPU: "google",
    DeviceKind.FPGA: "fpga",
    DeviceKind.CPU: "cpu",
}


def vendor_named(model: str) -> Vendor | None:
    """The vendor of a device model, by any of its names; None if the model is unknown."""
    known = find_model(model)
    return _BY_NAME[known.vendor] if known else None


def vendor_of(device: Device) -> Vendor:
    """The vendor of a device: by its model, else by its kind where that settles it, else by its runtime."""
    kind = _BY_KIND.get(device.kind)
    return vendor_named(device.model) or (_BY_NAME[kind] if kind else _BY_RUNTIME[device.runtime])


def sharable(model: str) -> bool:
    """Whether fractions of a device of this model may be granted. An unknown model may: its agent offered it so."""
    vendor = vendor_named(model)
    return vendor is None or vendor.sharable


def visibility(granted: Sequence[Granted]) -> dict[str, str]:
    """The variables that show a process exactly the devices `granted` (at least one, of one node), in rank order.

    Processors hide all accelerators, so they come first: accelerators that are granted beside them are seen.
    """
    out: dict[str, str] = {}
    for vendor in sorted(dict.fromkeys(vendor_of(g.device) for g in granted), key=lambda v: v.name != CPU.vendor):
        out |= vendor.visibility([g for g in granted if vendor_of(g.device) == vendor])
    return out


def problems(wanted: Resources) -> Iterator[RequestProblem]:
    """What makes `wanted` impossible on a device type that it names, whatever the pool has.

    Each type must be able to serve it: placement takes any of them. An unknown type is not judged here.
    """
    seen: set[str] = set()
    for problem in _each(wanted):
        if problem.field not in seen:  # one answer per field is enough to act on
            seen.add(problem.field)
            yield problem


def _each(wanted: Resources) -> Iterator[RequestProblem]:
    for name in wanted.types:
        model, vendor = find_model(name), vendor_named(name)
        if model is not None and vendor is not None:
            yield from vendor.check(wanted, model)
    if not wanted.types and wanted.torus and not tpu_boxes.legal_somewhere(wanted.torus):
        generations = [g for g in tpu_generations().values() if g.dims == len(wanted.torus)]
        near = dict.fromkeys(box for g in generations for box in tpu_boxes.nearest(g, wanted.devices, 2))
        fix = " or ".join(map(tpu_boxes.text, near)) or "2 sides (v5e, v6e) or 3 (v4, v5p, tpu7x)"
        yield RequestProblem(
            "torus", tpu_boxes.text(wanted.torus), "no TPU generation has a slice of this box", f"use {fix}"
        )
