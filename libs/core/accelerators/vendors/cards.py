"""Cards that are granted whole: FPGAs (AMD Alveo, with the shell on them) and small inference chips (Hailo, Coral). No variable
hides one from a process: its device nodes do.

Sources: Xilinx FPGA_as_a_Service (device plugin: one container has the whole card, there is no slicing); hardware reference 4.4
for the inference chips (general knowledge, not verified).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime


@dataclass(frozen=True, slots=True)
class WholeCards:
    """One kind of such cards. `why`: why a card is not shared, for people."""

    name: str
    runtimes: frozenset[Runtime]
    pci_vendors: tuple[str, ...]
    why: str
    refused: frozenset[str] = frozenset()
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = False

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        return {}

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.is_whole(wanted, model, self.why)
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        return base.link_or_host(model, linked)


FPGA = WholeCards("fpga", frozenset({Runtime.XRT}), ("10ee",), "a card has one bitstream")
NPU = WholeCards(
    "npu", frozenset({Runtime.HAILO, Runtime.EDGETPU}), ("1ac1",), "it serves one process at a time"
)  # fmt: skip
