"""AMD Instinct: whole or in partitions, joined by a full mesh of xGMI.

Partition modes split one board into equal devices: compute modes by its XCDs, memory modes (NPS) by its HBM. A device of
CPX/NPS4 has one XCD and a quarter of the memory, which two devices share. Sources: Linux amdgpu aqua_vanjaram.c for the
legal pairs; ROCm k8s-device-plugin; AMD's validated bare-metal modes are the last column of docs/accelerators.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime

_NPS = {"SPX": (1,), "DPX": (1, 2), "QPX": (1, 4), "CPX": (1, 4)}
_NPS_MI350 = _NPS | {"QPX": (1, 2, 4), "CPX": (1, 2, 4)}
_MI350 = ("MI355X",)


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


def legal(model: Accelerator, mode: str, nps: int) -> bool:
    """Whether the board can be in compute mode `mode` (SPX, DPX, QPX, CPX) with `nps` memory parts."""
    pairs = _NPS_MI350 if model.model in _MI350 else _NPS
    return mode in model.partition_modes and nps in pairs.get(mode, ())


def modes(model: Accelerator) -> list[tuple[str, int]]:
    """All legal (mode, NPS) pairs of a board, whole first."""
    return [(mode, nps) for mode in model.partition_modes for nps in (1, 2, 4) if legal(model, mode, nps)]


def partition_memory_gib(model: Accelerator, mode: str, nps: int) -> float:
    """What one device of a partitioned board can count on, GiB: its part of the memory part that it lies in.

    Raises ValueError naming the pair when it is not legal.
    """
    if not legal(model, mode, nps):
        allowed = ", ".join(f"{m}/NPS{n}" for m, n in modes(model)) or "none"
        raise ValueError(f"{model.model} has no mode {mode}/NPS{nps}: use one of {allowed}")
    return model.memory_gib / model.partition_modes[mode]
