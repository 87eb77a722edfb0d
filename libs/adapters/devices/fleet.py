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
"""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator

from schemas.base import NodeName, Strict
from schemas.resources import Device, DeviceKind, Inventory, Position

MIB_PER_GIB = 1024


class FleetError(ValueError):
    """The fleet file cannot be used. Each line names the field, the value and the fix."""


class FleetDevices(Strict):
    """The devices of each node of a group."""

    model: str = Field(min_length=1, max_length=64, description="model name as jobs ask for it, e.g. H100")
    count: int = Field(ge=1, le=64, description="devices per node")
    memory_gib: float = Field(gt=0, le=4096, description="memory of each device, GiB")
    kind: DeviceKind = DeviceKind.GPU
    nvlink_domains: int = Field(default=1, ge=0, le=64, description="NVLink islands per node; 0: no NVLink")
    power_limit_w: int = Field(default=0, ge=0, description="board power limit, watts; 0: unknown")

    @model_validator(mode="after")
    def _islands_are_equal(self) -> "FleetDevices":
        if self.nvlink_domains and self.count % self.nvlink_domains:
            raise ValueError(f"{self.count} devices cannot be cut into {self.nvlink_domains} equal NVLink domains")
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


class Fleet(Strict):
    """The whole file."""

    pool: str = ""
    groups: Annotated[tuple[FleetGroup, ...], Field(min_length=1)]


def read_fleet(path: str | Path) -> tuple[Inventory, ...]:
    """The inventories of a fleet file, in its order. Raises FleetError naming file, field, value and fix."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise FleetError(f"fleet file {path}: {e.strerror}; set BATON_AGENT_FLEET to a readable YAML file") from None
    return parse_fleet(text, str(path))


def parse_fleet(text: str, path: str) -> tuple[Inventory, ...]:
    """As `read_fleet`, from text; `path` is for messages."""
    try:
        raw: Any = yaml.safe_load(text)
        fleet = Fleet.model_validate(raw)
    except yaml.YAMLError as e:
        raise FleetError(f"fleet file {path}: not YAML ({' '.join(str(e).split())})") from None
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
            devices=tuple(_device(group.devices, texts["name"], index) for index in range(group.devices.count)),
            cpus=group.cpus,
            memory_mib=int(group.memory_gib * MIB_PER_GIB),
            labels=group.labels,
            simulated=True,
        )
    except ValidationError as e:
        raise FleetError(
            f"fleet file {path}: groups.{number}.name gives {texts['name']!r}: {e.errors()[0]['msg']}; use letters, "
            "digits, '-' and '_', at most 63"
        ) from None


def _device(devices: FleetDevices, node: NodeName, index: int) -> Device:
    per_island = devices.count // devices.nvlink_domains if devices.nvlink_domains else 0
    return Device(
        id=f"{node}-{devices.kind.value}{index}",
        index=index,
        kind=devices.kind,
        model=devices.model,
        memory_mib=int(devices.memory_gib * MIB_PER_GIB),
        nvlink_domain=f"nvl{index // per_island}" if per_island else "",
        power_limit_w=devices.power_limit_w,
    )
