"""A ledger as a report needs it: every device, job and attempt with its times. Pure: records in, facts out.

Two clocks, both the broker's. `t_us` is the ledger's own time, which money is counted in. `time_us` is when the broker
stored a record, which waiting is counted in: a job waits until its grant is stored, not until it is thought of.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from schemas import ledger as led
from schemas.attempts import Outcome
from schemas.jobs import Checkpoint, JobSpec
from schemas.resources import WHOLE_MILLI, Claim, DeviceKind, Inventory


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """One device in the order of the picture: by leaf, node and index; CPUs last."""

    id: str
    node: str
    leaf: str
    index: int
    model: str
    accelerator: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """One claim of an attempt. `offset` is where its share lies on the device (thousandths), so that shares of one
    device do not overlap in a picture."""

    device: str
    node: str
    milli: int
    offset: int


@dataclass(slots=True)
class AttemptFacts:
    """One attempt; times are microseconds since the epoch, 0 until they happen."""

    job: "JobFacts"
    number: int
    granted_us: int
    stored_us: int
    holds: tuple[Hold, ...]
    resume: Checkpoint | None
    at_once: bool
    """Granted by the record that queued its job: the job fitted, and nobody was before it."""
    running_us: int = 0
    freed_us: dict[str, int] = field(default_factory=dict)
    closed_us: int = 0
    outcome: Outcome | None = None
    """None while it is open."""
    preempting_us: int = 0
    beneficiary: str = ""
    preemption_cost_device_s: float = 0.0
    """What giving way cost, as the plan had it."""
    checkpoints: list[tuple[int, Checkpoint]] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[str, ...]:
        """In rank order."""
        return tuple(dict.fromkeys(h.node for h in self.holds))


@dataclass(slots=True)
class JobFacts:
    """One job from its submit to its end. `state` is a terminal one, or queued or running."""

    id: str
    team: str
    spec: JobSpec
    client_key: str
    priority: int
    submitted_us: int
    queued_us: int
    attempts: list[AttemptFacts] = field(default_factory=list)
    requeued_us: list[int] = field(default_factory=list)
    finished_us: int = 0
    state: str = "queued"
    reason: str = ""

    @property
    def last(self) -> AttemptFacts:
        """The latest attempt. Raises IndexError before the first grant."""
        return self.attempts[-1]


class Facts:
    """Feed it every valid record in order; read its fields at any time.

    Raises KeyError from `apply` when a record speaks of a job that was never queued: the ledger is not whole.
    """

    handled: ClassVar[frozenset[str]]
    ignored: ClassVar = frozenset({
        "job.boosted", "job.boost-ended",
        "attempt.starting", "attempt.progress", "gang.promised",
        "attempt.stopping", "devices.held", "hold.released", "board.recut",
        "board.recut-withdrawn", "plan.declined", "clock.jumped", "segment.sealed", "team.suspended", "team.resumed",
        "team.left", "queues.applied", "prices.applied", "period.closed", "budgets.applied",
        "budget.topped-up", "budget.period-began", "budget.holds-renewed", "budget.reached",
        "lease.granter", "node.silent", "node.heard", "node.declared-dead", "device.quarantined", "device.returned",
        "node.cordoned", "node.uncordoned", "devices.reserved", "devices.fragmented",
        "operator.acted", "command.refused", "ledger.summed",
    })  # fmt: skip
    """Steps on the way to what a report shows."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobFacts] = {}
        self.seats: dict[str, DeviceSlot] = {}
        self.up: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """Node -> [(from, to)] in which it was in the pool; `to` 0: still is."""
        self.quotas: dict[str, int | None] = {}
        self.records = 0
        self.rejected_inputs = 0
        self.first_us = self.last_us = 0
        self.seq = 0
        self._inventories: dict[str, Inventory] = {}
        self._taken: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._queued_here: set[str] = set()

    def apply(self, record: led.LedgerRecord, seq: int, time_us: int) -> None:
        """Takes in a valid record that the broker stored at `time_us` as stream sequence `seq`."""
        self.records += 1
        self.seq = seq
        self.first_us = self.first_us or record.t_us
        self.last_us = record.t_us
        self._queued_here.clear()
        for event in record.events:
            take = _TAKE.get(type(event))
            if take is not None:
                take(self, event, record.t_us, time_us)

    @property
    def teams(self) -> list[str]:
        return sorted({job.team for job in self.jobs.values()})

    def attempts(self) -> list[AttemptFacts]:
        """Every attempt, in the order of grants."""
        return sorted((a for job in self.jobs.values() for a in job.attempts), key=lambda a: (a.granted_us, a.job.id))

    def held_milli(self) -> int:
        """What is held now of accelerators, thousandths of devices."""
        return sum(
            end - start
            for device, taken in self._taken.items()
            if self.seats[device].accelerator
            for start, end in taken
        )

    def ordered_devices(self) -> list[DeviceSlot]:
        """All devices in the picture's order."""
        return sorted(self.seats.values(), key=lambda s: (not s.accelerator, s.leaf, s.node, s.index, s.id))

    # ------------------------------------------------------------------------------------------------- one per event

    def _node_joined(self, e: led.NodeJoined, t_us: int, time_us: int) -> None:
        node = e.inventory.node
        self._leave(node, t_us)
        self.up[node].append((t_us, 0))
        self._know(e.inventory)

    def _board_cut(self, e: led.BoardCutDone, t_us: int, time_us: int) -> None:
        self._know(e.inventory)

    def _know(self, inventory: Inventory) -> None:
        """Instances that a repartition has destroyed keep their seats: what ran there stays in the picture."""
        self._inventories[inventory.node] = inventory
        for d in inventory.devices:
            accelerator = d.kind is not DeviceKind.CPU
            self.seats[d.id] = DeviceSlot(d.id, inventory.node, inventory.position.leaf, d.index, d.model, accelerator)

    def _node_left(self, e: led.NodeLeft, t_us: int, time_us: int) -> None:
        self._leave(e.node, t_us)

    def _leave(self, node: str, t_us: int) -> None:
        if self.up[node] and not self.up[node][-1][1]:
            self.up[node][-1] = (self.up[node][-1][0], t_us)

    def _quota_set(self, e: led.QuotaSet, t_us: int, time_us: int) -> None:
        self.quotas[e.team] = e.limit_milli

    def _job_queued(self, e: led.JobQueued, t_us: int, time_us: int) -> None:
        self._queued_here.add(e.job_id)
        self.jobs[e.job_id] = JobFacts(e.job_id, e.team, e.spec, e.client_key, e.priority, e.submitted_us, time_us)

    def _job_granted(self, e: led.JobGranted, t_us: int, time_us: int) -> None:
        job = self.jobs[e.job_id]
        holds = tuple(self._seat(claim) for claim in e.claims)
        at_once = e.job_id in self._queued_here
        job.attempts.append(AttemptFacts(job, e.attempt, t_us, time_us, holds, e.resume, at_once))
        job.state = "running"

    def _seat(self, claim: Claim) -> Hold:
        """The lowest place on the device where the share fits; at the bottom when a broken ledger overfills it."""
        taken = self._taken[claim.device]
        offset = 0
        for start, end in sorted(taken):
            if start - offset >= claim.milli:
                break
            offset = max(offset, end)
        offset = min(offset, WHOLE_MILLI - claim.milli)
        taken.append((offset, offset + claim.milli))
        return Hold(claim.device, claim.node, claim.milli, offset)

    def _running(self, e: led.AttemptRunning, t_us: int, time_us: int) -> None:
        self.jobs[e.job_id].last.running_us = t_us

    def _checkpointed(self, e: led.AttemptCheckpointed, t_us: int, time_us: int) -> None:
        self.jobs[e.job_id].last.checkpoints.append((t_us, e.checkpoint))

    def _preempting(self, e: led.AttemptPreempting, t_us: int, time_us: int) -> None:
        attempt = self.jobs[e.job_id].last
        attempt.preempting_us, attempt.beneficiary = t_us, e.beneficiary
        attempt.preemption_cost_device_s = e.cost_device_s or 0.0

    def _freed(self, e: led.DevicesFreed, t_us: int, time_us: int) -> None:
        attempt = self.jobs[e.job_id].last
        attempt.freed_us[e.node] = t_us
        for hold in attempt.holds:
            if hold.node == e.node:
                self._taken[hold.device].remove((hold.offset, hold.offset + hold.milli))

    def _closed(self, e: led.AttemptClosed, t_us: int, time_us: int) -> None:
        attempt = self.jobs[e.job_id].last
        attempt.closed_us, attempt.outcome = t_us, e.outcome

    def _requeued(self, e: led.JobRequeued, t_us: int, time_us: int) -> None:
        job = self.jobs[e.job_id]
        job.state = "queued"
        job.requeued_us.append(t_us)

    def _finished(self, e: led.JobFinished, t_us: int, time_us: int) -> None:
        job = self.jobs[e.job_id]
        job.state, job.reason, job.finished_us = e.state.value, e.reason, t_us

    def _input_rejected(self, e: led.InputRejected, t_us: int, time_us: int) -> None:
        self.rejected_inputs += 1


_TAKE: dict[type, Callable[[Facts, Any, int, int], None]] = {
    led.NodeJoined: Facts._node_joined,
    led.BoardCutDone: Facts._board_cut,
    led.NodeLeft: Facts._node_left,
    led.QuotaSet: Facts._quota_set,
    led.JobQueued: Facts._job_queued,
    led.JobGranted: Facts._job_granted,
    led.AttemptRunning: Facts._running,
    led.AttemptCheckpointed: Facts._checkpointed,
    led.AttemptPreempting: Facts._preempting,
    led.DevicesFreed: Facts._freed,
    led.AttemptClosed: Facts._closed,
    led.JobRequeued: Facts._requeued,
    led.JobFinished: Facts._finished,
    led.InputRejected: Facts._input_rejected,
}
Facts.handled = led.kinds_of(_TAKE)
