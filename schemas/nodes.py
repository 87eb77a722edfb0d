"""What services and agents say to each other about a node, outside the ledger.

Heartbeats and desired state are core NATS: they must work when a disk is full, and a lost one is repaired by the next.

Desired state is told in small messages, whatever jobs there are. Placement pushes what a commit changed (`NodeChanged`);
an agent that missed a change asks for all of it (`NodeStateQuery`), which comes in pieces; specs are named by their
digests, and fetched once (`NodeSpecsQuery`). `DesiredState`, everything with every spec in one message, is what agents of
0.1.0 read.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from schemas.base import IN_64_BITS, DeviceId, Fact, JobId, Micros, Name, NodeName
from schemas.clock import BootReading
from schemas.jobs import LEASE_SAYS, NETWORK_SAYS, UNSAID_LEASE_S, Checkpoint, Network
from schemas.known_specs import AcceptedSpec
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


class AttemptPart(Fact):
    """What is told of a node's part of one attempt, whichever way its spec is told."""

    job_id: JobId
    attempt: int = Field(ge=1)
    team: Name
    action: Action
    ranks: tuple[Rank, ...] = Field(min_length=1)
    world_size: int = Field(ge=1, description="devices of the whole gang")
    node_rank: int = Field(ge=0)
    nodes: tuple[NodeName, ...] = Field(description="all nodes of the gang, in rank order; the first is the master")
    roles: tuple[RoleHosts, ...] = Field(default=(), description="of a nested gang: its roles, in the order of ranks")
    resume: Checkpoint | None = None
    lease_s: float = Field(default=UNSAID_LEASE_S, ge=0, description=LEASE_SAYS)
    network: Network = Field(default=Network.HOST, description=NETWORK_SAYS)
    running: bool = Field(
        default=False,
        description="the ledger has the starts of all its attempt's parts: the time limit counts from then",
    )


class DesiredPart(AttemptPart):
    """This node's part of one attempt: what to run, where, as which ranks; or to save and stop it."""

    spec: AcceptedSpec
    started: bool | None = Field(default=None, description="the ledger has its start; null: the sender does not say")


class LiftedQuarantine(Fact):
    """A quarantine that an operator has ended: the agent lets the device be used, whoever else uses it now."""

    device: DeviceId
    since_us: Micros = Field(description="names the quarantine: a later one of the device is not meant")


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
        description="repartitions not to be begun any more; each is answered with what its board is, once nothing is under way",
    )
    lifted: tuple[LiftedQuarantine, ...] = Field(default=(), description="quarantines that an operator has ended")


class DesiredQuery(Fact):
    """An agent asks for a node's desired state: at start, after a reconnect, and every few seconds. It names the
    subject's node and no other."""

    nodes: tuple[NodeName, ...] = Field(max_length=4096)


class DesiredReply(Fact):
    """The desired states that an agent asked for; nodes that placement does not know are left out. Sent by placement."""

    states: tuple[DesiredState, ...]


PIECE_BYTES: Final = 128 * 1024
"""About how large one message of desired state may be; one part alone may be larger, as its grant was."""
SPECS_PER_QUESTION: Final = 64
STATE_ANSWER_S: Final = 2.0
"""So long a node waits for an answer about its state. Who answers gives up before that and says why."""

SpecDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""Names a spec by its content. Only to be compared: what it is the digest of is the sender's affair."""


class ReferencedPart(AttemptPart):
    """A node's part of one attempt, as `DesiredPart`, but with its spec named by `spec`."""

    spec: SpecDigest
    started: bool = Field(default=False, description="the ledger has its start; until then the agent reports it again")


class NodeChanged(Fact):
    """What should run on a node has changed. Sent by placement after each commit that changes it.

    It makes the state of any sequence from `since` on into that of `ledger_seq`. An agent that follows an older one has
    missed something, and asks. So does one that is told of no part with `since` equal to `ledger_seq`: the change is
    larger than a message.
    """

    pool: Name
    node: NodeName
    incarnation: int = Field(ge=1)
    since: int = Field(ge=0)
    ledger_seq: int = Field(ge=0)
    parts: tuple[ReferencedPart, ...] = Field(default=(), description="as they are now; a job has one part on a node")
    gone: tuple[JobId, ...] = Field(default=(), description="jobs that have no part here any more")
    started: tuple[JobId, ...] = Field(default=(), description="jobs whose part's start the ledger has now")
    running: tuple[JobId, ...] = Field(default=(), description="of these, gangs all of whose parts have started now")
    specs: dict[SpecDigest, AcceptedSpec] = Field(
        default_factory=dict, description="of new parts, where they are small; the rest is asked for"
    )
    recuts: tuple[Recut, ...] = Field(default=(), description="all MIG boards to repartition now")
    withdrawn: tuple[Recut, ...] = Field(default=(), description="all repartitions not to be begun any more")
    lifted: tuple[LiftedQuarantine, ...] = Field(default=(), description="all quarantines that an operator has ended")


class NodeStateQuery(Fact):
    """An agent asks for all that should run on its node: at start, when it missed a change, and every few seconds."""

    followed: int = Field(
        default=-1, ge=-1, description="sequence of the state that it has; -1: none, or all is wanted"
    )


class NodeState(Fact):
    """One piece of all that should run on a node. Sent by placement, `pieces` of them on one question.

    `incarnation` is the last life of the node that the ledger knows (0: none) and `up` whether it goes on. An agent whose
    own is not above one that is over must begin a new life above it: its registration would be refused.
    """

    pool: Name
    node: NodeName
    incarnation: int = Field(default=0, ge=0)
    up: bool = False
    ledger_seq: int = Field(ge=0)
    unchanged: bool = Field(default=False, description="it is as in the state that the asker has; no part is listed")
    piece: int = Field(default=1, ge=1)
    pieces: int = Field(default=1, ge=1)
    parts: tuple[ReferencedPart, ...] = ()
    recuts: tuple[Recut, ...] = ()
    withdrawn: tuple[Recut, ...] = ()
    lifted: tuple[LiftedQuarantine, ...] = ()


class NodeSpecsQuery(Fact):
    """An agent asks for specs of its node's parts that it does not have."""

    specs: tuple[SpecDigest, ...] = Field(min_length=1, max_length=SPECS_PER_QUESTION)


class NodeSpecs(Fact):
    """Specs of parts of the node: as many of those asked for as fit into a message, at least one if any part has one."""

    specs: dict[SpecDigest, AcceptedSpec]


TEAMS_PER_QUESTION: Final = 256


class TeamsLeftQuery(Fact):
    """An agent asks which of these teams, of whose jobs it keeps files, have left the pool: at its start, and every ten
    minutes."""

    teams: tuple[Name, ...] = Field(min_length=1, max_length=TEAMS_PER_QUESTION)


class TeamsLeft(Fact):
    """Of the teams that were asked for those that have left, as of a ledger sequence. What of them was begun by then has ended,
    and the agent removes it; what a team begins after it has come back is granted later, and stays. Sent by placement."""

    ledger_seq: int = Field(ge=0)
    left: tuple[Name, ...] = ()


class Heartbeat(Fact):
    """An agent renews a node's lease (request; leases answers `LeaseGranted`). Counts from when it was sent. It names
    the subject's node and no other."""

    nodes: tuple[tuple[NodeName, int], ...] = Field(description="(node, incarnation) pairs")
    lease_s: float = Field(gt=0, description="of the node: no work on it has a longer one, but what is kept")
    reading: BootReading | None = Field(default=None, description="the boot clock of the agent's machine")


class LeaseGranted(Fact):
    """Leases saw the renewal of these nodes."""

    nodes: tuple[NodeName, ...]


class DeviceSample(Fact):
    """One reading of one device."""

    device: DeviceId
    model: str = ""
    utilization_pct: float = Field(ge=0, le=100)
    memory_used_mib: Annotated[int, IN_64_BITS] = Field(ge=0)
    power_w: float = Field(default=0, ge=0)
    temperature_c: float = 0
    ecc_errors: Annotated[int, IN_64_BITS] = Field(default=0, ge=0)
    throttled: bool = False


class NodeWalls(Fact):
    """What keeps jobs apart on a node, as its agent found it at its start."""

    tier: str = Field(pattern=r"^[a-z]{1,16}$", description="full, namespaces or none (docs/jobs-walls.md)")
    lacks: tuple[Annotated[str, StringConstraints(max_length=512)], ...] = Field(
        default=(), max_length=16, description="what is missing there, and why, in words"
    )


class NodeSampled(Fact):
    """Readings of a node's devices, every 15 s. Sent by the agent (stream TELEMETRY: on disk, drops the oldest)."""

    node: NodeName
    incarnation: int = Field(ge=1)
    at_us: Micros = Field(description="the node's own clock: for display only")
    devices: tuple[DeviceSample, ...] = Field(max_length=4096)
    walls: NodeWalls | None = Field(
        default=None, description="around its jobs; none: no processes run there, or not told"
    )
    cleared_seq: Annotated[int, Field(ge=0), IN_64_BITS] | None = Field(
        default=None, description="ledger sequence as of which nothing of a team that has left is kept there"
    )
