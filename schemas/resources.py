"""What a node offers and what a job asks for, with units.

A *device* is what can be granted: a whole accelerator, or one MIG instance of one. Its compute is 1,000 milli, its
memory is counted in MiB; a *share* of a device takes some of both. A gang asks for `devices` identical ones at once.
"""

from contextlib import suppress
from enum import StrEnum
from itertools import islice
from math import prod
from typing import Annotated, Any

from pydantic import FailFast, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from schemas.base import DeviceId, Fact, NodeName, Strict

WHOLE_MILLI = 1000
"""The compute of one device, in thousandths."""
DEVICE_UNITS = 7000
"""The capacity of one device, in units of which sevenths (MIG) and thousandths (shares) are whole numbers."""
MOST_DEVICES = 9216
"""Devices of one job: the largest TPU pod (tpu7x) has so many chips, and a slice may be all of it."""
MIG_SLICES = 8
"""Memory slices of a MIG board, at the most."""
MOST_MIB = 1_000_000_000
"""Beyond any machine (954 TiB): what is larger is a slip, and would not fit the arrays that placement counts in."""


ANY_ACCELERATOR = "*"
"""Stands for all accelerators together, where limits are told by device type."""

LimitKey = Annotated[str, Field(min_length=1, max_length=97, pattern=r"^[^:*]{1,64}(:[^:]{1,32})?$")]
"""What a limit is on: a device type (`H100`, `CPU`), or a device type and a MIG profile (`H100:1g.10gb`)."""

LimitsByType = Annotated[dict[LimitKey, Annotated[int, Field(ge=0)]], Field(max_length=256)]
"""Thousandths of what each key names: boards of a type (a MIG slice counts as its part of one), instances of a profile."""


def kind_of(model: str, mig_profile: str = "") -> str:
    """A kind of device by name, as limits, usage and the price book write it: `H100`, or `H100:1g.10gb` for MIG instances."""
    return f"{model}:{mig_profile}" if mig_profile else model


def parts_of(kind: str) -> tuple[str, str]:
    """Model and MIG profile of a kind; the profile is empty for whole devices."""
    model, _, profile = kind.partition(":")
    return model, profile


class DeviceKind(StrEnum):
    """The kind of hardware; CPU devices are granted only to jobs that name them."""

    GPU = "gpu"
    MIG = "mig"
    TPU = "tpu"
    NPU = "npu"
    FPGA = "fpga"
    CPU = "cpu"


NAMED_ONLY = frozenset({DeviceKind.CPU, DeviceKind.NPU, DeviceKind.FPGA})
"""Kinds that are granted only to jobs that name a model: what runs on a GPU does not run on them."""


class Level(StrEnum):
    """How far apart devices are, nearest first. The slowest link that a gang uses is that of its widest level."""

    DEVICE = "device"
    NVLINK = "nvlink"
    NODE = "node"
    LEAF = "leaf"
    SPINE = "spine"
    ZONE = "zone"
    POOL = "pool"


class Runtime(StrEnum):
    """The programming interface of a device: what a binary must have been built for."""

    CUDA = "cuda"
    ROCM = "rocm"
    TPU = "tpu"
    SYNAPSE = "synapse"
    NEURON = "neuron"
    XRT = "xrt"
    HAILO = "hailo"
    EDGETPU = "edgetpu"
    CPU = "cpu"


class Precision(StrEnum):
    """Number format that a model computes in."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT8 = "int8"
    INT4 = "int4"


class MigProfile(Fact):
    """One MIG profile of a device model: how many slices it takes and where it may start.

    Example: `1g.10gb` of an H100-80GB takes 1 compute slice of 7 and 1 memory slice of 8, legal starts 0 to 6.
    """

    name: str = Field(description="NVIDIA's profile name, e.g. 3g.40gb", examples=["1g.10gb"])
    compute_slices: int = Field(ge=1, le=8, description="GPU compute slices taken, of 7")
    memory_slices: int = Field(ge=1, le=8, description="memory slices taken, of 8")
    memory_mib: int = Field(ge=1, description="memory of one instance, MiB")
    starts: Annotated[tuple[int, ...], FailFast()] = Field(
        description="memory-slice indices at which an instance may start"
    )
    limit: int = Field(default=8, ge=1, le=8, description="most instances of it on one board")


class MigBoard(Fact):
    """A board in MIG mode: its instances are devices of the inventory (their `parent` is its id)."""

    id: DeviceId
    index: int = Field(ge=0, description="index on its node")
    model: str = Field(description="short model name, e.g. H100")
    memory_mib: int = Field(ge=0)
    slices: int = Field(default=MIG_SLICES, ge=1, le=MIG_SLICES, description="memory slices")
    profiles: Annotated[tuple[MigProfile, ...], FailFast()] = Field(
        description="legal profiles and start slices, as the driver tells them"
    )
    dynamic: bool = Field(
        default=False, description="Baton may repartition what is idle; false: instances stay as found"
    )


class MigPlace(Fact):
    """One instance of a board: its profile, and the memory slice that it starts at."""

    profile: str = Field(max_length=32, examples=["3g.40gb"])
    start: int = Field(ge=0, le=7)


class Recut(Fact):
    """A board that is to be repartitioned: idle instances go, others come; all that is not named stays as it is."""

    board: DeviceId
    number: int = Field(
        ge=1, description="counts the repartitions of this board; tells a repeated report from a new one"
    )
    destroy: tuple[DeviceId, ...] = Field(
        default=(), max_length=8, description="instances that go; none of them is used"
    )
    create: tuple[MigPlace, ...] = Field(default=(), max_length=8, description="instances that come, with their places")


class Position(Fact):
    """Where a node stands in the network: names that are equal on two nodes mean 'together at this level'."""

    leaf: str = Field(default="leaf-0", description="leaf switch or rack")
    spine: str = Field(default="spine-0", description="spine switch or pod")
    zone: str = Field(default="zone-0", description="availability zone or site")


class Device(Fact):
    """One grantable device, as the agent of its node found it."""

    id: DeviceId = Field(description="stable identity, unique in the pool (NVML UUID); never an index")
    index: int = Field(ge=0, description="index on its node, as device variables count them")
    kind: DeviceKind = DeviceKind.GPU
    model: str = Field(description="short model name as jobs ask for it", examples=["H100", "A100", "CPU"])
    memory_mib: int = Field(ge=0, le=MOST_MIB, description="usable memory, MiB (measured, where the driver tells)")
    nvlink_domain: str = Field(default="", description="devices of a node with equal names share an NVLink island")
    mig_profile: str = Field(default="", description="set for a MIG instance: its profile")
    parent: str = Field(default="", description="set for a MIG instance: the id of its board")
    mig_start: int = Field(default=0, ge=0, le=7, description="set for a MIG instance: its first memory slice")
    power_limit_w: int = Field(default=0, ge=0, le=1_000_000, description="board power limit, watts; 0 when unknown")
    runtime: Runtime = Field(default=Runtime.CUDA, description="programming interface")
    memory_free_mib: int | None = Field(
        default=None, ge=0, description="measured free while no job of the pool ran on it, MiB; null: not measured"
    )
    fabric: str = Field(
        default="", description="NVLink fabric that spans nodes (NVL72): cluster uuid and clique; empty: none"
    )
    torus: str = Field(default="", description="set for a TPU chip: its torus (pod), unique in the pool")
    torus_shape: tuple[int, ...] = Field(default=(), max_length=3, description="chips along each axis of the torus")
    torus_at: tuple[int, ...] = Field(default=(), max_length=3, description="this chip's coordinates")


WALLS, NO_WALLS = "baton.walls", "none"
"""The label of a real node that says the tier of its walls (docs/jobs-walls.md), and the tier that has none."""
SHARING, NO_SHARING = "baton.sharing", "none"
"""The label of a node whose accelerators go whole or as MIG instances, and to no job by the thousandth."""


class Inventory(Fact):
    """All that a node offers, found anew by its agent at each start."""

    node: NodeName
    position: Position = Field(default_factory=Position)
    devices: Annotated[tuple[Device, ...], FailFast()]
    cpus: int = Field(default=0, ge=0, le=1_000_000, description="logical processors")
    memory_mib: int = Field(default=0, ge=0, le=MOST_MIB, description="host memory, MiB")
    labels: dict[str, str] = Field(default_factory=dict)
    boards: Annotated[tuple[MigBoard, ...], FailFast()] = ()
    contents: Annotated[tuple[str, ...], FailFast()] = Field(
        default=(), description="images and datasets on its disk, by content name"
    )
    fetch_mib_s: int = Field(default=1000, ge=1, description="how fast it fetches what is not on its disk, MiB/s")
    rack_power_w: int = Field(
        default=0, ge=0, le=1_000_000_000, description="power cap of its leaf (rack), watts; 0: none"
    )
    simulated: bool = Field(default=False, description="true when the devices are simulated: timer jobs may run here")


class TopologyPolicy(StrEnum):
    """Whether a gang waits for its topology level or takes what is nearest to it."""

    PREFERRED = "preferred"
    REQUIRED = "required"


class Topology(Strict):
    """How close together a gang must or should be."""

    level: Level = Field(default=Level.NODE, description="nvlink, node, leaf, spine, zone or pool")
    policy: TopologyPolicy = Field(
        default=TopologyPolicy.PREFERRED,
        description="required: wait until it fits within one such group; preferred: try the nearest first, then widen",
    )
    widen_after_s: float = Field(
        default=0.0, ge=0, le=86_400, description="preferred: how long to wait for the level before widening, s"
    )


DeviceType = Annotated[str, Field(min_length=1, max_length=64)]


class Role(Strict):
    """One role of a nested gang: `count` groups of `devices` each; each group keeps within the role's own topology.

    Example: 64 tensor-parallel groups of 8 within an NVLink domain each, all of them within one spine.
    """

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    count: int = Field(default=1, ge=1, le=MOST_DEVICES, description="number of groups")
    min_count: int | None = Field(
        default=None, ge=1, le=MOST_DEVICES, description="elastic: the fewest groups that are of use"
    )
    devices: int = Field(default=1, ge=1, le=MOST_DEVICES, description="devices of each group")
    types: tuple[DeviceType, ...] = Field(default=(), max_length=16, description="empty: as the job's")
    memory_mib: int = Field(
        default=0, ge=0, le=MOST_MIB, description="memory needed on each device, MiB; 0: as the job's"
    )
    cpu_milli: int = Field(
        default=0, ge=0, le=1_000_000, description="processors per device, thousandths; 0: as the job's"
    )
    host_memory_mib: int = Field(
        default=0, ge=0, le=MOST_MIB, description="host memory per device, MiB; 0: as the job's"
    )
    topology: Topology = Field(default_factory=Topology)


class Spread(Strict):
    """Anti-affinity: two jobs of a team with the same key never share a group of this level."""

    key: str = Field(min_length=1, max_length=64)
    level: Level = Level.NODE


class Content(Strict):
    """An image or a dataset that the job reads: a node that has it is ready sooner."""

    name: str = Field(min_length=1, max_length=256, description="content name, e.g. an image digest")
    size_mib: int = Field(ge=0, le=MOST_MIB)


class Objective(StrEnum):
    """How a job chooses among device types."""

    LISTED = "listed"
    ANY = "any"
    FINISH = "finish"
    COST = "cost"


_ROLES, _TORUS_AXES, _TORUS_SIDE = 16, 3, 256


class Resources(Strict):
    """What one job needs, all at once or not at all."""

    devices: int = Field(
        default=1, ge=1, le=MOST_DEVICES, description="number of devices of the gang, granted all-or-nothing"
    )
    min_devices: int | None = Field(
        default=None,
        ge=1,
        le=MOST_DEVICES,
        description="elastic: granted with this many when `devices` are not free together",
    )
    types: tuple[DeviceType, ...] = Field(
        default=(),
        max_length=16,
        description="acceptable device models, best first, e.g. [H100, A100]; empty: any GPU or TPU (CPU, NPU, FPGA: name it)",
    )
    objective: Objective = Field(
        default=Objective.LISTED,
        description="listed: types in their order, without types the cheapest that fits best; any: the one that the pool "
        "misses least; finish: the one that ends soonest; cost: the cheapest per step",
    )
    family: str = Field(default="", max_length=128, description="job family, for measured throughput per device type")
    runtime: Runtime | None = Field(default=None, description="programming interface that its binary needs")
    precision: Precision | None = Field(default=None, description="number format that the device must compute in")
    memory_mib: int = Field(
        default=0, ge=0, le=MOST_MIB, description="memory needed on each device, MiB; 0: no demand of its own"
    )
    share_milli: int = Field(
        default=WHOLE_MILLI,
        ge=1,
        le=WHOLE_MILLI,
        description="compute share of each device in thousandths; below 1000 the device is shared with other jobs",
    )
    mig_profile: str = Field(default="", max_length=32, description="a MIG instance of this profile, e.g. 1g.10gb")
    cpu_milli: int = Field(default=0, ge=0, le=1_000_000, description="processors per device, thousandths")
    host_memory_mib: int = Field(default=0, ge=0, le=MOST_MIB, description="host memory per device, MiB")
    topology: Topology = Field(default_factory=Topology)
    roles: tuple[Role, ...] = Field(
        default=(), max_length=_ROLES, description="nested gang: `devices` is then their sum"
    )
    torus: tuple[Annotated[int, Field(ge=1, le=_TORUS_SIDE)], ...] = Field(
        default=(),
        max_length=_TORUS_AXES,
        description="TPU slice, e.g. [2, 2, 4]: a box of the torus; `devices` is its volume",
    )
    spread: Spread | None = None
    contents: tuple[Content, ...] = Field(default=(), max_length=64)
    labels: dict[str, str] = Field(default_factory=dict, max_length=32, description="labels a node must carry")

    @model_validator(mode="before")
    @classmethod
    def _devices_follow(cls, given: Any) -> Any:
        """Without `devices`, those of the roles or of the torus box count. What is malformed is left to the fields."""
        if not isinstance(given, dict) or "devices" in given:
            return given
        with suppress(TypeError, ValueError, AttributeError):
            if given.get("roles"):
                some = islice(given["roles"], _ROLES + 1)
                roles = [role if isinstance(role, Role) else Role.model_validate(role) for role in some]
                return given | {"devices": sum(role.count * role.devices for role in roles)}
            if given.get("torus"):
                sides = [int(side) for side in islice(given["torus"], _TORUS_AXES + 1)]
                if len(sides) <= _TORUS_AXES and max(sides) <= _TORUS_SIDE:
                    return given | {"devices": prod(sides)}
        return given

    @model_validator(mode="after")
    def _shares_are_single(self) -> "Resources":
        if self.share_milli < WHOLE_MILLI and self.devices > 1:
            problem = "share_milli below 1000 shares one device: set devices to 1, or ask for whole devices"
            raise _wrong(problem, self.share_milli, "share_milli")
        if self.share_milli < WHOLE_MILLI and self.mig_profile:
            problem = (
                "share_milli and mig_profile exclude each other: leave share_milli out, a MIG instance is granted whole"
            )
            raise _wrong(problem, self.mig_profile, "mig_profile")
        return self

    @model_validator(mode="after")
    def _adds_up(self) -> "Resources":
        total = sum(role.count * role.devices for role in self.roles)
        if self.roles and self.devices != total:
            problem = f"devices is {self.devices} and the roles add up to {total}: leave devices out"
            raise _wrong(problem, self.devices, "devices")
        if self.roles and self.min_devices is not None:
            problem = "min_devices and roles exclude each other: use min_count of the role that may shrink"
            raise _wrong(problem, self.min_devices, "min_devices")
        whole = {"torus": self.torus, "mig_profile": self.mig_profile, "share_milli": WHOLE_MILLI - self.share_milli}
        if self.roles and (given := next((name for name, value in whole.items() if value), "")):
            problem = "roles are of whole devices: leave out torus, mig_profile and share_milli"
            raise _wrong(problem, getattr(self, given), given)
        if self.torus and self.devices != prod(self.torus):
            problem = f"devices is {self.devices} and the torus box holds {prod(self.torus)}: leave devices out"
            raise _wrong(problem, self.devices, "devices")
        if self.torus and self.min_devices is not None:
            raise _wrong("a torus box is atomic: leave min_devices out", self.min_devices, "min_devices")
        if self.min_devices is not None and self.min_devices > self.devices:
            problem = f"min_devices {self.min_devices} is above devices {self.devices}: lower it"
            raise _wrong(problem, self.min_devices, "min_devices")
        names: set[str] = set()
        for i, role in enumerate(self.roles):
            if role.min_count is not None and role.min_count > role.count:
                problem = f"min_count {role.min_count} is above count {role.count}: lower it"
                raise _wrong(problem, role.min_count, "roles", i, "min_count")
            if role.name in names:
                raise _wrong("two roles have the same name: rename one", role.name, "roles", i, "name")
            names.add(role.name)
        return self


def _wrong(problem: str, value: object, *path: str | int) -> ValidationError:
    """Fields that do not go together, told by the one to correct: as pydantic tells what is wrong within a field."""
    error = InitErrorDetails(type=PydanticCustomError("value_error", problem), loc=path, input=value)
    return ValidationError.from_exception_data("Resources", [error])


class Claim(Fact):
    """A part of one device that an attempt holds, with the fencing token (epoch) of that grant."""

    device: DeviceId
    node: NodeName
    milli: int = Field(ge=1, le=WHOLE_MILLI, description="compute share held, thousandths of the device")
    memory_mib: int = Field(ge=0, description="device memory held, MiB")
    cpu_milli: int = Field(default=0, ge=0, description="processors of the node held with it, thousandths")
    host_memory_mib: int = Field(default=0, ge=0, description="host memory held with it, MiB")
    epoch: int = Field(ge=1, description="grows with every grant of the device; an agent refuses an older one")
    role: str = Field(default="", description="of a nested gang: the role that this device serves")


class Span(Fact):
    """How close together a gang's devices are: what it got, what it asked for, and the best that the pool could give."""

    level: str = Field(description="the widest level that the gang spans")
    wanted: str = Field(description="the level that it asked for")
    widened: bool = Field(default=False, description="it is wider than asked for")
    steps: int = Field(default=0, ge=0, description="levels that it is wider than asked for")
    link_gb_s: float = Field(default=0.0, ge=0, description="its slowest link, GB/s one way; 0: unknown")
    best_link_gb_s: float = Field(
        default=0.0, ge=0, description="slowest link of the same gang, of the same models, on the empty pool, GB/s"
    )

    @property
    def text(self) -> str:
        """In a sentence's end, e.g. `within one leaf at 50 GB/s (asked for one node; 450 GB/s if the pool were empty)`."""
        at = f" at {self.link_gb_s:g} GB/s" if self.link_gb_s else ""
        notes = [f"asked for one {self.wanted}"] if self.widened else []
        if self.best_link_gb_s > self.link_gb_s:
            notes.append(f"{self.best_link_gb_s:g} GB/s if the pool were empty")
        return f"within one {self.level}{at}" + (f" ({'; '.join(notes)})" if notes else "")
