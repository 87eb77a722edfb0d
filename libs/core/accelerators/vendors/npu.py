"""Small inference chips: Hailo and Coral. One process at a time; no variable hides them, their device nodes do.

Source: hardware reference 4.4 (general knowledge, not verified).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime


@dataclass(frozen=True, slots=True)
class Npu:
    name: str = "npu"
    runtimes: frozenset[Runtime] = frozenset({Runtime.HAILO, Runtime.EDGETPU})
    pci_vendors: tuple[str, ...] = ("1ac1",)
    refused: frozenset[str] = frozenset()
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = False

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        return {}

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.is_whole(wanted, model, "it serves one process at a time")
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        return base.link_or_host(model, linked)
