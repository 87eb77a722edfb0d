"""What Baton must know of a vendor to find, share, isolate and refuse: the seam, and the rules that most vendors share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.core.accelerators.catalog import Accelerator
from schemas.resources import WHOLE_MILLI, Device, Resources, Runtime


@dataclass(frozen=True, slots=True)
class Granted:
    """A device, or a share of one, that a job's process is to see. `milli` of its compute, `memory_mib` of its memory."""

    device: Device
    milli: int = WHOLE_MILLI
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class RequestProblem:
    """Why a request can never be served by a model: the field of `Resources`, its value, and what to write instead."""

    field: str
    value: str
    problem: str
    fix: str


class Vendor(Protocol):
    """One vendor's devices. Pure: nothing here touches a machine; device layers of libs.adapters.devices do."""

    @property
    def name(self) -> str:
        """As in the catalogue's `vendor`."""

    @property
    def runtimes(self) -> frozenset[Runtime]:
        """The programming interfaces of its devices."""

    @property
    def pci_vendors(self) -> tuple[str, ...]:
        """PCI vendor ids, four hexadecimal digits."""

    @property
    def refused(self) -> frozenset[str]:
        """Environment variables that choose its devices: a job may not set them."""

    @property
    def refused_prefixes(self) -> tuple[str, ...]:
        """As `refused`, by how names begin."""

    @property
    def sharable(self) -> bool:
        """Whether several jobs may hold fractions of one device."""

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        """The variables that show a process exactly the devices `granted`, of one node, in rank order."""

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        """What makes `wanted` impossible on `model`, whatever the pool has."""

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        """One way between two devices of a node, GB/s; `linked`: by the vendor's own link. 0 when unknown."""


def indices(granted: Sequence[Granted]) -> str:
    """Indices on the node, in rank order, e.g. "3,0"."""
    return ",".join(str(g.device.index) for g in granted)


def is_whole(wanted: Resources, model: Accelerator, why: str) -> Iterator[RequestProblem]:
    """A fraction of the device cannot be granted."""
    if wanted.share_milli < WHOLE_MILLI:
        yield RequestProblem(
            "share_milli", str(wanted.share_milli), f"{model.model} is granted whole: {why}",
            "leave share_milli out, or ask for types that can be shared",
        )  # fmt: skip


def has_no_mig(wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
    if wanted.mig_profile and not model.mig:
        yield RequestProblem(
            "mig_profile", wanted.mig_profile, f"{model.model} has no MIG",
            f"leave mig_profile out, or take {model.model} out of types",
        )  # fmt: skip


def has_no_torus(wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
    if wanted.torus:
        box = f"[{', '.join(map(str, wanted.torus))}]"
        yield RequestProblem(
            "torus", box, f"{model.model} is on no torus: only TPU slices are boxes of one",
            f"leave torus out and set devices to {wanted.devices}, or take {model.model} out of types",
        )  # fmt: skip


def link_or_host(model: Accelerator, linked: bool) -> float:
    """The vendor's link where it joins devices of a node, else PCIe."""
    if linked and model.link.pair_gb_s and model.link.reach != "host":
        return model.link.pair_gb_s
    return model.host_gb_s or 0.0
