"""The processors of a node as one device: shared by thousandths, and no accelerator visible."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime


@dataclass(frozen=True, slots=True)
class Cpu:
    name: str = "cpu"
    runtimes: frozenset[Runtime] = frozenset({Runtime.CPU})
    pci_vendors: tuple[str, ...] = ()
    refused: frozenset[str] = frozenset()
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = True

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ""}

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        return 0.0
