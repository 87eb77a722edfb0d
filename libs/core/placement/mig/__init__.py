"""MIG boards: their legal layouts, and which instance a request takes so that large profiles stay possible."""

from libs.core.accelerators.mig_boards import Geometry
from libs.core.placement.mig.layouts import (
    Instance,
    Layout,
    ProfileDemand,
    best_layout,
    choose_start,
    fits,
    geometry_of,
    instance_cost,
    layouts,
    legal,
    maximal_layouts,
    potential,
)

__all__ = [
    "Geometry",
    "Instance",
    "Layout",
    "ProfileDemand",
    "best_layout",
    "choose_start",
    "fits",
    "geometry_of",
    "instance_cost",
    "layouts",
    "legal",
    "maximal_layouts",
    "potential",
]  # fmt: skip
