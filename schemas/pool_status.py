"""A pool's figures, nodes and devices. Answered by queries and telemetry."""

from pydantic import Field

from schemas.base import DeviceId, Fact, Micros, Name, Strict
from schemas.nodes import NodeWalls


class PoolStatusQuery(Strict):
    """A pool's figures at a glance: its jobs, devices and latencies (`pool.status`, answered by queries), or its
    teams' quotas and use (`quota.list`, answered by quota_billing)."""


class Quantiles(Fact):
    """Of the last observations, in the unit of the field's name."""

    count: int = Field(ge=0)
    p50: float = 0
    p99: float = 0
    max: float = 0


class SuspendedTeam(Fact):
    """A team that an operator has paused: it submits nothing and is granted nothing, and its questions are answered."""

    team: Name
    since_us: int
    reason: str = ""
    user: str = Field(default="", description="the operator who said it")
    left_us: Micros | None = Field(default=None, description="since when it has left; null: it has not")


MOST_SUSPENDED = 256
"""Teams in one answer."""


class PoolStatus(Fact):
    """How far the pool has come, what it holds, how fast it decides.

    The operator sees the pool. A team sees what the pool has, since it asks for that, and of jobs, of what is held and of waits
    its own share alone.
    """

    pool: Name
    ledger_seq: int
    inbox_seq: int = Field(description="told to a team: 0")
    jobs: dict[str, int] = Field(description="jobs per state; told to a team: its own that have not ended")
    nodes_up: int
    devices: int = Field(description="of nodes that are up, and not in quarantine")
    devices_quarantined: int = Field(
        default=0, description="something that is no job uses them: nobody is granted them"
    )
    milli_used: int = Field(
        description="of all devices that are up; an instance counts as one, see accelerators_used_milli. Told to a team: by "
        "its own jobs"
    )
    milli_total: int
    accelerators_used_milli: int = Field(
        default=0, description="in whole accelerators: an instance is its part of its board, a processor is none"
    )
    accelerators_milli: int = 0
    processors_used_milli: int = Field(default=0, description="of the CPU devices that are up")
    processors_milli: int = 0
    grants: int = Field(description="told to a team: of its jobs that have not ended")
    preemptions: int = Field(description="told to a team: of its jobs that have not ended")
    scheduling_latency_ms: Quantiles = Field(description="inbox arrival of a job that fitted at once, to its grant")
    queue_wait_ms: Quantiles = Field(description="submit to first grant")
    busy: str = Field(default="", description="why the pool takes no submits now, which stream is full; empty: it does")
    team: str = Field(default="", description="whose share the figures are; empty: all of the pool")
    kinds: dict[str, int] = Field(default_factory=dict, description="devices that are up, per kind")
    waiting_devices: int = Field(default=0, ge=0, description="that waiting jobs ask for")
    limit_milli: int | None = Field(default=None, description="the team's quota; null: no such limit")
    limits_by_type: dict[str, int] = Field(default_factory=dict, description="the team's quota per kind")
    suspended: tuple[SuspendedTeam, ...] = Field(
        default=(),
        description=f"told to a team: itself, if it is; to the operator: of all that are the last {MOST_SUSPENDED}, those that "
        "have left after all others",
    )


class NodeListQuery(Strict):
    """The pool's nodes. Answered by telemetry (`node.list`) from the Redis projection and its samples."""


class NodeView(Fact):
    """One node: what it offers, what of it is held (told to a team: by its own jobs), and how long ago it was last heard."""

    node: str
    status: str = Field(
        description="up, maintenance (it was taken out of use), silent (not heard: nothing new there) or lost"
    )
    out_of_use: str = Field(default="", description="why it was taken out of use; told to operators")
    leaf: str
    spine: str
    zone: str
    incarnation: int
    models: dict[str, int] = Field(description="devices per model")
    devices: int
    milli_used: int
    milli_total: int
    utilization_pct: float | None = Field(
        default=None, description="mean of its devices; told to a team: of those that it alone holds"
    )
    heartbeat_age_s: float | None = None
    cpus: int = 0
    memory_mib: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    simulated: bool = False
    walls: NodeWalls | None = Field(
        default=None,
        description="what keeps jobs apart there; none: no processes run there, or its agent has not told yet",
    )
    cleared_seq: int | None = Field(
        default=None,
        description="ledger sequence as of which nothing of a team that has left is kept there; told to operators",
    )


class NodeList(Fact):
    """The pool's nodes. Sent by telemetry as the answer to `NodeListQuery`."""

    nodes: tuple[NodeView, ...]


class DeviceListQuery(Strict):
    """The pool's devices; who holds one is shown to its own team and the operator. Answered by telemetry."""

    node: str = ""


class DeviceView(Fact):
    """One device: how much of it is held, by which jobs, and its newest sample. A team is told what its own jobs hold; the
    sample where no other team's job is on the device."""

    device: DeviceId
    node: str
    index: int
    kind: str
    model: str
    mig_profile: str = Field(default="", description="of a MIG instance; empty: a whole device")
    memory_mib: int
    milli_used: int
    jobs: tuple[str, ...] = ()
    quarantine: str = Field(
        default="", description="who uses it that is no job (told to the operator): nobody is granted it; empty: nobody"
    )
    quarantine_since_us: Micros = Field(
        default=0, description="names the quarantine (told to the operator): when its agent saw it first; 0: none"
    )
    utilization_pct: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class DeviceList(Fact):
    """The pool's devices. Sent by telemetry as the answer to `DeviceListQuery`."""

    devices: tuple[DeviceView, ...]
