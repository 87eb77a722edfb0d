"""How much of a fleet could ever serve a need: sums over blocks of like devices, constraint by constraint.

A sum tells what to correct, where the placer itself only says that nothing fits. Free or busy does not matter here.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from libs.core.accelerators.precisions import computes
from libs.core.placement import mig
from libs.core.state.inventory import island_of, usable_mib
from libs.core.state.levels import LEVELS
from libs.core.state.own_network import labels_of
from schemas.resources import NAMED_ONLY, NO_SHARING, SHARING, Device, Inventory, Level

_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class DeviceBlock:
    """Identical devices of one node. `domain`: their NVLink island, unique in the pool; empty: they have none."""

    node: str
    domain: str
    leaf: str
    spine: str
    zone: str
    model: str
    cpu: bool
    profile: str
    memory_mib: int
    runtime: str
    host_cpu_milli: int
    host_mib: int
    labels: frozenset[tuple[str, str]]
    simulated: bool
    count: int
    possible: bool = False
    """MIG instances that are not there but could be, on a board that may be repartitioned if nothing ran on it."""

    def group(self, level: Level) -> str:
        """The group of `level` that they are in."""
        match level:
            case Level.NVLINK:
                return self.domain
            case Level.LEAF:
                return self.leaf
            case Level.SPINE:
                return self.spine
            case Level.ZONE:
                return self.zone
            case Level.POOL:
                return ""
        return self.node


@dataclass(frozen=True, slots=True)
class Need:
    """What waiting cannot change about a request. `memory_mib`, `cpu_milli` (thousandths of a processor of its node) and
    `host_mib` are what each device must have."""

    types: tuple[str, ...] = ()
    profile: str = ""
    memory_mib: int = 0
    labels: frozenset[tuple[str, str]] = frozenset()
    simulated: bool = False
    runtime: str = ""
    precision: str = ""
    cpu_milli: int = 0
    host_mib: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of the fleet could ever serve a need.

    `left`: devices after each constraint, in order. `alone`: whether any device meets the constraint by itself.
    `best`: for each level the largest number of devices of one model within one such group, and that model.
    """

    total: int
    left: tuple[tuple[str, int], ...]
    alone: dict[str, bool]
    best: dict[Level, tuple[int, str]]


def blocks_of(inventory: Inventory, may_change: Container[str]) -> Iterable[DeviceBlock]:
    """The devices of a node. `may_change`: ids of MIG boards that may be repartitioned."""
    where = inventory.position
    kinds = Counter(_kind(inventory.node, d) for d in inventory.devices)
    for (domain, model, cpu, profile, memory_mib, runtime, possible), count in (
        kinds + _could_be(inventory, may_change)
    ).items():
        yield DeviceBlock(
            node=inventory.node,
            domain=domain,
            leaf=f"{where.zone}/{where.spine}/{where.leaf}",
            spine=f"{where.zone}/{where.spine}",
            zone=where.zone,
            model=model,
            cpu=cpu,
            profile=profile,
            memory_mib=memory_mib,
            runtime=runtime,
            host_cpu_milli=inventory.cpus * 1000,
            host_mib=inventory.memory_mib,
            labels=frozenset(labels_of(inventory).items()),
            simulated=inventory.simulated,
            count=count,
            possible=possible,
        )


_Kind = tuple[str, str, bool, str, int, str, bool]


def _kind(node: str, d: Device, possible: bool = False) -> _Kind:
    island = island_of(d, node)
    return island, d.model, d.kind in NAMED_ONLY, d.mig_profile, usable_mib(d), d.runtime.value, possible


def _could_be(inventory: Inventory, may_change: Container[str]) -> Counter[_Kind]:
    """Of each profile of a board that may be repartitioned, the instances that it lacks to hold as many as fit on it."""
    kinds: Counter[_Kind] = Counter()
    for board in inventory.boards:
        there = [d for d in inventory.devices if d.parent == board.id]
        for profile in board.profiles if board.id in may_change else ():
            most = round(mig.potential(mig.geometry_of(board), (), {profile.name: 1}) / profile.memory_slices)
            like = there[0] if there else Device(id=board.id, index=board.index, model=board.model, memory_mib=0)
            new = like.model_copy(
                update={"mig_profile": profile.name, "memory_mib": profile.memory_mib, "memory_free_mib": None}
            )
            kinds[_kind(inventory.node, new, True)] += max(0, most - sum(d.mig_profile == profile.name for d in there))
    return kinds


def _constraints(need: Need) -> list[tuple[str, Callable[[DeviceBlock], bool]]]:
    """The constraints of `libs.core.placement.find` that waiting does not change, in its order."""
    types = frozenset(need.types)
    return [
        ("type", (lambda b: b.model in types) if types else (lambda b: not b.cpu)),
        ("profile", lambda b: b.profile == need.profile),
        ("memory", lambda b: b.memory_mib >= need.memory_mib),
        ("labels", lambda b: need.labels <= b.labels),
        ("simulation", lambda b: b.simulated or not need.simulated),
        ("runtime", lambda b: need.runtime in ("", b.runtime)),
        ("precision", lambda b: not need.precision or computes(b.model, need.precision)),
        ("processors", lambda b: b.host_cpu_milli >= need.cpu_milli),
        ("host memory", lambda b: b.host_mib >= need.host_mib),
        ("sharing", lambda b: need.whole or b.cpu or (SHARING, NO_SHARING) not in b.labels),
    ]


def capacity_of(blocks: list[DeviceBlock], need: Need) -> Capacity:
    """What of `blocks` could ever serve `need`."""
    left: list[tuple[str, int]] = []
    alone: dict[str, bool] = {}
    fitting = blocks = [b for b in blocks if not b.possible or b.profile == need.profile]
    for name, allows in _constraints(need):
        alone[name] = any(map(allows, blocks))
        fitting = [b for b in fitting if allows(b)]
        left.append((name, sum(b.count for b in fitting)))
    best: dict[Level, tuple[int, str]] = {}
    for level in LEVELS:
        groups: Counter[tuple[str, str]] = Counter()
        room: dict[tuple[str, str], int] = {}
        for b in fitting:
            if level is Level.NVLINK and not b.domain:  # each is an island of its own
                groups["", b.model] = 1
                continue
            limit = _limit(b, need) if level is Level.NVLINK else room.get((b.node, b.model), _limit(b, need))
            served = min(b.count, limit)
            room[b.node, b.model] = limit - served
            groups[b.group(level), b.model] += served
        best[level] = max(((count, model) for (_, model), count in groups.items()), default=(0, ""))
    return Capacity(sum(b.count for b in blocks), tuple(left), alone, best)


def _limit(block: DeviceBlock, need: Need) -> int:
    """How many devices of one model the processors and the host memory of the block's node can serve."""
    cpu = block.host_cpu_milli // need.cpu_milli if need.cpu_milli else _ENDLESS
    return min(cpu, block.host_mib // need.host_mib if need.host_mib else _ENDLESS)
