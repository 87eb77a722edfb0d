"""For whom devices are kept."""

import numpy as np

from libs.core.placement.search.gang import usable_of
from libs.core.scheduling.order import is_due, is_due_alone
from libs.core.scheduling.policy import Policy
from libs.core.state.fleet import Fleet
from libs.core.state.job import Job
from libs.core.state.shape import Shape
from schemas.resources import WHOLE_MILLI


class PartedDevices:
    """Devices of which a part is taken and a part is free, as of now. A job that wants more than is left of one is overtaken
    there by each job behind it that wants less."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        free = fleet.free_milli
        self._rows = np.flatnonzero((free > 0) & (free < WHOLE_MILLI) & fleet.up)
        self._serve: dict[Shape, bool] = {}

    def __bool__(self) -> bool:
        return bool(len(self._rows))

    def serve(self, shape: Shape) -> bool:
        """Whether one of them could run a device of `shape`, if nothing else did."""
        if not len(self._rows):
            return False
        known = self._serve.get(shape)
        if known is None:
            known = self._serve[shape] = bool(usable_of(self._fleet, shape, self._rows).any())
        return known


def is_kept_for(job: Job, t_us: int, policy: Policy, parted: PartedDevices) -> bool:
    """Whether devices are kept for the job while it does not fit: it is a gang whose reservation is due, or it wants one device
    and has waited as long, where others take parts of such devices."""
    return is_due(job, t_us, policy) or (is_due_alone(job, t_us, policy) and parted.serve(job.shape))
