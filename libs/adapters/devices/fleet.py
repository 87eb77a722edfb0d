"""A simulated fleet, from a YAML file: groups of like nodes.

pool: main                       optional, checked against the agent's pool
groups:
  - name: "gpu-{i:02d}"          {i} counts from 0 in the group
    count: 16
    leaf: "leaf-{leaf}"          {leaf} is i // nodes_per_leaf
    nodes_per_leaf: 8
    devices: {model: H100, count: 8, memory_gib: 80, nvlink_domains: 1, power_limit_w: 700}
    cpus: 192
    memory_gib: 2048
    labels: {site: west}
    grant_cpus: true             optional: its processors are a device too, of model CPU, beside the others
    rack_power_w: 42000          optional: power cap of each leaf, watts
    contents: [sha256:9f86]      optional: images and datasets on the disks of its nodes
    fetch_mib_s: 2500            optional: how fast a node fetches what it has not

Kind, programming interface and memory follow from the model where the catalogue knows it. More keys of `devices`:

    mig: [3g.40gb, 2g.20gb, 1g.10gb]              every board has these instances
    dynamic: true                                 with mig: Baton may repartition idle instances
    torus: {shape: [4, 4, 4], host: [2, 2, 1]}    TPU chips: node i of the group is host i of its torus, in the order of
                                                  coordinates; after the last host the next torus begins

An example of every kind: deploy/fleets/zoo.yaml.
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from libs.core.accelerators.catalog import CPU, Accelerator, find_model
from libs.core.accelerators.mig_boards import Geometry, geometry_for
from libs.core.placement.mig.layouts import Layout, layouts
from schemas.base import NodeName, Strict
from schemas.resources import Device, DeviceKind, Inventory, MigBoard, Position, Runtime
from schemas.yamlfile import Broken, plain, text_of

MIB_PER_GIB = 1024


class FleetError(ValueError):
    """The fleet file cannot be used. Each line names the field, the value and the fix."""


class FleetTorus(Strict):
    """A torus of TPU chips, and the box of chips that each host has. Sides are chips."""

    shape: tuple[Annotated[int, Field(ge=1, le=256)], ...] = Field(min_length=2, max_length=3)
    host: tuple[Annotated[int, Field(ge=1, le=8)], ...] = Field(min_length=2, max_length=3)

    @property
    def hosts(self) -> int:
        return prod(self.shape) // prod(self.host)

    def chips(self, host: int) -> list[tuple[int, ...]]:
        """Coordinates of the chips of host `host`, in their order."""
        corner: list[int] = []
        for n, h in reversed(list(zip(self.shape, self.host, strict=True))):
            host, at = divmod(host, n // h)
            corner.insert(0, at * h)
        inside = product(*(range(h) for h in self.host))
        return [tuple(c + o for c, o in zip(corner, offset, strict=True)) for offset in inside]


class FleetDevices(Strict):
    """The devices of each node of a group."""

    model: str = Field(min_length=1, max_length=64, description="model name as jobs ask for it, e.g. H100")
    count: int = Field(ge=1, le=64, description="devices per node")
    memory_gib: float = Field(default=0, ge=0, le=4096, description="memory of each device, GiB; 0: as the model has")
    kind: DeviceKind | None = Field(default=None, description="by default as the model is; an unknown one is a GPU")
    runtime: Runtime | None = Field(default=None, description="by default as the model's; of an unknown one, cuda")
    nvlink_domains: int = Field(default=1, ge=0, le=64, description="NVLink (xGMI, ...) islands per node; 0: none")
    power_limit_w: int = Field(default=0, ge=0, description="board power limit, watts; 0: unknown")
    memory_free_gib: float | None = Field(
        default=None, ge=0, description="measured free memory, GiB; null: not measured"
    )
    mig: tuple[str, ...] = Field(default=(), description="instances that each board is partitioned into, by profile")
    dynamic: bool = Field(default=False, description="with mig: Baton may repartition idle instances")
    torus: FleetTorus | None = Field(default=None, description="TPU chips only")

    @property
    def known(self) -> Accelerator | None:
        return find_model(self.model)

    @property
    def memory_mib(self) -> int:
        return int((self.memory_gib or (self.known.memory_gib if self.known else 0)) * MIB_PER_GIB)

    @property
    def geometry(self) -> Geometry | None:
        return geometry_for(self.model, self.memory_mib)

    @property
    def layout(self) -> Layout:
        """Where the instances of `mig` start: the first legal layout that has just them. Empty when there is none."""
        every = layouts(self.geometry) if self.geometry else ()
        return next((one for one in every if sorted(name for name, _ in one) == sorted(self.mig)), ())

    @model_validator(mode="after")
    def _is_known_or_told(self) -> "FleetDevices":
        if not self.memory_gib and self.known is None:
            raise ValueError(f"{self.model} is not in the catalogue of accelerators: give its memory_gib")
        return self

    @model_validator(mode="after")
    def _can_be_partitioned(self) -> "FleetDevices":
        if self.mig and self.geometry is None:
            raise ValueError(f"{self.model} has no MIG: leave mig out")
        if self.mig and self.geometry and not self.layout:
            names = ", ".join(profile.name for profile in self.geometry.profiles)
            raise ValueError(
                f"no board can be partitioned into {', '.join(self.mig)} at once; its profiles are {names}"
            )
        return self

    @model_validator(mode="after")
    def _only_instances_are_dynamic(self) -> "FleetDevices":
        if self.dynamic and not self.mig:
            raise ValueError(
                "only boards partitioned by mig can be dynamic: give mig, e.g. [7g.80gb], or leave dynamic out"
            )
        return self

    @model_validator(mode="after")
    def _hosts_fill_the_torus(self) -> "FleetDevices":
        if self.torus is None:
            return self
        shape, host = self.torus.shape, self.torus.host
        if len(shape) != len(host) or any(n % h for n, h in zip(shape, host, strict=True)):
            raise ValueError(f"hosts of {list(host)} chips do not fill a torus of {list(shape)}")
        if self.count != prod(host):
            raise ValueError(f"count is {self.count}, and a host of {list(host)} has {prod(host)} chips")
        return self

    @model_validator(mode="after")
    def _islands_are_equal(self) -> "FleetDevices":
        if self.nvlink_domains and self.count % self.nvlink_domains:
            raise ValueError(f"{self.count} devices cannot be split into {self.nvlink_domains} equal NVLink domains")
        return self


class FleetGroup(Strict):
    """Like nodes. Names of nodes, leaves, spines and zones are format strings over `i` (and `leaf`)."""

    name: str = Field(min_length=1, description='pattern with {i}, e.g. "gpu-{i:03d}"')
    count: int = Field(ge=1, le=10_000, description="number of nodes")
    devices: FleetDevices
    nodes_per_leaf: int = Field(default=8, ge=1)
    leaf: str = "leaf-{leaf}"
    spine: str = "spine-0"
    zone: str = "zone-0"
    cpus: int = Field(default=0, ge=0)
    memory_gib: float = Field(default=0, ge=0, description="host memory, GiB")
    labels: dict[str, str] = Field(default_factory=dict)
    contents: tuple[str, ...] = Field(default=(), description="images and datasets on each node's disk")
    fetch_mib_s: int = Field(default=1000, ge=1, description="how fast a node fetches what it has not, MiB/s")
    rack_power_w: int = Field(default=0, ge=0, description="power cap of each leaf, watts; 0: none")
    grant_cpus: bool = Field(default=False, description="the processors are a device too: needs cpus and memory_gib")

    @model_validator(mode="after")
    def _has_processors_to_grant(self) -> "FleetGroup":
        if self.grant_cpus and not (self.cpus and self.memory_gib):
            raise ValueError("grant_cpus offers the processors and the host's memory: give cpus and memory_gib")
        if self.grant_cpus and self.devices.model == CPU.model:
            raise ValueError("these devices are processors already: leave grant_cpus out")
        return self


class SimulatedFleet(Strict):
    """The whole file."""

    pool: str = ""
    groups: Annotated[tuple[FleetGroup, ...], Field(min_length=1)]


def read_fleet(path: str | Path) -> tuple[Inventory, ...]:
    """The inventories of a fleet file, in its order. Raises FleetError naming file, field, value and fix."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = text_of(file)
    except OSError as e:
        raise FleetError(f"fleet file {path}: {e.strerror}; set BATON_AGENT_FLEET to a readable YAML file") from None
    return parse_fleet(text, str(path))


def parse_fleet(text: str, path: str) -> tuple[Inventory, ...]:
    """As `read_fleet`, from text; `path` is for messages."""
    try:
        fleet = SimulatedFleet.model_validate(plain(text))
    except Broken as e:
        raise FleetError(f"fleet file {path}: {e}") from None
    except ValidationError as e:
        raise FleetError("\n".join(_line(path, error) for error in e.errors())) from None
    nodes = [_node(path, g, group, i) for g, group in enumerate(fleet.groups) for i in range(group.count)]
    names = [inventory.node for inventory in nodes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FleetError(
            f"fleet file {path}: groups.*.name: {twice[0]!r} names two nodes; put {{i}} into the pattern and give each "
            "group its own"
        )
    return tuple(nodes)


def _line(path: str, error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"]) or "(top level)"
    given = "" if error["type"] == "missing" else f" is {str(error['input'])[:200]!r}"
    fix = {
        "missing": "add it",
        "extra_forbidden": "remove it or correct its spelling",
    }.get(error["type"], "correct the value; libs/adapters/devices/fleet.py describes each field")
    return f"fleet file {path}: {field}{given}: {error['msg']}; {fix}"


def _node(path: str, number: int, group: FleetGroup, i: int) -> Inventory:
    leaf = i // group.nodes_per_leaf
    texts = {}
    for field in ("name", "leaf", "spine", "zone"):
        pattern = getattr(group, field)
        try:
            texts[field] = pattern.format(i=i, leaf=leaf)
        except (KeyError, IndexError, ValueError) as e:
            raise FleetError(
                f"fleet file {path}: groups.{number}.{field} is {pattern!r}: {e}; use {{i}} and {{leaf}} only"
            ) from None
    try:
        return Inventory(
            node=texts["name"],
            position=Position(leaf=texts["leaf"], spine=texts["spine"], zone=texts["zone"]),
            devices=(
                *(found := tuple(_devices(group, texts["name"], i))),
                *_processors(group, texts["name"], len(found)),
            ),
            boards=tuple(_boards(group.devices, texts["name"])),
            cpus=group.cpus,
            memory_mib=int(group.memory_gib * MIB_PER_GIB),
            labels=group.labels,
            contents=group.contents,
            fetch_mib_s=group.fetch_mib_s,
            rack_power_w=group.rack_power_w,
            simulated=True,
        )
    except ValidationError as e:
        raise FleetError(
            f"fleet file {path}: groups.{number}.name gives {texts['name']!r}: {e.errors()[0]['msg']}; use letters, "
            "digits, '-' and '_', at most 63"
        ) from None


def _devices(group: FleetGroup, node: NodeName, i: int) -> Iterator[Device]:
    """The devices of node `i` of its group, in index order."""
    devices = group.devices
    linked = devices.known is None or devices.known.link.reach in ("pair", "node", "rack")
    per_island = devices.count // devices.nvlink_domains if devices.nvlink_domains and linked else 0
    kind = devices.kind or (devices.known.kind if devices.known else DeviceKind.GPU)
    runtime = devices.runtime or (devices.known.runtime if devices.known else Runtime.CUDA)
    if devices.mig:
        yield from _instances(devices, node)
        return
    for index in range(devices.count):
        yield Device(
            id=f"{node}-{kind.value}{index}",
            index=index,
            kind=kind,
            model=devices.model,
            memory_mib=devices.memory_mib,
            memory_free_mib=None if devices.memory_free_gib is None else int(devices.memory_free_gib * MIB_PER_GIB),
            nvlink_domain=f"nvl{index // per_island}" if per_island else "",
            power_limit_w=devices.power_limit_w,
            runtime=runtime,
            **_coordinates(group, i, index),
        )


def _processors(group: FleetGroup, node: NodeName, index: int) -> Iterator[Device]:
    """The processors of a node as a device beside its others."""
    if group.grant_cpus:
        yield Device(
            id=f"{node}-cpu0",
            index=index,
            kind=CPU.kind,
            model=CPU.model,
            memory_mib=int(group.memory_gib * MIB_PER_GIB),
            runtime=CPU.runtime,
        )


def _coordinates(group: FleetGroup, i: int, index: int) -> dict[str, Any]:
    """The torus fields of one chip. A torus has the name of its first host."""
    torus = group.devices.torus
    if torus is None:
        return {}
    number, host = divmod(i, torus.hosts)
    first = number * torus.hosts
    name = group.name.format(i=first, leaf=first // group.nodes_per_leaf)
    return {"torus": name, "torus_shape": torus.shape, "torus_at": torus.chips(host)[index]}


def _boards(devices: FleetDevices, node: NodeName) -> Iterator[MigBoard]:
    geometry = devices.geometry
    if not devices.mig or geometry is None:
        return
    for index in range(devices.count):
        yield MigBoard(
            id=f"{node}-gpu{index}",
            index=index,
            model=devices.model,
            memory_mib=devices.memory_mib,
            slices=geometry.slices,
            profiles=geometry.profiles,
            dynamic=devices.dynamic,
        )


def _instances(devices: FleetDevices, node: NodeName) -> Iterator[Device]:
    """The MIG instances of a node's boards, board by board."""
    assert devices.geometry is not None
    memory = {profile.name: profile.memory_mib for profile in devices.geometry.profiles}
    for index, (board, (profile, start)) in enumerate(product(range(devices.count), devices.layout)):
        yield Device(
            id=f"{node}-mig{index}",
            index=index,
            kind=DeviceKind.MIG,
            model=devices.model,
            memory_mib=memory[profile],
            mig_profile=profile,
            parent=f"{node}-gpu{board}",
            mig_start=start,
            power_limit_w=devices.power_limit_w,
        )
