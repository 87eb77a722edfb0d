"""How fast two devices can talk: GB/s one way, by device model and by the narrowest level that they share.

Fabric and PCIe rates are the catalogue's (`libs.core.accelerators.catalog`: `link.pair_gb_s`, `host_gb_s`). Here stand only
what it does not say: the network rate of one port per device of the model's usual node (`node_shapes` of the reference
collection: HDR 25, NDR 50, XDR 100), the models that it lacks, and the few whose two devices do not talk at the rate of its
row. A fat tree of the SuperPOD kind keeps the port's rate up to the spine. Two figures are assumed, and marked: what is left
of it across spines and across zones.

Per model the rates never grow from level to level, so a narrower level is never the slower choice.
"""

from dataclasses import dataclass

import numpy as np

from libs.core.accelerators.catalog import find_model
from libs.core.state.fleet import Fleet, Ints
from schemas.resources import Level

ACROSS_SPINES = 0.5
"""Share of the port's rate between two spines of a zone. Assumed: a core layer of half the bandwidth."""
ACROSS_ZONES = 0.1
"""Share of the port's rate between two zones. Assumed."""

_PCIE = {3: 15.75, 4: 31.0, 5: 63.0, 6: 121.0}
"""x16, GB/s one way, by generation."""
_EDR, _HDR, _NDR, _XDR = 12.5, 25.0, 50.0, 100.0
"""One InfiniBand port, GB/s one way."""
_SMALL = 6.25
"""A node of PCIe cards: one 100 Gb/s port for two devices (assumed; such nodes have 1 to 4 ports)."""


@dataclass(frozen=True, slots=True)
class Links:
    """Rates of one model, GB/s one way. `fabric`: between two devices of one island; 0: the model has no such links."""

    fabric: float
    node: float
    port: float

    def at(self, level: Level) -> float:
        """The slowest rate between two devices whose narrowest common level is `level`."""
        if level is Level.NVLINK:
            return self.fabric or self.node
        if level is Level.NODE:
            return self.node
        return self.port * _SHARE[level]


_SHARE = {Level.LEAF: 1.0, Level.SPINE: 1.0, Level.ZONE: ACROSS_SPINES, Level.POOL: ACROSS_ZONES}
UNKNOWN = Links(0.0, 0.0, 0.0)

_PORTS = {
    **dict.fromkeys(("V100", "v4", "v5e", "v5p", "v6e", "tpu7x"), _EDR),
    **dict.fromkeys(("A100", "MI250X", "Gaudi2"), _HDR),
    **dict.fromkeys(
        ("H100", "H200", "H20", "GH200", "B200", "GB200", "MI300X", "MI325X", "MI355X", "Gaudi3"), _NDR
    ),
    **dict.fromkeys(("B300", "GB300"), _XDR),
    **dict.fromkeys(
        ("A30", "A40", "RTX-A6000", "T4", "U50", "U280", "A10", "A10G", "L4", "L40", "L40S", "RTX-4090", "RTX-5090",
         "RTX-PRO-6000"), _SMALL
    ),
}  # fmt: skip
"""Models of the catalogue, by the short name that jobs use."""

_FABRIC = {
    "V100": 25.0,  # a hybrid cube mesh, one or two links of 25 per pair (150 only behind the switches of a DGX-2)
    "MI250X": 50.0,  # a mesh of direct links, so a pair has one of them
}
_NODE = {"GH200": _PCIE[5], "GB200": _PCIE[5], "GB300": _PCIE[6]}
"""The C2C link of the catalogue's row reaches its own Grace only."""

_NOT_IN_CATALOGUE = {
    "P100": Links(20.0, _PCIE[3], _EDR),
    "A2": Links(0.0, _PCIE[4], _SMALL),
    "A800": Links(200.0, _PCIE[4], _HDR),
    "H800": Links(200.0, _PCIE[5], _NDR),
    "MI210": Links(50.0, _PCIE[4], _HDR),
    "MI300A": Links(64.0, _PCIE[5], _NDR),
}


def _links(model: str, port: float) -> Links:
    known = find_model(model)
    assert known is not None, f"{model} is not in the catalogue"
    return Links(_FABRIC.get(model, known.link.pair_gb_s), _NODE.get(model, known.host_gb_s or 0.0), port)


LINKS = _NOT_IN_CATALOGUE | {model: _links(model, port) for model, port in _PORTS.items()}
"""Models by the short name that jobs use."""


def link_gb_s(model: str, level: Level) -> float:
    """GB/s one way between two devices of `model` that share `level` and nothing narrower; 0 when unknown."""
    return LINKS.get(model, UNKNOWN).at(level)


def slowest(fleet: Fleet, rows: Ints, level: Level) -> float:
    """GB/s one way of the slowest link between two of the devices `rows` (shape (n,)) whose span is `level`.

    When the gang is not of one island, each device is joined to one of another group of its widest level, so the
    slowest model at that level decides.
    """
    if len(rows) < 2:
        return 0.0
    return min(link_gb_s(fleet.models.names[m], level) for m in np.unique(fleet.model[rows]).tolist())
