"""Intel Gaudi: whole, all-to-all within a node over Ethernet on the chip.

HABANA_VISIBLE_MODULES takes module ids, which are the `index` of a Gaudi device in Baton. Sources: Ray's hpu.py, Habana's
documentation; the PCI vendor id is general knowledge; three of 24 ports join each pair of the eight in a node (21 in, 3 out).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libs.core.accelerators.catalog import Accelerator
from libs.core.accelerators.vendors import base
from libs.core.accelerators.vendors.base import Granted, RequestProblem
from schemas.resources import Resources, Runtime


@dataclass(frozen=True, slots=True)
class Intel:
    name: str = "intel"
    runtimes: frozenset[Runtime] = frozenset({Runtime.SYNAPSE})
    pci_vendors: tuple[str, ...] = ("1da3",)
    refused: frozenset[str] = frozenset(
        {"HABANA_VISIBLE_MODULES", "HABANA_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"}
    )
    refused_prefixes: tuple[str, ...] = ()
    sharable: bool = False

    def visibility(self, granted: Sequence[Granted]) -> Mapping[str, str]:
        return {"HABANA_VISIBLE_MODULES": base.indices(granted)}

    def check(self, wanted: Resources, model: Accelerator) -> Iterator[RequestProblem]:
        yield from base.is_whole(wanted, model, "one process owns a Gaudi")
        yield from base.has_no_mig(wanted, model)
        yield from base.has_no_torus(wanted, model)

    def link_gb_s(self, model: Accelerator, linked: bool) -> float:
        return base.link_or_host(model, linked)
