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
from schemas.reasons import reasons_of
from schemas.resources import Device, DeviceKind, Inventory, MigBoard, Position, Runtime
from schemas.yamlfile import OWN, YamlProblem, text_of
from schemas.yamlmodel import WrongFile, problem_at, read_model

MIB_PER_GIB = 1024


class FleetError(WrongFile, ValueError):
    """The fleet file cannot be used. Each line names the line, the field, the value and the fix."""


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
                f"no board can be partitioned into {', '.join(self.mig)} at once: its profiles are {names}"
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
            raise ValueError(
                f"hosts of {list(host)} chips do not fill a torus of {list(shape)}: each side is a multiple"
            )
        if self.count != prod(host):
            raise ValueError(
                f"count is {self.count}, and a host of {list(host)} has {prod(host)} chips: correct one of them"
            )
        return self

    @model_validator(mode="after")
    def _islands_are_equal(self) -> "FleetDevices":
        if self.nvlink_domains and self.count % self.nvlink_domains:
            raise ValueError(
                f"{self.count} devices cannot be split into {self.nvlink_domains} equal NVLink domains: correct one of them"
            )
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


def read_fleet(path: str | Path, pool: str = "") -> tuple[Inventory, ...]:
    """The inventories of a fleet file, in its order, for `pool` where that is known. Raises FleetError naming file, field,
    value and fix."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = text_of(file)
    except OSError as e:
        why = f"{e.strerror or e}"
        raise FleetError(str(path), [YamlProblem(1, 1, "file", why, "name a fleet file that can be read")]) from None
    except UnicodeDecodeError:
        raise FleetError(str(path), [YamlProblem(1, 1, "file", "it is no UTF-8 text", "save it as UTF-8")]) from None
    return parse_fleet(text, str(path), pool)


def parse_fleet(text: str, path: str, pool: str = "") -> tuple[Inventory, ...]:
    """As `read_fleet`, from text; `path` is for messages."""
    document, fleet = read_model(text, path, SimulatedFleet, FleetError, "write `groups: [...]`", times=OWN)
    if document.problems:
        raise FleetError(path, document.problems)
    nodes: list[Inventory] = []
    named: dict[str, int] = {}
    problems = []
    if pool and fleet.pool not in ("", pool):
        problems.append(
            problem_at(document, ("pool",), f"{fleet.pool}: the pool is {pool}", "correct it, or leave it out")
        )
    for number, group in enumerate(fleet.groups):
        for i in range(group.count):
            try:
                node = _node(group, i)
            except _Unfit as e:
                problems.append(problem_at(document, ("groups", number, e.field), e.problem, e.fix))
                break  # the others of the group have the same problem
            if node.node in named:
                fix = "put {i} into the pattern" if named[node.node] == number else "give each group names of its own"
                problem = f"{group.name}: {node.node!r} names two nodes"
                problems.append(problem_at(document, ("groups", number, "name"), problem, fix))
                break
            named[node.node] = number
            nodes.append(node)
    if problems:
        raise FleetError(path, problems)
    return tuple(nodes)


class _Unfit(Exception):
    """A group whose nodes cannot be made: what is wrong with which field."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(field)
        self.field, self.problem, self.fix = field, problem, fix


def _node(group: FleetGroup, i: int) -> Inventory:
    """Raises _Unfit."""
    leaf = i // group.nodes_per_leaf
    texts = {}
    for field in ("name", "leaf", "spine", "zone"):
        pattern = getattr(group, field)
        try:
            texts[field] = pattern.format(i=i, leaf=leaf)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            raise _Unfit(
                field, f"{pattern}: not a pattern that is read", "use {i} and {leaf} only, e.g. gpu-{i:02d}"
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
        reason = reasons_of(e, model=Inventory)[0]
        at = reason.field.partition(".")[0]
        if at == "node":
            fix = "use letters, digits, '-' and '_', at most 63"
            raise _Unfit("name", f"{group.name}: gives {texts['name']!r}, which {reason.problem}", fix) from None
        field = {"memory_mib": "memory_gib"}.get(at, at)
        raise _Unfit(field, f"{reason.value}: {reason.problem}", reason.fix.replace("send ", "write ")) from None


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
