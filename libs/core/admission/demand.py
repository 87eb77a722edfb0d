"""The memory that each device of a job must have, and whether the described model can be split over the devices that it may
get."""

from collections.abc import Iterator
from dataclasses import dataclass

from libs.core.accelerators import vram
from libs.core.admission.refusal import Refusal, RefusalCause, refuse
from schemas.jobs import JobSpec
from schemas.model_shape import ModelShape
from schemas.resources import WHOLE_MILLI, Resources


@dataclass(frozen=True, slots=True)
class Demand:
    """Memory per device that the job needs (MiB), and the estimate behind it."""

    memory_mib: int
    estimate: vram.Estimate | None = None
    refusals: tuple[Refusal, ...] = ()


def demand_of(job: JobSpec) -> Demand:
    """What the job asks for or, where it describes its model, what the model needs at least, if that is more. An elastic
    job needs it on the fewest devices, where each holds the most."""
    asked, fewest = job.resources.memory_mib, _least(job.resources)
    if job.model is None:
        return Demand(asked)
    if unsplit := tuple(_unsplit(job.resources, job.model)):
        return Demand(asked, refusals=unsplit)
    try:
        estimate = vram.estimate(job.model, job.resources.devices)
        if (there := vram.estimate(job.model, fewest)).total_mib > estimate.total_mib:
            estimate = there
    except vram.Impossible as e:
        path = f"job.model.{e.field}"
        refusal = refuse(RefusalCause.MODEL, path, getattr(job.model, e.field), e.problem, e.fix)
        return Demand(asked, refusals=(refusal,))
    need = estimate.total_mib
    if job.resources.share_milli < WHOLE_MILLI and 0 < asked < need:
        refusal = refuse(
            RefusalCause.MODEL,
            "job.resources.memory_mib",
            asked,
            f"the share holds {asked} MiB, but the model needs at least {need} MiB: {estimate.text}",
            f"set memory_mib to {need} or more, or leave it out",
        )
        return Demand(asked, estimate, (refusal,))
    return Demand(max(asked, need), estimate)


def _least(r: Resources) -> int:
    """The fewest devices that the job may get."""
    if r.roles:
        return sum((role.min_count or role.count) * role.devices for role in r.roles)
    return r.min_devices or r.devices


def _unsplit(r: Resources, model: ModelShape) -> Iterator[Refusal]:
    """Elastic roles that could leave the job with a number of devices that its model is not split over: each group that
    comes or goes must be whole replicas."""
    split = model.devices_per_replica
    for i, role in enumerate(r.roles):
        if role.devices % split and (role.min_count or role.count) < role.count:
            yield refuse(
                RefusalCause.MODEL,
                f"job.resources.roles.{i}.min_count",
                role.min_count,
                f"each group of {role.name} has {role.devices} devices, and one replica of the model is split over {split}: "
                "with some group counts a replica would be incomplete",
                f"make a group a multiple of {split} devices, or leave min_count out",
            )
