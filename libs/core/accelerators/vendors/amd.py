"""AMD Instinct: whole or in partitions, joined by a full mesh of xGMI.

Partition modes split one board into equal devices: compute modes by its XCDs, memory modes (NPS) by its HBM. A device of
CPX/NPS4 has one XCD and a quarter of the memory, which two devices share. Sources: Linux amdgpu aqua_vanjaram.c for the
legal pairs (docs/accelerators.md, whose last column are those that AMD has validated); ROCm k8s-device-plugin.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime


@dataclass(frozen=True, slots=True)
class Amd:
    name: str = "amd"
    runtimes: frozenset[Runtime] = frozenset({Runtime.ROCM})
    pci_vendors: tuple[str, ...] = ("1002",)
    refused: frozenset[str] = frozenset({"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"})
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = False

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        """HIP's variable alone: ROCr's is one level lower, and with both set the indices of one count within the other."""
        return {"HIP_VISIBLE_DEVICES": base.indices(granted)}

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.is_whole(wanted, model, "nothing keeps two processes to their shares of it")
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        """One direct link per pair: two MI300X have 64 GB/s, however many links the board has."""
        return base.link_or_host(model, linked)
