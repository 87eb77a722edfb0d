"""What admission knows of a pool: which devices it has ever offered, quotas, and which job ids are taken.

A pure fold of the ledger. Lost nodes count: they may return. Free or busy does not matter here, that is placement's
question; this answers "could it ever": by sums over blocks of like devices, which tell what to correct, and by asking the
placer itself with every device free. Job ids are kept while the job lives, and after its end for as long as placement
keeps them (`libs.core.state.ended`).
"""

import marshal
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from libs.core.admission.capacity import Capacity, DeviceBlock, Need, blocks_of, capacity_of
from libs.core.admission.job_kinds import kind_of
from libs.core.placement.answer import Blocked
from libs.core.placement.find import find
from libs.core.placement.view import Context, View
from libs.core.state import parts as state_parts
from libs.core.state.by_job import ByJob
from libs.core.state.ended import EndedJobs
from libs.core.state.fleet import Fleet
from libs.core.state.forms import packed_hash, unpacked_hash
from libs.core.state.job import QueueKey, limit_class_of
from libs.core.state.limits import Limits, Suspension
from libs.core.state.own_network import OWN_NETWORK
from libs.core.state.queue_tree import QueueTree
from libs.core.state.shape import NO_SPREAD, Shape, shape_of
from schemas import ledger as led
from schemas.jobs import JobSpec, Network
from schemas.resources import Inventory

_CACHED = 4096
PATIENT = Context(waited_us=1 << 62)
"""Waited long enough for every preferred level to widen."""


class _Unjudged:
    """What has no verdict yet; None is one."""


_UNJUDGED = _Unjudged()


@dataclass(frozen=True, slots=True)
class Allowed:
    """Nothing speaks against `job` of a team, which is admitted as `admitted`; found with these classes."""

    job: JobSpec
    admitted: JobSpec
    note: str
    classes: Mapping[str, Any]


class FleetShape:
    """Feed it every valid record."""

    version: ClassVar[int] = 6
    """Of the layout of `dump`."""
    handled: ClassVar[frozenset[str]]
    ignored: ClassVar = frozenset({
        "job.boosted", "job.boost-ended",
        "node.left", "job.granted", "job.requeued", "attempt.starting", "attempt.running",
        "attempt.checkpointed", "attempt.progress", "gang.promised",
        "attempt.preempting", "attempt.stopping", "attempt.closed", "devices.freed",
        "devices.held", "hold.released", "board.recut", "board.recut-withdrawn", "input.rejected",
        "plan.declined", "clock.jumped", "segment.sealed", "team.left",
        "lease.granter", "node.silent", "node.heard", "node.declared-dead", "device.quarantined", "device.returned",
        "node.cordoned", "node.uncordoned", "devices.reserved", "devices.fragmented",
        "operator.acted", "command.refused", "ledger.summed", "prices.applied", "period.closed", "budgets.applied",
        "budget.topped-up", "budget.period-began", "budget.holds-renewed", "budget.reached",
    })  # fmt: skip
    """What is free or busy, and who is there now: placement's question."""

    def __init__(self) -> None:
        self.blocks: dict[str, tuple[DeviceBlock, ...]] = {}
        self.fleet = Fleet()
        """Every node as it last told, with nothing taken; nodes that left stay."""
        self.quotas: dict[str, Limits] = {}
        self.tree = QueueTree()
        self.suspended: dict[str, Suspension] = {}
        self.t_us = 0
        """The ledger's time, microseconds."""
        self.behind_us = 0
        """How much less the broker's clock shows, since it was set back; 0 when it shows more."""
        self.inbox_seq = 0
        """The last message of the pool's inbox that the ledger has decided."""
        self.ended = EndedJobs()
        self._jobs: ByJob[bytes] = ByJob()
        """Jobs that have not ended: spec hash, team, kind and size (`_packed`)."""
        self._open: dict[str, int] = {}
        """Team -> how many those are."""
        self._bytes: dict[str, int] = {}
        """Team -> what their specs take, as JSON. Of jobs of a snapshot that does not say it, nothing."""
        self._kinds: dict[str, dict[int, int]] = {}
        """Team -> kind (`job_kinds`) -> how many of those are of it."""
        self._cache: dict[Need, Capacity] = {}
        self._verdicts: dict[Shape, Blocked | None] = {}
        self._view: View | None = None
        self._models: dict[str, int] | None = None
        self.allowed: dict[tuple[str, int], Allowed] = {}
        """What was found of specs lately, by team and the spec's identity: many requests have the same."""

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
        self.t_us, self.inbox_seq = record.t_us, record.inbox_seq
        self.behind_us = 0 if record.wall_us is None else max(0, record.t_us - record.wall_us)

    def skip(self, seq: int) -> None:
        """A void record: it changes nothing."""

    def allow(self, team: str, found: Allowed) -> None:
        """Remembers what was found of a spec, until devices, quotas or queues are others."""
        if len(self.allowed) >= _CACHED:
            self.allowed.clear()
        self.allowed[team, id(found.job)] = found

    def _job_queued(self, event: led.JobQueued, t_us: int) -> None:
        kind = self.kind_of(
            event.team, event.user, event.spec, network=event.network, priority=event.priority, preempts=event.preempts
        )
        size = len(event.spec.__pydantic_serializer__.to_json(event.spec))
        self._add_job(event.job_id, event.spec_hash, event.team, kind, size)

    def _add_job(self, job_id: str, spec_hash: str, team: str, kind: int, size: int) -> None:
        self._jobs[job_id] = _packed(spec_hash, team, kind, size)
        self._open[team] = self._open.get(team, 0) + 1
        self._bytes[team] = self._bytes.get(team, 0) + size
        kinds = self._kinds.setdefault(team, {})
        kinds[kind] = kinds.get(kind, 0) + 1

    def _job_finished(self, event: led.JobFinished, t_us: int) -> None:
        if (known := self._jobs.pop(event.job_id, None)) is not None:
            spec_hash, team, kind, size = _unpacked(known)
            self.ended.add(event.job_id, spec_hash, t_us)
            kinds = self._kinds[team]
            if not (left := kinds[kind] - 1):
                del kinds[kind]
            else:
                kinds[kind] = left
            self._bytes[team] -= size
            if left := self._open[team] - 1:
                self._open[team] = left
            else:
                del self._open[team], self._kinds[team], self._bytes[team]

    def open_jobs(self, team: str) -> int:
        """How many jobs of the team wait or run."""
        return self._open.get(team, 0)

    def open_bytes(self, team: str) -> int:
        """What the specs of these jobs take, as JSON."""
        return self._bytes.get(team, 0)

    def open_kinds(self, team: str) -> Collection[int]:
        """The kinds of the team's jobs that wait or run."""
        return self._kinds.get(team, {}).keys()

    def kind_of(self, team: str, user: str, spec: JobSpec, *, network: Network, priority: int, preempts: bool) -> int:
        """Of such a job, which kind it is."""
        whose = user if self.tree.by_user(team) else ""
        limit_class = limit_class_of(spec.time_limit_s)
        return kind_of(QueueKey(priority, team, shape_of(spec, network), preempts, whose, limit_class))

    def owner(self, job_id: str) -> str | None:
        """The team of a job that waits or runs; None when there is none of that id."""
        known = self._jobs.get(job_id)
        return None if known is None else _unpacked(known)[1]

    def _offered(self, event: led.NodeJoined | led.BoardCutDone, t_us: int) -> None:
        self.join(event.inventory)

    def _quota_set(self, event: led.QuotaSet, t_us: int) -> None:
        self.allowed.clear()
        if (limits := Limits.of(event.limit_milli, event.by_type)) is None:
            self.quotas.pop(event.team, None)
        else:
            self.quotas[event.team] = limits

    def _queues_applied(self, event: led.QueuesApplied, t_us: int) -> None:
        self.allowed.clear()
        self.tree = QueueTree.said(event)

    def _team_suspended(self, event: led.TeamSuspended, t_us: int) -> None:
        known = self.suspended.get(event.team)
        self.suspended[event.team] = Suspension(known.since_us if known else t_us, event.reason, event.user)

    def _team_resumed(self, event: led.TeamResumed, t_us: int) -> None:
        self.suspended.pop(event.team, None)

    def same(self, job_id: str, spec_hash: str) -> bool | None:
        """Whether the job of that id has this body; None while the id is free."""
        if (known := self._jobs.get(job_id)) is not None:
            return _unpacked(known)[0] == spec_hash
        return self.ended.same(job_id, spec_hash, self.t_us)

    def taken(self, job_id: str) -> bool:
        return job_id in self._jobs or self.ended.knows(job_id, self.t_us)

    @property
    def oldest_us(self) -> int:
        """Requests that the broker stored before this, by its clock, are refused. Placement, which knows when the clock was
        set, has the last word."""
        return max(0, self.ended.oldest_us(self.t_us) - self.behind_us)

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
        """MIG profiles that the pool has, or can be repartitioned to."""
        return sorted({block.profile for block in self._all() if block.profile})

    def label_values(self, name: str) -> list[str]:
        """Values of a node label in the pool."""
        return sorted({value for block in self._all() for key, value in block.labels if key == name})

    def label_names(self) -> list[str]:
        return sorted({key for block in self._all() for key, _ in block.labels} - {OWN_NETWORK})

    def capacity(self, need: Need) -> Capacity:
        """What could ever serve `need`. Remembered until devices change, so a burst of like requests costs one look."""
        known = self._cache.get(need)
        if known is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            known = self._cache[need] = capacity_of(self._all(), need)
        return known

    def empty_view(self) -> View:
        """The pool with every device free; to be read only."""
        if self._view is None:
            self._view = View.of(self.fleet)
        return self._view

    def verdict(self, shape: Shape) -> Blocked | None:
        """Why the placer would find no place for `shape` with every device free, however long it waits; None when it
        would, or when boards could be repartitioned into what is asked for (`repartitionable`). Remembered until devices
        change."""
        fewest = tuple(replace(role, count=role.min_count) for role in shape.roles)
        devices = shape.least if fewest else shape.devices  # more may fit later; whether any does is asked
        key = replace(shape, contents=(), family="", spread=NO_SPREAD, roles=fewest, devices=devices)
        known = self._verdicts.get(key, _UNJUDGED)
        if isinstance(known, _Unjudged):
            if len(self._verdicts) >= _CACHED:
                self._verdicts.clear()
            known = self._verdicts[key] = self._judge(key)
        return known

    def repartitionable(self, profile: str) -> bool:
        """Whether boards could be repartitioned into more instances of this profile than there are."""
        return bool(profile) and any(block.possible and block.profile == profile for block in self._all())

    def join(self, inventory: Inventory) -> None:
        """A node offers devices, for the first time or others than before."""
        self._join(inventory)
        self._changed()

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot: of each node the inventory as it is packed, the living jobs, the ended ones."""
        return state_parts.write(
            {
                "quotas": {team: limits.dump() for team, limits in self.quotas.items()},
                "tree": self.tree.dump(),
                "suspended": self.suspended,
                "t_us": self.t_us,
                "behind_us": self.behind_us,
                "inbox_seq": self.inbox_seq,
            },
            {
                "nodes": (b64encode(node.packed).decode() for node in self.fleet.nodes.values()),
                "jobs": ((job_id, *_unpacked(about)) for job_id, about in self._jobs.items()),
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
        shape.tree = QueueTree.load(about.get("tree", {}))
        shape.suspended = {team: Suspension(*how) for team, how in about.get("suspended", {}).items()}
        shape.t_us, shape.inbox_seq = about["t_us"], about["inbox_seq"]
        shape.behind_us = about.get("behind_us", 0)
        ended: list[Any] = []
        for table, rows in tables:
            if table == "nodes":
                for packed in rows:
                    shape._join(Inventory.model_validate_json(zlib.decompress(b64decode(packed))))
            elif table == "jobs":
                for job_id, spec_hash, team, *later in rows:
                    kind, size = (*later, 0, 0)[:2]  # written before there were any: all one kind, of no size
                    shape._add_job(job_id, spec_hash, team, kind, size)
            else:
                ended += rows
        shape.ended = EndedJobs.of_rows(ended)
        return shape

    def _all(self) -> list[DeviceBlock]:
        return [block for blocks in self.blocks.values() for block in blocks]

    def _join(self, inventory: Inventory) -> None:
        self.fleet.join(inventory, incarnation=1)
        self.blocks[inventory.node] = tuple(blocks_of(inventory, self.fleet.boards))

    def _judge(self, shape: Shape) -> Blocked | None:
        if self.repartitionable(shape.profile):
            return None
        outcome = find(self.empty_view(), shape, context=PATIENT)
        return outcome if isinstance(outcome, Blocked) else None

    def _changed(self) -> None:
        self._models = self._view = None
        self._cache.clear()
        self._verdicts.clear()
        self.allowed.clear()


def _packed(spec_hash: str, team: str, kind: int, size: int) -> bytes:
    """A third of what two strings take."""
    return marshal.dumps((packed_hash(spec_hash), team, kind, size), 2)


def _unpacked(packed: bytes) -> tuple[str, str, int, int]:
    spec_hash, team, kind, size = marshal.loads(packed)
    return unpacked_hash(spec_hash), team, kind, size


_FOLD: dict[type, Callable[[FleetShape, Any, int], None]] = {
    led.JobQueued: FleetShape._job_queued,
    led.JobFinished: FleetShape._job_finished,
    led.NodeJoined: FleetShape._offered,
    led.BoardCutDone: FleetShape._offered,
    led.QuotaSet: FleetShape._quota_set,
    led.QueuesApplied: FleetShape._queues_applied,
    led.TeamSuspended: FleetShape._team_suspended,
    led.TeamResumed: FleetShape._team_resumed,
}
FleetShape.handled = led.kinds_of(_FOLD)
