"""FPGA cards (AMD Alveo): the whole card with the shell on it. No variable hides a card: its device nodes do.

Source: Xilinx FPGA_as_a_Service (device plugin): one container has the whole card, there is no slicing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime


@dataclass(frozen=True, slots=True)
class Fpga:
    name: str = "fpga"
    runtimes: frozenset[Runtime] = frozenset({Runtime.XRT})
    pci_vendors: tuple[str, ...] = ("10ee",)
    refused: frozenset[str] = frozenset()
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = False

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        return {}

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.is_whole(wanted, model, "a card has one bitstream")
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        return base.link_or_host(model, linked)
