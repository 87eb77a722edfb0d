"""MIG boards: their legal layouts, and which instance a request takes so that large profiles stay possible."""

from libs.core.accelerators.mig_boards import Geometry
from libs.core.placement.mig.layouts import (
    Instance,
    Layout,
    ProfileDemand,
    best_layout,
    fits,
    geometry_of,
    instance_cost,
    layouts,
    legal,
    potential,
)

__all__ = [
    "Geometry",
    "Instance",
    "Layout",
    "ProfileDemand",
    "best_layout",
    "fits",
    "geometry_of",
    "instance_cost",
    "layouts",
    "legal",
    "potential",
]  # fmt: skip
