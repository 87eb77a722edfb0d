"""What admission knows of a pool: which devices it has ever offered, quotas, and which job ids are taken.

A pure fold of the ledger. Lost nodes count: they may return. Free or busy does not matter here, that is placement's
question; this answers "could it ever": by sums over blocks of like devices, which tell what to correct, and by asking the
placer itself with every device free. Job ids are kept while the job lives, and after its end for as long as placement
keeps them (`libs.core.state.ended`).
"""

import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from libs.core.accelerators.precisions import computes
from libs.core.placement import mig
from libs.core.placement.answer import Blocked
from libs.core.placement.find import find
from libs.core.placement.view import Context, View
from libs.core.state import parts as state_parts
from libs.core.state.ended import EndedJobs
from libs.core.state.fleet import Fleet, usable_mib
from libs.core.state.limits import Limits
from libs.core.state.model import Shape
from schemas import ledger as led
from schemas.resources import NAMED_ONLY, Device, Inventory, Level

LEVELS = ("nvlink", "node", "leaf", "spine", "zone", "pool")
_NARROW = {Level.DEVICE: "node"}
_GROUPED_BY = {"nvlink": "domain"}
_CACHED = 4096
_ENDLESS = 1 << 62
PATIENT = Context(waited_us=_ENDLESS)
"""Waited long enough for every preferred level to widen."""


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
    """MIG instances that are not there but could be cut, from a board that may be repartitioned if nothing ran on it."""


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


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of the fleet could ever serve a need.

    `left`: devices after each constraint, in order. `alone`: whether any device meets the constraint by itself.
    `best`: for each level the largest number of devices of one model within one such group, and that model.
    """

    total: int
    left: tuple[tuple[str, int], ...]
    alone: dict[str, bool]
    best: dict[str, tuple[int, str]]


class _Unjudged:
    """What has no verdict yet; None is one."""


_UNJUDGED = _Unjudged()


class FleetShape:
    """Feed it every valid record."""

    version: ClassVar[int] = 4
    """Of the layout of `dump`."""
    handled: ClassVar[frozenset[str]]
    ignored: ClassVar = frozenset({
        "node.left", "job.granted", "job.requeued", "attempt.starting", "attempt.running",
        "attempt.checkpointed", "attempt.preempting", "attempt.stopping", "attempt.closed", "devices.freed",
        "devices.held", "hold.released", "board.recut", "board.recut-withdrawn", "input.rejected",
        "plan.declined", "clock.jumped",
    })  # fmt: skip
    """What is free or busy, and who is there now: placement's question."""

    def __init__(self) -> None:
        self.blocks: dict[str, tuple[DeviceBlock, ...]] = {}
        self.fleet = Fleet()
        """Every node as it last told, with nothing taken; nodes that left stay."""
        self.quotas: dict[str, Limits] = {}
        self.t_us = 0
        """The ledger's time, microseconds."""
        self.ended = EndedJobs()
        self._jobs: dict[str, str] = {}
        """Jobs that have not ended: id -> spec hash."""
        self._cache: dict[Need, Capacity] = {}
        self._verdicts: dict[Shape, Blocked | None] = {}
        self._view: View | None = None
        self._models: dict[str, int] | None = None

    @classmethod
    def of(cls, inventories: Iterable[Inventory], quotas: Mapping[str, Limits]) -> "FleetShape":
        """A shape made at once; it knows no job."""
        shape = cls()
        shape.quotas = dict(quotas)
        for inventory in inventories:
            shape._join(inventory)
        return shape

    def apply(self, record: led.LedgerRecord, seq: int) -> None:
        """Folds the valid record at ledger sequence `seq`."""
        for event in record.events:
            fold = _FOLD.get(type(event))
            if fold is not None:
                fold(self, event, record.t_us)
        self.t_us = record.t_us

    def skip(self, seq: int) -> None:
        """A void record: it changes nothing."""

    def _job_queued(self, event: led.JobQueued, t_us: int) -> None:
        self._jobs[event.job_id] = event.spec_hash

    def _job_finished(self, event: led.JobFinished, t_us: int) -> None:
        if (spec_hash := self._jobs.pop(event.job_id, None)) is not None:
            self.ended.add(event.job_id, spec_hash, t_us)

    def _offered(self, event: led.NodeJoined | led.BoardCutDone, t_us: int) -> None:
        self.join(event.inventory)

    def _quota_set(self, event: led.QuotaSet, t_us: int) -> None:
        if (limits := Limits.of(event.limit_milli, event.by_type)) is None:
            self.quotas.pop(event.team, None)
        else:
            self.quotas[event.team] = limits

    def same(self, job_id: str, spec_hash: str) -> bool | None:
        """Whether the job of that id has this body; None while the id is free."""
        if (known := self._jobs.get(job_id)) is not None:
            return known == spec_hash
        return self.ended.same(job_id, spec_hash, self.t_us)

    def taken(self, job_id: str) -> bool:
        return job_id in self._jobs or self.ended.knows(job_id, self.t_us)

    @property
    def oldest_us(self) -> int:
        """Requests that the broker stored before this are refused."""
        return self.ended.oldest_us(self.t_us)

    @property
    def window_us(self) -> int:
        """For how long ended jobs are remembered, microseconds."""
        return self.ended.window_us(self.t_us)

    @property
    def empty(self) -> bool:
        """No node with devices has registered yet: nothing can be said about what fits."""
        return not any(self.blocks.values())

    @property
    def jobs(self) -> int:
        return len(self._jobs) + len(self.ended)

    def models(self) -> dict[str, int]:
        """Device models of the pool with the most memory that one of them has, MiB."""
        if self._models is None:
            memory: dict[str, int] = {}
            for block in self._all():
                memory[block.model] = max(memory.get(block.model, 0), block.memory_mib)
            self._models = dict(sorted(memory.items()))
        return self._models

    def accelerators(self) -> list[str]:
        """Device models that a request may get without naming them."""
        return sorted({block.model for block in self._all() if not block.cpu})

    def runtimes(self) -> list[str]:
        """Programming interfaces of the pool's devices."""
        return sorted({block.runtime for block in self._all()})

    def hosts(self) -> tuple[int, int]:
        """The most processors (thousandths) and the most host memory (MiB) that one node with devices has."""
        blocks = self._all()
        return max((b.host_cpu_milli for b in blocks), default=0), max((b.host_mib for b in blocks), default=0)

    def profiles(self) -> list[str]:
        """MIG profiles that the pool has, or can cut."""
        return sorted({block.profile for block in self._all() if block.profile})

    def label_values(self, name: str) -> list[str]:
        """Values of a node label in the pool."""
        return sorted({value for block in self._all() for key, value in block.labels if key == name})

    def label_names(self) -> list[str]:
        return sorted({key for block in self._all() for key, _ in block.labels})

    def capacity(self, need: Need) -> Capacity:
        """What could ever serve `need`. Remembered until devices change, so a burst of like requests costs one look."""
        known = self._cache.get(need)
        if known is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            known = self._cache[need] = _capacity(self._all(), need)
        return known

    def empty_view(self) -> View:
        """The pool with every device free; to be read only."""
        if self._view is None:
            self._view = View.of(self.fleet)
        return self._view

    def verdict(self, shape: Shape) -> Blocked | None:
        """Why the placer would find no place for `shape` with every device free, however long it waits; None when it
        would, or when boards could be cut into what is asked for (`cuttable`). Remembered until devices change."""
        key = replace(shape, contents=(), family="", spread=("", ""))
        known = self._verdicts.get(key, _UNJUDGED)
        if isinstance(known, _Unjudged):
            if len(self._verdicts) >= _CACHED:
                self._verdicts.clear()
            known = self._verdicts[key] = self._judge(key)
        return known

    def cuttable(self, profile: str) -> bool:
        """Whether boards could be cut into more instances of this profile than there are."""
        return bool(profile) and any(block.possible and block.profile == profile for block in self._all())

    def join(self, inventory: Inventory) -> None:
        """A node offers devices, for the first time or others than before."""
        self._join(inventory)
        self._changed()

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot: of each node the inventory as it is packed, the living jobs, the ended ones."""
        return state_parts.write(
            {"quotas": {team: limits.dump() for team, limits in self.quotas.items()}, "t_us": self.t_us},
            {
                "nodes": (b64encode(node.packed).decode() for node in self.fleet.nodes.values()),
                "jobs": self._jobs.items(),
                "ended": self.ended.rows(),
            },
            largest={"ended": 1},
        )

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "FleetShape":
        """The inverse of `dump`, of parts that this `version` wrote."""
        about, tables = state_parts.read(parts)
        shape = cls()
        shape.quotas = {team: Limits.load(limits) for team, limits in about["quotas"].items()}
        shape.t_us = about["t_us"]
        ended: list[Any] = []
        for table, rows in tables:
            if table == "nodes":
                for packed in rows:
                    shape._join(Inventory.model_validate_json(zlib.decompress(b64decode(packed))))
            elif table == "jobs":
                shape._jobs.update(rows)
            else:
                ended += rows
        shape.ended = EndedJobs.of_rows(ended)
        return shape

    def _all(self) -> list[DeviceBlock]:
        return [block for blocks in self.blocks.values() for block in blocks]

    def _join(self, inventory: Inventory) -> None:
        self.fleet.join(inventory, incarnation=1)
        self.blocks[inventory.node] = tuple(_blocks(inventory, self.fleet.boards))

    def _judge(self, shape: Shape) -> Blocked | None:
        if self.cuttable(shape.profile):
            return None
        outcome = find(self.empty_view(), shape, context=PATIENT)
        return outcome if isinstance(outcome, Blocked) else None

    def _changed(self) -> None:
        self._models = self._view = None
        self._cache.clear()
        self._verdicts.clear()


_FOLD: dict[type, Callable[[FleetShape, Any, int], None]] = {
    led.JobQueued: FleetShape._job_queued,
    led.JobFinished: FleetShape._job_finished,
    led.NodeJoined: FleetShape._offered,
    led.BoardCutDone: FleetShape._offered,
    led.QuotaSet: FleetShape._quota_set,
}
FleetShape.handled = led.kinds_of(_FOLD)


def level_of(level: Level) -> str:
    """The level at which devices are grouped."""
    return _NARROW.get(level, level.value)


def _blocks(inventory: Inventory, may_be_cut: Container[str]) -> Iterable[DeviceBlock]:
    where = inventory.position
    kinds = Counter(_kind(inventory.node, d) for d in inventory.devices)
    for (domain, model, cpu, profile, memory_mib, runtime, possible), count in (
        kinds + _could_be(inventory, may_be_cut)
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
            labels=frozenset(inventory.labels.items()),
            simulated=inventory.simulated,
            count=count,
            possible=possible,
        )


_Kind = tuple[str, str, bool, str, int, str, bool]


def _kind(node: str, d: Device, possible: bool = False) -> _Kind:
    island = _island(node, d)
    return island, d.model, d.kind in NAMED_ONLY, d.mig_profile, usable_mib(d), d.runtime.value, possible


def _could_be(inventory: Inventory, may_be_cut: Container[str]) -> Counter[_Kind]:
    """Of each profile of a board that may be repartitioned, the instances that it lacks to hold as many as fit on it."""
    kinds: Counter[_Kind] = Counter()
    for board in inventory.boards:
        there = [d for d in inventory.devices if d.parent == board.id]
        for profile in board.profiles if board.id in may_be_cut else ():
            most = round(mig.potential(mig.geometry_of(board), (), {profile.name: 1}) / profile.memory_slices)
            like = there[0] if there else Device(id=board.id, index=board.index, model=board.model, memory_mib=0)
            new = like.model_copy(
                update={"mig_profile": profile.name, "memory_mib": profile.memory_mib, "memory_free_mib": None}
            )
            kinds[_kind(inventory.node, new, True)] += max(0, most - sum(d.mig_profile == profile.name for d in there))
    return kinds


def _island(node: str, device: Device) -> str:
    """As `libs.core.state.fleet` names it: a fabric joins nodes, an island is a node's own."""
    return device.fabric or (f"{node}/{device.nvlink_domain}" if device.nvlink_domain else "")


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
    ]


def _capacity(blocks: list[DeviceBlock], need: Need) -> Capacity:
    left: list[tuple[str, int]] = []
    alone: dict[str, bool] = {}
    fitting = blocks = [b for b in blocks if not b.possible or b.profile == need.profile]
    for name, allows in _constraints(need):
        alone[name] = any(map(allows, blocks))
        fitting = [b for b in fitting if allows(b)]
        left.append((name, sum(b.count for b in fitting)))
    best: dict[str, tuple[int, str]] = {}
    for level in LEVELS:
        groups: Counter[tuple[str, str]] = Counter()
        room: dict[tuple[str, str], int] = {}
        for b in fitting:
            if level == "nvlink" and not b.domain:  # each is an island of its own
                groups["", b.model] = 1
                continue
            limit = _limit(b, need) if level == "nvlink" else room.get((b.node, b.model), _limit(b, need))
            served = min(b.count, limit)
            room[b.node, b.model] = limit - served
            groups["" if level == "pool" else getattr(b, _GROUPED_BY.get(level, level)), b.model] += served
        best[level] = max(((count, model) for (_, model), count in groups.items()), default=(0, ""))
    return Capacity(sum(b.count for b in blocks), tuple(left), alone, best)


def _limit(block: DeviceBlock, need: Need) -> int:
    """How many devices of one model the processors and the host memory of the block's node can serve."""
    cpu = block.host_cpu_milli // need.cpu_milli if need.cpu_milli else _ENDLESS
    return min(cpu, block.host_mib // need.host_mib if need.host_mib else _ENDLESS)
