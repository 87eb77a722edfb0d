"""What is known of each accelerator model: data.json, typed, and the many names of one model.

The file was made from shared/reference/accelerators.json; its `units` say the units and its `sources` where each row comes
from. What is unknown is None or 0 there and here, never guessed. Nothing in it is a decision: prices are indicative (the
bill uses deploy/prices.yaml), peaks are peaks (what jobs reach is measured), memory is what the label says (what a node
offers is what its driver tells).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from schemas.resources import DeviceKind, Precision, Runtime


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What joins the accelerators of a node, or of a rack or torus. No link: `type` is empty and PCIe carries all."""

    type: str = ""
    gb_s: float = 0
    """Both directions of all links of one accelerator, GB/s."""
    pair_gb_s: float = 0
    """One way between two neighbours, GB/s; 0 when unknown."""
    reach: str = ""
    """How far it goes: pair (a bridge), node, rack, torus, or host (to its own CPU only)."""


@dataclass(frozen=True, slots=True)
class ListPrice:
    """Indicative, on demand: USD per device-hour, and the day it was seen."""

    low: float | None
    high: float | None
    as_of: str


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One model in one form. `model` is what jobs ask for; several forms (SXM, PCIe, NVL) may answer to it."""

    name: str
    model: str
    vendor: str
    kind: DeviceKind
    runtime: Runtime
    aliases: tuple[str, ...]
    pci_ids: tuple[str, ...]
    """PCI device ids, four hexadecimal digits; the vendor's own id is its plugin's."""
    memory_gib: float
    bandwidth_gb_s: float | None
    tflops: Mapping[Precision, float]
    """Dense peak per number format, TFLOPS (TOPS for integers). A format that it lacks is not in it."""
    tdp_w: float | None
    link: LinkFacts
    host_gb_s: float | None
    """To its host, one way, GB/s."""
    mig: str
    """Key into libs.core.accelerators.mig_boards; empty when it has no MIG."""
    partition_modes: Mapping[str, int]
    """AMD compute partition modes: devices that one board becomes."""
    visible_cores: int | None
    """AWS: cores per chip that a process counts, at the default logical core setting."""
    price: ListPrice | None
    unverified: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TpuGeneration:
    """Which slices a TPU generation offers. Sides are chips."""

    name: str
    dims: int
    pod_chips: int
    chips_per_host: tuple[int, ...]
    boxes: tuple[tuple[int, ...], ...]
    """Legal boxes that are smaller than a cube or, for a 2D torus, all of them."""
    cubes: int
    """Beyond them: boxes of cubes (sides that are multiples of 4), at most so many cubes; 0: none."""
    any_order: bool
    """Whether sides may be named in any order; else ascending."""


CPU = Accelerator(
    "CPU", "CPU", "cpu", DeviceKind.CPU, Runtime.CPU, (), (), 0, None, MappingProxyType({}), None, LinkFacts(), None, "",
    MappingProxyType({}), None, None, (), (),
)  # fmt: skip
"""The processors of a node, as one device: what it has is measured."""


@cache
def catalog() -> Mapping[str, Accelerator]:
    """All accelerators by name."""
    rows = (_accelerator(row) for row in _data()["accelerators"])
    return MappingProxyType({a.name: a for a in (*rows, CPU)})


@cache
def tpu_generations() -> Mapping[str, TpuGeneration]:
    """TPU generations by model name."""
    return MappingProxyType({name: _generation(name, row) for name, row in _data()["tpu"].items()})


@cache
def models() -> frozenset[str]:
    """The names that jobs may ask for."""
    return frozenset(a.model for a in catalog().values())


@lru_cache(maxsize=4096)
def find_model(name: str) -> Accelerator | None:
    """The accelerator of a name: a driver's ("NVIDIA H100 80GB HBM3"), a shop's or a job's ("H100"); None if unknown.

    Case, spaces, dashes and underscores don't matter. A short name that several forms share means the commonest: the
    SXM board, and for A100 the one with 80 GB.
    """
    return _names().get(_plain(name))


def find_pci(vendor: str, device_id: str) -> Accelerator | None:
    """The accelerator of `vendor` with this PCI device id (hexadecimal, with or without 0x); None if unknown."""
    plain = device_id.lower().removeprefix("0x")
    return next((a for a in catalog().values() if a.vendor == vendor and plain in a.pci_ids), None)


@cache
def _names() -> Mapping[str, Accelerator]:
    """Plain name -> accelerator. Names go before models: `H100` is a form's own name, and the model of three."""
    out: dict[str, Accelerator] = {}
    for names in (lambda a: (a.name,), lambda a: a.aliases, lambda a: (a.model,)):
        for accelerator in catalog().values():
            for name in names(accelerator):
                out.setdefault(_plain(name), accelerator)
    return MappingProxyType(out)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


@cache
def _data() -> dict[str, Any]:
    """Package data, which is as fixed as the code beside it."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath("data.json").read_text(encoding="utf-8"))
    return loaded


def _accelerator(row: dict[str, Any]) -> Accelerator:
    return Accelerator(
        name=row["name"],
        model=row["model"],
        vendor=row["vendor"],
        kind=DeviceKind(row["kind"]),
        runtime=Runtime(row["runtime"]),
        aliases=tuple(row["aliases"]),
        pci_ids=tuple(row["pci_ids"]),
        memory_gib=row["memory_gib"],
        bandwidth_gb_s=row["bandwidth_gb_s"],
        tflops=MappingProxyType({Precision(name): value for name, value in row["tflops"].items()}),
        tdp_w=row["tdp_w"],
        link=LinkFacts(**row["link"]),
        host_gb_s=row["host_gb_s"],
        mig=row["mig"],
        partition_modes=MappingProxyType(row["partition_modes"]),
        visible_cores=row["visible_cores"],
        price=ListPrice(**row["price"]) if row["price"] else None,
        unverified=tuple(row["unverified"]),
        sources=tuple(row["sources"]),
    )


def _generation(name: str, row: dict[str, Any]) -> TpuGeneration:
    return TpuGeneration(
        name=name,
        dims=row["dims"],
        pod_chips=row["pod_chips"],
        chips_per_host=tuple(row["chips_per_host"]),
        boxes=tuple(map(tuple, row["boxes"])),
        cubes=row["cubes"],
        any_order=row["any_order"],
    )
