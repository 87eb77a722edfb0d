"""What services and agents say to each other about a node, outside the ledger.

Heartbeats and desired state are core NATS: they must work when a disk is full, and a lost one is repaired by the next.
"""

from enum import StrEnum

from pydantic import Field

from schemas.base import DeviceId, Fact, JobId, Micros, Name, NodeName
from schemas.jobs import AcceptedSpec, Checkpoint
from schemas.resources import Recut


class Action(StrEnum):
    """What the agent should do with its part of an attempt."""

    RUN = "run"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


class Rank(Fact):
    """One device of the gang on this node, in rank order."""

    rank: int = Field(ge=0)
    device: DeviceId
    epoch: int = Field(ge=1)
    milli: int = Field(ge=1)
    memory_mib: int = Field(ge=0)
    role: str = Field(default="", description="of a nested gang: the role that it serves")
    role_rank: int = Field(default=0, ge=0, description="its place among the devices of its role")


class RoleHosts(Fact):
    """One role of a nested gang: how many devices serve it, and on which nodes."""

    name: str
    devices: int = Field(ge=1)
    nodes: tuple[int, ...] = Field(description="places in the part's `nodes`, in the order of the role's ranks")


class DesiredPart(Fact):
    """This node's part of one attempt: what to run, where, as which ranks; or to save and stop it."""

    job_id: JobId
    attempt: int = Field(ge=1)
    team: Name
    action: Action
    spec: AcceptedSpec
    ranks: tuple[Rank, ...] = Field(min_length=1)
    world_size: int = Field(ge=1, description="devices of the whole gang")
    node_rank: int = Field(ge=0)
    nodes: tuple[NodeName, ...] = Field(description="all nodes of the gang, in rank order; the first is the master")
    roles: tuple[RoleHosts, ...] = Field(default=(), description="of a nested gang: its roles, in the order of ranks")
    resume: Checkpoint | None = None


class DesiredState(Fact):
    """All that should run on a node, as of a ledger sequence. Sent by placement after each commit that changes it.

    An agent ignores a state older than one it has seen, stops what is not in it, and starts what is new.
    """

    pool: Name
    node: NodeName
    incarnation: int = Field(ge=1)
    ledger_seq: int = Field(ge=0)
    parts: tuple[DesiredPart, ...]
    recuts: tuple[Recut, ...] = Field(default=(), description="MIG boards to repartition now")
    withdrawn: tuple[Recut, ...] = Field(
        default=(),
        description="repartitions not to be begun any more; each is answered with what its board is, when it is not being cut",
    )


class DesiredQuery(Fact):
    """An agent asks for a node's desired state: at start, after a reconnect, and every few seconds. It names the
    subject's node and no other."""

    nodes: tuple[NodeName, ...] = Field(max_length=4096)


class DesiredReply(Fact):
    """The desired states that an agent asked for; nodes that placement does not know are left out. Sent by placement."""

    states: tuple[DesiredState, ...]


class Heartbeat(Fact):
    """An agent renews a node's lease (request; telemetry answers `LeaseGranted`). Counts from when it was sent. It names
    the subject's node and no other."""

    nodes: tuple[tuple[NodeName, int], ...] = Field(description="(node, incarnation) pairs")
    lease_s: float = Field(gt=0)


class LeaseGranted(Fact):
    """Telemetry saw the renewal of these nodes."""

    nodes: tuple[NodeName, ...]


class DeviceSample(Fact):
    """One reading of one device."""

    device: DeviceId
    model: str = ""
    utilization_pct: float = Field(ge=0, le=100)
    memory_used_mib: int = Field(ge=0)
    power_w: float = Field(default=0, ge=0)
    temperature_c: float = 0
    ecc_errors: int = Field(default=0, ge=0)
    throttled: bool = False


class NodeSampled(Fact):
    """Readings of a node's devices, every 15 s. Sent by the agent (stream TELEMETRY: on disk, drops the oldest)."""

    node: NodeName
    incarnation: int = Field(ge=1)
    at_us: Micros = Field(description="the node's own clock: for display only")
    devices: tuple[DeviceSample, ...] = Field(max_length=4096)
