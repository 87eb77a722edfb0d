"""What each device of a job, or of one of its roles, must be, as admission compares it with a pool."""

from dataclasses import dataclass

from libs.core.admission.capacity import Need
from libs.core.admission.demand import Demand
from schemas.jobs import JobSpec
from schemas.resources import WHOLE_MILLI, Resources

JOB = "job.resources"
_OWN = ("types", "memory_mib", "cpu_milli", "host_memory_mib")
"""What a role may ask for itself; 0 and empty mean as the job."""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What each device of a job, or of one of its roles, must be. `r` is the job's request; a role's has the values that
    the role gives itself (`own`, told by `path`) in place of the job's."""

    r: Resources
    memory_mib: int
    path: str = JOB
    own: frozenset[str] = frozenset()

    def at(self, field: str) -> str:
        """The path of a field: the role's own, or the job's."""
        return f"{self.path if field in self.own else JOB}.{field}"

    def need(self, job: JobSpec) -> Need:
        r = self.r
        return Need(
            r.types, r.mig_profile, self.memory_mib, frozenset(r.labels.items()), job.simulation is not None,
            r.runtime.value if r.runtime else "", r.precision.value if r.precision else "",
            r.cpu_milli, r.host_memory_mib, r.share_milli == WHOLE_MILLI,
        )  # fmt: skip


def with_demand(r: Resources, demand: Demand) -> Resources:
    """`r` with the memory that the job's model needs: a role that asks for less of its own needs it all the same."""
    need = demand.estimate.total_mib if demand.estimate else 0
    roles = tuple(
        role.model_copy(update={"memory_mib": need}) if 0 < role.memory_mib < need else role for role in r.roles
    )
    return r.model_copy(update={"memory_mib": demand.memory_mib, "roles": roles})


def device_requests(job: JobSpec, demand: Demand) -> list[DeviceRequest]:
    """One for the job or, when it has roles, one for each: what every role gives itself, the job's value does not bind."""
    r = with_demand(job.resources, demand)
    if not r.roles:
        return [DeviceRequest(job.resources, demand.memory_mib)]
    requests = []
    for i, role in enumerate(r.roles):
        own = {name: value for name in _OWN if (value := getattr(role, name))}
        mine = r.model_copy(update=own | {"topology": role.topology})
        memory_mib = role.memory_mib or demand.memory_mib
        requests.append(DeviceRequest(mine, memory_mib, f"{JOB}.roles.{i}", frozenset(own)))
    return requests
