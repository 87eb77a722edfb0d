"""What the placer sees of a request: many jobs have the same, so each is one object."""

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from libs.core.state.limits import Cap
from libs.core.state.own_network import asked_for
from schemas.jobs import JobSpec, Network
from schemas.resources import WHOLE_MILLI, Level, Resources, Role, TopologyPolicy


@dataclass(frozen=True, slots=True)
class RoleShape:
    """One role of a nested gang: `count` groups of `devices`, each within one group of `level`."""

    name: str
    count: int
    min_count: int
    devices: int
    types: tuple[str, ...]
    memory_mib: int
    cpu_milli: int
    host_mib: int
    level: Level
    required: bool
    widen_us: int


NO_SPREAD = ("", Level.NODE)
"""The spread of a job that keeps away from no other."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the placer sees of a request. Of two requests with equal shapes, either both fit now or neither does.

    CPU (thousandths of a processor), host memory and device memory (MiB) and `milli` are per device.
    """

    devices: int
    types: tuple[str, ...] = ()
    memory_mib: int = 0
    milli: int = WHOLE_MILLI
    profile: str = ""
    level: Level = Level.NODE
    required: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    simulated: bool = False
    """Runs as a timer, so only on nodes whose devices are simulated."""
    min_devices: int = 0
    """Elastic: the fewest devices with which it runs; 0: all of them."""
    cpu_milli: int = 0
    host_mib: int = 0
    runtime: str = ""
    precision: str = ""
    widen_us: int = 0
    """Preferred topology: how long to wait for the level before widening."""
    roles: tuple[RoleShape, ...] = ()
    torus: tuple[int, ...] = ()
    spread: tuple[str, Level] = NO_SPREAD
    """Anti-affinity: key and level."""
    contents: tuple[tuple[str, int], ...] = ()
    """Images and datasets: name and MiB."""
    objective: str = "listed"
    family: str = ""
    caps: tuple[Cap, ...] = ()
    """Only of a request that is about to be placed: the most devices of some models that its team's limits leave it. The
    shape that a job waits with has none."""
    unit: int = 1
    """Elastic: it may get multiples of so many devices only, those that one replica of its model is split over."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)
    """Worked out once: a shape is part of each queue's key."""

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash(_COMPARED(self)))
        return self._hash

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return Shape, _COMPARED(self)  # a hash is of one process only

    @property
    def whole(self) -> bool:
        return self.milli == WHOLE_MILLI

    def whole_units(self, devices: int) -> int:
        """The most of `devices` that it may get; all that it asks for is never cut."""
        return devices if devices >= self.devices else devices - devices % self.unit

    @property
    def least(self) -> int:
        """The fewest devices with which it runs."""
        if self.roles:
            return sum(role.min_count * role.devices for role in self.roles)
        return self.min_devices or self.devices


_COMPARED = attrgetter(*(one.name for one in fields(Shape) if one.compare))
"""What makes two shapes equal."""


_SHAPES = 512
_shapes: dict[int, tuple[JobSpec, Shape]] = {}
"""By the identity of the spec, which is kept so that no other can take its place."""


def shape_of(spec: JobSpec, network: Network = Network.HOST) -> Shape:
    """The shape of a job's request. Jobs of one form share their spec (`schemas.known_specs.AcceptedSpec`). `network`: its
    class's."""
    shape = _shape_of_spec(spec)
    if network is Network.HOST:
        return shape
    return _interned(replace(shape, labels=asked_for(shape.labels, network)))


def _shape_of_spec(spec: JobSpec) -> Shape:
    known = _shapes.get(id(spec))
    if known is None:
        if len(_shapes) >= _SHAPES:
            _shapes.clear()
        known = _shapes[id(spec)] = spec, _shape_of(spec)
    return known[1]


def _shape_of(spec: JobSpec) -> Shape:
    r: Resources = spec.resources
    shape = Shape(
        devices=r.devices,
        types=r.types,
        memory_mib=r.memory_mib,
        milli=r.share_milli,
        profile=r.mig_profile,
        level=r.topology.level,
        required=r.topology.policy is TopologyPolicy.REQUIRED,
        labels=tuple(sorted(r.labels.items())),
        simulated=spec.simulation is not None,
        min_devices=r.min_devices or 0,
        cpu_milli=r.cpu_milli,
        host_mib=r.host_memory_mib,
        runtime=r.runtime.value if r.runtime else "",
        precision=r.precision.value if r.precision else "",
        widen_us=int(r.topology.widen_after_s * 1_000_000),
        roles=tuple(_group(role, r) for role in r.roles),
        torus=r.torus,
        spread=(r.spread.key, r.spread.level) if r.spread else NO_SPREAD,
        contents=tuple(sorted((c.name, c.size_mib) for c in r.contents)),
        objective=r.objective.value,
        family=r.family,
        unit=spec.model.devices_per_replica if spec.model is not None and r.min_devices is not None else 1,
    )
    return _interned(shape)


@lru_cache(maxsize=4096)
def _interned(shape: Shape) -> Shape:
    """One object for equal shapes, as long as they are met: whether two are equal is asked for each job several times."""
    return shape


def _group(role: Role, r: Resources) -> RoleShape:
    """A role. What it leaves out is taken from its job."""
    return RoleShape(
        name=role.name,
        count=role.count,
        min_count=role.min_count or role.count,
        devices=role.devices,
        types=role.types or r.types,
        memory_mib=role.memory_mib or r.memory_mib,
        cpu_milli=role.cpu_milli or r.cpu_milli,
        host_mib=role.host_memory_mib or r.host_memory_mib,
        level=role.topology.level,
        required=role.topology.policy is TopologyPolicy.REQUIRED,
        widen_us=int(role.topology.widen_after_s * 1_000_000),
    )
