"""How much of what is free the jobs to come could not use: the measure F of FGD (Weng et al., USENIX ATC '23, section 4).

For node n with free compute g_d on its devices and a task m of the mix M (share p_m):

    F_n(m) = sum_d g_d                        if m cannot run on n now (or asks for no accelerator)
           = sum_d g_d [d is too small for m] otherwise
    F_n    = sum_m p_m F_n(m)                 and F = sum_n F_n, all in milli-devices

`fragmentation` is that formula on a fleet. It goes beyond the paper in two points that change nothing on its data: a node
may have devices of several kinds (what a task cannot use for its kind counts as too small), and a gang larger than any
node is judged by the part of it that the largest node would hold. As in the paper, processors count, host memory not.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from libs.core.placement.search.constraints import fitting
from libs.core.placement.view import View
from libs.core.state.fleet import Bools, Ints
from libs.core.state.shape import Shape

Floats = npt.NDArray[np.float64]
WeightedShapes = Sequence[tuple[Shape, float]]
"""Request shapes and their shares of all jobs; the shares add up to 1."""


def fragmentation(view: View, workload: WeightedShapes) -> Floats:
    """F_n of every node, milli-devices, shape (N,): expected free compute that the next job could not use."""
    fleet = view.fleet
    accelerator = fleet.up & ~fleet.cpu
    free = np.where(accelerator, view.free_milli, 0)
    n = len(fleet.leaf)
    total = np.bincount(fleet.node, weights=free, minlength=n)
    largest = int(np.bincount(fleet.node, weights=accelerator, minlength=n).max(initial=0))
    result = np.zeros(n)
    for shape, share in workload:
        usable = accelerator & fitting(view, shape) & (view.free_milli >= shape.milli)
        result += share * (total - _usable(view, shape, usable, free, min(shape.devices, largest)))
    return result


def _usable(view: View, shape: Shape, usable: Bools, free: Ints, devices: int) -> Floats:
    """Free compute that `shape` could use, milli-devices, shape (N,): none where too few devices or processors are."""
    n = len(view.fleet.leaf)
    if devices == 0:
        return np.zeros(n)
    count = np.bincount(view.fleet.node, weights=usable, minlength=n)
    runs = (count >= devices) & (view.free_cpu >= shape.cpu_milli * devices)
    return np.where(runs, np.bincount(view.fleet.node, weights=np.where(usable, free, 0), minlength=n), 0.0)
