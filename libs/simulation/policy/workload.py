"""Rows of a trace as requests, and a fleet as messages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from schemas.ids import job_id
from schemas.inbox import JobAdmitted
from schemas.jobs import JobSpec, RetryPolicy
from schemas.resources import WHOLE_MILLI, Inventory, Level, Resources, Role, Topology, TopologyPolicy

ON_ONE_NODE = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
_ANYWHERE = Topology(level=Level.POOL)


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One job of a workload; times in seconds of the workload."""

    line: int
    key: str
    submit_s: float
    duration_s: float
    devices: int
    share_milli: int = WHOLE_MILLI
    team: str = "replay"
    types: tuple[str, ...] = ()
    priority: int = 0
    name: str = ""
    user: str = ""
    preempts: bool = False
    """Its class may make lower ones give way."""


@dataclass(frozen=True, slots=True)
class FleetSize:
    """What a fleet can hold of a gang."""

    devices: int
    per_node: int
    nodes: int

    @classmethod
    def of(cls, inventories: Sequence[Inventory]) -> "FleetSize":
        counts = [len(inventory.devices) for inventory in inventories]
        return cls(sum(counts), max(counts, default=0), len(counts))

    def holds(self, devices: int) -> bool:
        """Whether the gang fits on the idle fleet, whole nodes first."""
        whole, rest = divmod(devices, self.per_node)
        return whole + bool(rest) <= self.nodes


@lru_cache(maxsize=4096)
def spec_of(devices: int, share_milli: int, types: tuple[str, ...], per_node: int, name: str = "") -> JobSpec:
    """The request: a gang keeps to one node; a larger one takes whole nodes and the rest of one more (consolidated, as the
    published simulators of these traces place it)."""
    roles: tuple[Role, ...] = ()
    if devices > per_node:
        whole, rest = divmod(devices, per_node)
        roles = (Role(name="nodes", count=whole, devices=per_node, topology=ON_ONE_NODE),)
        if rest:
            roles += (Role(name="rest", count=1, devices=rest, topology=ON_ONE_NODE),)
    resources = Resources(
        devices=devices,
        share_milli=share_milli,
        types=types,
        topology=_ANYWHERE if roles else ON_ONE_NODE,
        roles=roles,
    )
    return JobSpec(
        name=name or "simulated",
        resources=resources,
        command=("simulated",),
        retry=RetryPolicy(on_lost=100),
    )


def admitted(row: WorkloadRow, per_node: int, t_us: int) -> JobAdmitted:
    """What admission would send."""
    return JobAdmitted.model_construct(
        job_id=job_id(row.team, row.key),
        team=row.team,
        spec=spec_of(row.devices, row.share_milli, row.types, per_node, row.name),
        spec_hash=f"{row.line}",
        client_key=row.key,
        priority=row.priority,
        preempts=row.preempts,
        latency=_DEFAULTS["latency"],
        submitted_us=t_us,
        user=row.user,
        lease_s=_DEFAULTS["lease_s"],
        longest_grace_s=None,
        cause="",
        policy="",
    )


_DEFAULTS = {name: field.get_default(call_default_factory=True) for name, field in JobAdmitted.model_fields.items()}


def in_order(rows: Iterable[WorkloadRow]) -> list[WorkloadRow]:
    """By the time of submission; of equal ones the earlier line."""
    return sorted(rows, key=lambda row: (row.submit_s, row.line))
