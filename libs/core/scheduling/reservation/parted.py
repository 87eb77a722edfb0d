"""For whom devices are kept."""

import numpy as np

from libs.core.placement.context import reserve_host_resources
from libs.core.placement.search.gang import usable_of
from libs.core.placement.view import NOBODY, View, host_at_most
from libs.core.scheduling.order import is_due, is_due_alone
from libs.core.scheduling.policy import Policy
from libs.core.state.fleet import Bools
from libs.core.state.job import Job
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI


class PartedDevices:
    """Devices of which a part is taken and a part is free, as of now, and free ones on nodes of whose processors or memory a
    part is taken. A job that wants more than is left there is overtaken by each job behind it that wants less.

    What is held for a job is taken: of its nodes what it will need, and its devices whole, so that they are none of these."""

    def __init__(self, view: View) -> None:
        """`view`: what the held devices need of their nodes is not free in it."""
        fleet = view.fleet
        self._view = view
        free = view.free_milli
        host = (view.free_cpu < fleet.cpu_milli) | (view.free_host < fleet.host_mib)
        parted = (free > 0) & ((free < WHOLE_MILLI) | host[fleet.node]) & fleet.up & (view.held == NOBODY)
        self._rows = np.flatnonzero(parted)
        self._serve: dict[Shape, bool] = {}

    @classmethod
    def of(cls, state: State) -> "PartedDevices":
        view = View.of(state.fleet)
        reserve_host_resources(state, view)
        return cls(view)

    def __bool__(self) -> bool:
        return bool(len(self._rows))

    def serve(self, shape: Shape) -> bool:
        """Whether one of them could run a device of `shape` if nothing else did, and lacks something for it now."""
        if not len(self._rows):
            return False
        known = self._serve.get(shape)
        if known is None:
            rows = self._rows[self._lacking(shape)]
            known = self._serve[shape] = bool(len(rows)) and bool(usable_of(self._view.fleet, shape, rows).any())
        return known

    def _lacking(self, shape: Shape) -> Bools:
        """Which of the devices have too little free for `shape`, or their nodes have."""
        view, rows = self._view, self._rows
        node, (cpu_milli, host_mib) = view.fleet.node[rows], host_at_most(view.fleet, rows, shape)
        lacking: Bools = view.free_milli[rows] < WHOLE_MILLI
        return lacking | (view.free_cpu[node] < cpu_milli) | (view.free_host[node] < host_mib)


def is_kept_for(job: Job, t_us: int, policy: Policy, parted: PartedDevices) -> bool:
    """Whether devices are kept for the job while it does not fit: it is a gang whose reservation is due, or it wants one device
    and has waited as long, where others take parts of such devices, or of the processors and memory of their nodes."""
    return is_due(job, t_us, policy) or (is_due_alone(job, t_us, policy) and parted.serve(job.shape))
