"""NVIDIA: shared by MPS (compute and memory limits per client), partitioned by MIG, joined by NVLink.

Sources: CUDA_VISIBLE_DEVICES takes indices, GPU uuids and MIG uuids (k8s-device-plugin); MPS limits docs.nvidia.com/deploy/mps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import WHOLE_MILLI, Resources, Runtime

_UUID = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class Nvidia:
    name: str = "nvidia"
    runtimes: frozenset[Runtime] = frozenset({Runtime.CUDA})
    pci_vendors: tuple[str, ...] = ("10de",)
    refused: frozenset[str] = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
    refused_prefixes: tuple[str, ...] = ("NVIDIA_", "CUDA_MPS_")
    sharable: bool = True

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        """Uuids where the driver gave them: indices depend on enumeration order and change when a board is lost.

        `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` (1 to 100) can only lower what the MPS daemon allows; without a daemon it has
        no effect, and the share is what the job keeps to by itself. Whole devices get no such variable.
        """
        visible = ",".join(g.device.id if g.device.id.startswith(_UUID) else str(g.device.index) for g in granted)
        out = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        first = granted[0]
        if first.milli < WHOLE_MILLI:
            out["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, first.milli // 10))
            if first.memory_mib:
                out["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={first.memory_mib}M"
        return out

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        """NVSwitch gives any pair of an island the full rate."""
        return base.link_or_host(model, linked)
