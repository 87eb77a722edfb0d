"""What a node offers and what a job asks for, with units.

A *device* is what can be granted: a whole accelerator, or one MIG instance of one. Its compute is 1,000 milli, its
memory is counted in MiB; a *share* of a device takes some of both. A gang asks for `devices` identical ones at once.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from schemas.base import DeviceId, Fact, NodeName, Strict

WHOLE_MILLI = 1000
"""The compute of one device, in thousandths."""


class DeviceKind(StrEnum):
    """The kind of hardware; CPU devices are granted only to jobs that name them."""

    GPU = "gpu"
    MIG = "mig"
    TPU = "tpu"
    NPU = "npu"
    FPGA = "fpga"
    CPU = "cpu"


class Level(StrEnum):
    """How far apart devices are, nearest first. The slowest link that a gang uses is that of its widest level."""

    DEVICE = "device"
    NVLINK = "nvlink"
    NODE = "node"
    LEAF = "leaf"
    SPINE = "spine"
    ZONE = "zone"
    POOL = "pool"


class MigProfile(Fact):
    """One MIG profile of a device model: how many slices it takes and where it may start.

    Example: `1g.10gb` of an H100-80GB takes 1 compute slice of 7 and 1 memory slice of 8, legal starts 0 to 6.
    """

    name: str = Field(description="NVIDIA's profile name, e.g. 3g.40gb", examples=["1g.10gb"])
    compute_slices: int = Field(ge=1, le=8, description="GPU compute slices taken, of 7")
    memory_slices: int = Field(ge=1, le=8, description="memory slices taken, of 8")
    memory_mib: int = Field(ge=1, description="memory of one instance, MiB")
    starts: tuple[int, ...] = Field(description="memory-slice indices at which an instance may start")


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
    memory_mib: int = Field(ge=0, description="usable memory, MiB (measured, where the driver tells)")
    nvlink_domain: str = Field(default="", description="devices of a node with equal names share an NVLink island")
    mig_profile: str = Field(default="", description="set for a MIG instance: its profile")
    parent: str = Field(default="", description="set for a MIG instance: the id of the board it is cut from")
    power_limit_w: int = Field(default=0, ge=0, description="board power limit, watts; 0 when unknown")


class Inventory(Fact):
    """All that a node offers, found anew by its agent at each start."""

    node: NodeName
    position: Position = Field(default_factory=Position)
    devices: tuple[Device, ...]
    cpus: int = Field(default=0, ge=0, description="logical processors")
    memory_mib: int = Field(default=0, ge=0, description="host memory, MiB")
    labels: dict[str, str] = Field(default_factory=dict)
    simulated: bool = Field(default=False, description="true when the devices are simulated: timer jobs may run here")


class TopologyPolicy(StrEnum):
    """Whether a gang waits for its topology level or takes what is nearest to it."""

    PREFERRED = "preferred"
    REQUIRED = "required"


class Topology(Strict):
    """How close together a gang must or should be."""

    level: Level = Field(default=Level.NODE, description="node, leaf, spine, zone or pool")
    policy: TopologyPolicy = Field(
        default=TopologyPolicy.PREFERRED,
        description="required: wait until it fits within one such group; preferred: try the nearest first, then widen",
    )


class Resources(Strict):
    """What one job needs, all at once or not at all."""

    devices: int = Field(default=1, ge=1, le=4096, description="number of devices of the gang, granted all-or-nothing")
    types: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        default=(),
        max_length=16,
        description="acceptable device models, best first, e.g. [H100, A100]; empty: any accelerator, CPU only if named",
    )
    memory_mib: int = Field(default=0, ge=0, description="memory needed on each device, MiB; 0: no demand of its own")
    share_milli: int = Field(
        default=WHOLE_MILLI,
        ge=1,
        le=WHOLE_MILLI,
        description="compute share of each device in thousandths; below 1000 the device is shared with other jobs",
    )
    mig_profile: str = Field(default="", max_length=32, description="a MIG instance of this profile, e.g. 1g.10gb")
    topology: Topology = Field(default_factory=Topology)
    labels: dict[str, str] = Field(default_factory=dict, max_length=32, description="labels a node must carry")

    @model_validator(mode="after")
    def _shares_are_single(self) -> "Resources":
        if self.share_milli < WHOLE_MILLI and self.devices > 1:
            raise ValueError("share_milli below 1000 shares one device: set devices to 1, or ask for whole devices")
        if self.share_milli < WHOLE_MILLI and self.mig_profile:
            raise ValueError("share_milli and mig_profile exclude each other: a MIG instance is granted whole")
        return self


class Claim(Fact):
    """A part of one device that an attempt holds, with the fencing token (epoch) of that grant."""

    device: DeviceId
    node: NodeName
    milli: int = Field(ge=1, le=WHOLE_MILLI, description="compute share held, thousandths of the device")
    memory_mib: int = Field(ge=0, description="device memory held, MiB")
    epoch: int = Field(ge=1, description="grows with every grant of the device; an agent refuses an older one")
