"""How fast two devices can talk: GB/s one way, by device model and by the narrowest level that they share.

Fabric and PCIe rates are the reference collection's (`accelerators.json`: `interconnect.gbs_unidirectional`, or
`per_pair_unidirectional` where a mesh and not a switch joins the devices; `host_link.gbs_unidirectional`), network rates
those of one port per device of the model's usual node (`node_shapes`: HDR 25, NDR 50, XDR 100). A fat tree of the
SuperPOD kind keeps the port's rate up to the spine. Two figures are assumed, and marked: what is left of it across
spines and across zones.

Per model the rates never grow from level to level, so a narrower level is never the slower choice.
"""

from dataclasses import dataclass

import numpy as np

from libs.core.state.fleet import Fleet, Ints

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

    def at(self, level: str) -> float:
        """The slowest rate between two devices whose narrowest common level is `level`."""
        if level == "nvlink":
            return self.fabric or self.node
        if level == "node":
            return self.node
        return self.port * _SHARE[level]


_SHARE = {"leaf": 1.0, "spine": 1.0, "zone": ACROSS_SPINES, "pool": ACROSS_ZONES}
UNKNOWN = Links(0.0, 0.0, 0.0)

LINKS = {
    # V100: a hybrid cube mesh, one or two links of 25 per pair (150 only behind the switches of a DGX-2).
    # A30, A40, RTX-A6000: bridges of two cards.
    "P100": Links(20.0, _PCIE[3], _EDR),
    "V100": Links(25.0, _PCIE[3], _EDR),
    "A30": Links(100.0, _PCIE[4], _SMALL),
    "A40": Links(56.25, _PCIE[4], _SMALL),
    "RTX-A6000": Links(56.25, _PCIE[4], _SMALL),
    **dict.fromkeys(("T4", "U50", "U280"), Links(0.0, _PCIE[3], _SMALL)),
    **dict.fromkeys(("A2", "A10", "A10G", "L4", "L40", "L40S", "RTX-4090"), Links(0.0, _PCIE[4], _SMALL)),
    **dict.fromkeys(("RTX-5090", "RTX-PRO-6000"), Links(0.0, _PCIE[5], _SMALL)),
    # NVSwitch: any pair of an island at the full rate.
    "A100": Links(300.0, _PCIE[4], _HDR),
    "A800": Links(200.0, _PCIE[4], _HDR),
    **dict.fromkeys(("H100", "H200", "H20", "GH200"), Links(450.0, _PCIE[5], _NDR)),
    "H800": Links(200.0, _PCIE[5], _NDR),
    "B200": Links(900.0, _PCIE[5], _NDR),
    "GB200": Links(900.0, _PCIE[5], _NDR),  # NVL72; the C2C link (450) reaches its own Grace only
    "B300": Links(900.0, _PCIE[6], _XDR),
    "GB300": Links(900.0, _PCIE[6], _XDR),
    # xGMI: a mesh of direct links, so a pair has one of them.
    **dict.fromkeys(("MI210", "MI250X"), Links(50.0, _PCIE[4], _HDR)),
    **dict.fromkeys(("MI300X", "MI325X"), Links(64.0, _PCIE[5], _NDR)),
    "MI300A": Links(64.0, _PCIE[5], _NDR),
    "MI355X": Links(76.5, _PCIE[5], _NDR),
    # All-to-all of 8 over 21 of 24 ports: three ports of 12.5 (25) per pair.
    "Gaudi2": Links(37.5, _PCIE[4], _HDR),
    "Gaudi3": Links(75.0, _PCIE[5], _NDR),
    # ICI: one link of the torus, half of its two-way rate divided by the links of a chip.
    "v4": Links(25.0, _PCIE[3], _EDR),
    "v5e": Links(50.0, _PCIE[3], _EDR),
    "v5p": Links(100.0, _PCIE[4], _EDR),
    "v6e": Links(100.0, _PCIE[4], _EDR),
    "tpu7x": Links(100.0, _PCIE[5], _EDR),
}
"""Models by the short name that jobs use."""


def link_gb_s(model: str, level: str) -> float:
    """GB/s one way between two devices of `model` that share `level` and nothing narrower; 0 when unknown."""
    return LINKS.get(model, UNKNOWN).at(level)


def slowest(fleet: Fleet, rows: Ints, level: str) -> float:
    """GB/s one way of the slowest link between two of the devices `rows` (shape (n,)) whose span is `level`.

    When the gang is not of one island, each device is joined to one of another group of its widest level, so the
    slowest model at that level decides.
    """
    if len(rows) < 2:
        return 0.0
    return min(link_gb_s(fleet.models.names[m], level) for m in np.unique(fleet.model[rows]).tolist())
