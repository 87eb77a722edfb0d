"""Checks a ledger against the invariants that can be read from it, without the fold that placement runs on.

It keeps its own books: intervals per device, parts per attempt, one terminal state per job. What counts against a team's
limits (I7) stands in books of its own as well (`libs.core.projections.limit_books`). (I1-I3, I5, I7, I8, I10 are
the names of these statements in docs/invariants.md.) It goes on after a violation, so that a report names them all.

Its books hold what is open, and of ended jobs the last ids (`libs.core.projections.ended_ids`): an audit of ten million
records must fit where one of ten thousand does.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

from libs.core.projections.ended_ids import EndedIds
from libs.core.projections.limit_books import Kind, LimitBooks
from schemas import ledger as led
from schemas.attempts import Evidence, Outcome
from schemas.clock import MeasuredBy
from schemas.jobs import JobSpec, JobState
from schemas.resources import WHOLE_MILLI, Claim, Resources

MAX_VIOLATIONS = 1000
"""A report names this many; more are counted."""


@dataclass(slots=True)
class Verification:
    """What a whole ledger says. `milli_us`: device-microseconds x thousandths, of claims that were freed."""

    records: int = 0
    void: int = 0
    events: int = 0
    jobs: int = 0
    attempts: int = 0
    open_attempts: int = 0
    terminal: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    rejected_inputs: int = 0
    declined_plans: int = 0
    milli_us: int = 0
    by_team: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    violations_total: int = 0
    last_seq: int = 0
    last_t_us: int = 0
    head_seq: int = 0
    head_hash: str = ""
    """The last valid record: two who verified the same ledger have the same."""

    @property
    def ok(self) -> bool:
        return self.violations_total == 0


@dataclass(slots=True)
class _Job:
    team: str
    spec: JobSpec
    attempts: int = 0
    open: "_Attempt | None" = None
    outcome: Outcome | None = None
    """Of the last attempt that was closed."""
    terminal: JobState | None = None


@dataclass(slots=True)
class _Attempt:
    number: int
    opened_us: int
    by_node: dict[str, list[Claim]]
    done: bool = True
    """Every part that is free so far ended by itself with exit code 0."""


@dataclass(slots=True)
class _Device:
    memory_mib: int
    node: str
    kind: Kind
    """Model and MIG profile."""
    power_w: int = 0
    epoch: int = 0
    claims: dict[str, Claim] = field(default_factory=dict)
    """`<job id>.<attempt>` -> what it holds of the device."""


@dataclass(slots=True)
class _Host:
    """What a node has beside its devices, and what of it is granted."""

    leaf: tuple[str, str, str]
    cpu_milli: int
    memory_mib: int
    rack_w: int
    used_cpu: int = 0
    used_mib: int = 0


class Checker:
    """Feed it every record of a ledger in stream order, void ones too; then ask for the report."""

    handled: ClassVar[frozenset[str]]
    ignored: ClassVar[frozenset[str]] = frozenset()
    """An auditor overlooks nothing."""

    def __init__(self) -> None:
        self.report = Verification()
        self._jobs: dict[str, _Job] = {}
        """Jobs that have not ended; and ones that ended although they held something, until they do not."""
        self._ended = EndedIds()
        self._devices: dict[str, _Device] = {}
        self._nodes: dict[str, tuple[int, bool]] = {}
        self._hosts: dict[str, _Host] = {}
        self._racks: dict[tuple[str, str, str], int] = {}
        self._limits = LimitBooks()
        self._going: dict[str, str] = {}
        """Instances that are to be destroyed -> their board: nobody may be granted them."""
        self._gone: set[str] = set()
        """Instances that a repartition destroyed."""
        self._head = 0
        self._seq = 0
        self._by_team: dict[str, int] = defaultdict(int)

    def step(self, seq: int, record: led.LedgerRecord, valid: bool) -> None:
        """One record at stream sequence `seq`; `valid` is what the chain's reader rule says of it (I10)."""
        self._seq = self.report.last_seq = seq
        if not valid:
            self.report.void += 1
            return
        self.report.records += 1
        if record.prev_seq != self._head:
            self._broken("I10", f"names record {record.prev_seq} before it, the last valid one is {self._head}")
        if record.t_us < self.report.last_t_us:
            self._broken("I10", f"time goes back from {self.report.last_t_us} to {record.t_us}")
        self._head, self.report.last_t_us = seq, record.t_us
        for event in record.events:
            self.report.events += 1
            check = _CHECKS.get(type(event))
            if check is not None:
                check(self, event, record.t_us)

    def finish(self) -> Verification:
        """The report so far."""
        self.report.open_attempts = sum(job.open is not None for job in self._jobs.values())
        self.report.by_team = dict(sorted(self._by_team.items()))
        for device_id, device in self._devices.items():
            used = sum(c.milli for c in device.claims.values())
            if not 0 <= used <= WHOLE_MILLI:
                self._broken("I8", f"{device_id} ends with {used} milli in use")
        return self.report

    def _broken(self, invariant: str, what: str) -> None:
        self.report.violations_total += 1
        if len(self.report.violations) < MAX_VIOLATIONS:
            self.report.violations.append(f"{invariant} at seq {self._seq}: {what}")

    def _node_joined(self, e: led.NodeJoined, t_us: int) -> None:
        node = e.inventory.node
        if node in self._nodes and e.incarnation <= self._nodes[node][0]:
            self._broken("I8", f"node {node} joins with incarnation {e.incarnation} after {self._nodes[node][0]}")
        self._nodes[node] = (e.incarnation, True)
        self._host_joined(e)
        self._forget_repartitions(node, {device.id for device in e.inventory.devices})
        for device in e.inventory.devices:
            known = self._devices.get(device.id)
            measured = device.memory_free_mib
            memory_mib = device.memory_mib if measured is None or measured > device.memory_mib else measured
            if known is None:
                self._devices[device.id] = _Device(
                    memory_mib, node, (device.model, device.mig_profile), device.power_limit_w
                )
                continue
            if known.claims:
                self._broken("I8", f"node {node} joins while {device.id} is held by {', '.join(known.claims)}")
            known.memory_mib, known.node, known.power_w = memory_mib, node, device.power_limit_w
            known.kind = (device.model, device.mig_profile)

    def _forget_repartitions(self, node: str, offered: set[str]) -> None:
        self._going = {device: board for device, board in self._going.items() if self._devices[device].node != node}
        self._gone -= offered

    def _board_repartitioned(self, e: led.BoardRecut, t_us: int) -> None:
        for device_id in e.recut.destroy:
            device = self._devices.get(device_id)
            if device is None or device.node != e.node:
                self._broken("I8", f"{device_id} is to be destroyed and is not of node {e.node}")
            elif device.claims:
                self._broken("I8", f"{device_id} is to be destroyed while held by {', '.join(device.claims)}")
            else:
                self._going[device_id] = e.recut.board

    def _board_cut(self, e: led.BoardCutDone, t_us: int) -> None:
        """The node's inventory is another; what is held stays held, and is still there."""
        if self._nodes.get(e.node) != (e.incarnation, True) or e.inventory.node != e.node:
            self._broken("I8", f"node {e.node} cuts board {e.board} in a life that is not its present one")
        self._going = {device_id: board for device_id, board in self._going.items() if board != e.board}
        offered = {device.id for device in e.inventory.devices}
        for device_id, known in self._devices.items():
            if known.node == e.node and device_id not in offered:
                self._gone.add(device_id)
        self._gone -= offered
        for device in e.inventory.devices:
            measured = device.memory_free_mib
            memory_mib = device.memory_mib if measured is None or measured > device.memory_mib else measured
            new = _Device(memory_mib, e.node, (device.model, device.mig_profile), device.power_limit_w)
            known = self._devices.setdefault(device.id, new)
            known.memory_mib, known.node, known.power_w = memory_mib, e.node, device.power_limit_w

    def _board_withdrawn(self, e: led.BoardRecutWithdrawn, t_us: int) -> None:
        """What was to go may be gone: nobody is granted it before the node says what the board is."""
        if self._nodes.get(e.node) != (e.incarnation, True):
            self._broken(
                "I8", f"cut {e.number} of board {e.board} is withdrawn in a life of node {e.node} that has ended"
            )

    def _host_joined(self, e: led.NodeJoined) -> None:
        """A leaf's power cap is the smallest that a node of it declares."""
        where, node = e.inventory.position, e.inventory.node
        leaf = (where.zone, where.spine, where.leaf)
        known = self._hosts.get(node)
        host = _Host(leaf, e.inventory.cpus * 1000, e.inventory.memory_mib, e.inventory.rack_power_w)
        if known is not None:
            host.used_cpu, host.used_mib = known.used_cpu, known.used_mib
        self._hosts[node] = host
        for rack in {leaf, known.leaf} if known is not None else {leaf}:
            caps = [h.rack_w for h in self._hosts.values() if h.leaf == rack and h.rack_w]
            self._racks.pop(rack, None)
            if caps:
                self._racks[rack] = min(caps)

    def _node_left(self, e: led.NodeLeft, t_us: int) -> None:
        self._nodes[e.node] = (e.incarnation, False)
        for device_id, device in self._devices.items():
            if device.node == e.node and device.claims:
                self._broken("I8", f"node {e.node} leaves while {device_id} is held by {', '.join(device.claims)}")

    def _quota_set(self, e: led.QuotaSet, t_us: int) -> None:
        self._limits.set(e.team, e.limit_milli, e.by_type)

    def _job_queued(self, e: led.JobQueued, t_us: int) -> None:
        if e.job_id in self._jobs or self._ended.has(e.job_id, t_us):
            self._broken("I3", f"{e.job_id} is queued a second time")
            return
        self.report.jobs += 1
        self._jobs[e.job_id] = _Job(e.team, e.spec)

    def _job_granted(self, e: led.JobGranted, t_us: int) -> None:
        job = self._alive(e.job_id, "granted")
        if job is None:
            return
        self.report.attempts += 1
        if job.open is not None:
            self._broken("I5", f"{e.job_id}: attempt {e.attempt} opens while {job.open.number} is open")
        if e.attempt != job.attempts + 1:
            self._broken("I5", f"{e.job_id}: attempt {e.attempt} follows {job.attempts}")
        job.attempts = e.attempt
        asked = job.spec.resources
        distinct = len({c.device for c in e.claims})
        if len(e.claims) != distinct or not _fewest(asked) <= distinct <= asked.devices:
            self._broken("I2", f"{e.job_id} asked for {asked.devices} devices and is granted {len(e.claims)} claims")
        by_node: dict[str, list[Claim]] = defaultdict(list)
        for claim in e.claims:
            by_node[claim.node].append(claim)
            self._open(e, claim, asked.share_milli)
        job.open = _Attempt(e.attempt, t_us, dict(by_node))
        self._over_limit(self._limits.grant(job.team, e.job_id, [(self._kind(c.device), c.milli) for c in e.claims]))
        self._within_hosts(e, by_node)

    def _within_hosts(self, e: led.JobGranted, by_node: dict[str, list[Claim]]) -> None:
        """Processors and host memory of each node, power of each leaf, at the moment that they are taken."""
        for node, claims in by_node.items():
            host = self._hosts.get(node)
            if host is None:
                continue
            cpu, mib = sum(c.cpu_milli for c in claims), sum(c.host_memory_mib for c in claims)
            host.used_cpu, host.used_mib = host.used_cpu + cpu, host.used_mib + mib
            if cpu and host.used_cpu > host.cpu_milli:
                self._broken("I1", f"{node} has {host.cpu_milli} milli of processors, {host.used_cpu} are granted")
            if mib and host.used_mib > host.memory_mib:
                self._broken("I1", f"{node} has {host.memory_mib} MiB of host memory, {host.used_mib} are granted")
        for leaf in {self._hosts[node].leaf for node in by_node if node in self._hosts}:
            cap_w = self._racks.get(leaf)
            drawn_mw = self._drawn_mw(leaf) if cap_w is not None else 0
            if cap_w is not None and drawn_mw > cap_w * 1000:
                self._broken(
                    "I1", f"leaf {'/'.join(leaf)} may draw {cap_w} W, granted devices draw {drawn_mw / 1000:g}"
                )

    def _drawn_mw(self, leaf: tuple[str, str, str]) -> int:
        """Milliwatts: each granted device at its board limit, a share of one pro rata."""
        return sum(
            device.power_w * sum(claim.milli for claim in device.claims.values())
            for device in self._devices.values()
            if device.claims and device.node in self._hosts and self._hosts[device.node].leaf == leaf
        )

    def _devices_held(self, e: led.DevicesHeld, t_us: int) -> None:
        job = self._alive(e.job_id, "beneficiary of a hold")
        if job is not None:
            milli = job.spec.resources.share_milli
            self._over_limit(self._limits.hold(job.team, e.job_id, [(self._kind(d), milli) for d in e.devices]))

    def _hold_released(self, e: led.HoldReleased, t_us: int) -> None:
        self._limits.release(e.job_id)

    def _over_limit(self, exceeded: list[str]) -> None:
        for what in exceeded:
            self._broken("I7", what)

    def _kind(self, device_id: str) -> Kind | None:
        """None for a device that no node brought, which is another violation and counts for nothing here."""
        device = self._devices.get(device_id)
        return None if device is None else device.kind

    def _open(self, e: led.JobGranted, claim: Claim, asked_milli: int) -> None:
        device = self._devices.get(claim.device)
        if claim.device in self._going or claim.device in self._gone:
            self._broken("I8", f"{e.job_id} is granted {claim.device}, which a repartition destroys")
        if device is None or not self._nodes.get(claim.node, (0, False))[1] or device.node != claim.node:
            self._broken("I8", f"{e.job_id} is granted {claim.device} of {claim.node}, which is not in the pool now")
            return
        if claim.milli != asked_milli:
            self._broken("I2", f"{e.job_id} asked for {asked_milli} milli and is granted {claim.milli}")
        if claim.epoch <= device.epoch:
            self._broken("I1", f"{claim.device}: epoch {claim.epoch} after {device.epoch}")
        device.epoch = claim.epoch
        device.claims[f"{e.job_id}.{e.attempt}"] = claim
        if sum(c.milli for c in device.claims.values()) > WHOLE_MILLI:
            self._broken("I1", f"{claim.device} is granted beyond its compute to {', '.join(device.claims)}")
        if sum(c.memory_mib for c in device.claims.values()) > device.memory_mib:
            self._broken("I1", f"{claim.device} is granted beyond its memory to {', '.join(device.claims)}")

    def _devices_freed(self, e: led.DevicesFreed, t_us: int) -> None:
        job = self._jobs.get(e.job_id)
        if job is None or job.open is None or job.open.number != e.attempt:
            self._broken("I5", f"{e.job_id}.{e.attempt} frees devices and is not open")
            return
        claims = job.open.by_node.pop(e.node, None)
        if claims is None or {c.device for c in claims} != set(e.devices):
            self._broken("I5", f"{e.job_id}.{e.attempt} frees on {e.node} what it does not hold there")
            return
        job.open.done &= e.evidence is Evidence.RELEASED and e.own_exit and e.exit_code == 0
        self._limits.free(job.team, [(self._kind(c.device), c.milli) for c in claims])
        for claim in claims:
            if claim.device in self._devices:
                self._devices[claim.device].claims.pop(f"{e.job_id}.{e.attempt}", None)
            if claim.node in self._hosts:
                self._hosts[claim.node].used_cpu -= claim.cpu_milli
                self._hosts[claim.node].used_mib -= claim.host_memory_mib
            amount = claim.milli * (t_us - job.open.opened_us)
            self.report.milli_us += amount
            self._by_team[job.team] += amount

    def _attempt_closed(self, e: led.AttemptClosed, t_us: int) -> None:
        job = self._jobs.get(e.job_id)
        if job is None or job.open is None or job.open.number != e.attempt:
            self._broken("I5", f"{e.job_id}.{e.attempt} is closed and was not open")
            return
        if job.open.by_node:
            self._broken(
                "I5", f"{e.job_id}.{e.attempt} is closed and still holds devices on {', '.join(job.open.by_node)}"
            )
        if e.outcome is Outcome.SUCCEEDED and not job.open.done:
            self._broken("I5", f"{e.job_id}.{e.attempt} is closed as succeeded, and a part of it ended otherwise")
        job.open, job.outcome = None, e.outcome
        if job.terminal is not None:
            del self._jobs[e.job_id]

    def _job_finished(self, e: led.JobFinished, t_us: int) -> None:
        job = self._alive(e.job_id, f"finished as {e.state.value}")
        if job is None:
            return
        if job.open is not None:
            self._broken("I5", f"{e.job_id} ends while attempt {job.open.number} is open")
        if not e.state.terminal:
            self._broken("I3", f"{e.job_id} ends in {e.state.value}, which is not a terminal state")
        if e.state is JobState.SUCCEEDED and job.outcome is not Outcome.SUCCEEDED:
            self._broken("I3", f"{e.job_id} succeeds without an attempt that did")
        job.terminal = e.state
        self._ended.add(e.job_id, t_us)
        if job.open is None:
            del self._jobs[e.job_id]
        self.report.terminal[e.state.value] = self.report.terminal.get(e.state.value, 0) + 1

    def _preempting(self, e: led.AttemptPreempting, t_us: int) -> None:
        self.report.preemptions += 1
        self._alive(e.job_id, "preempted")

    def _follows(self, e: led.EventOfJob, t_us: int) -> None:
        self._alive(e.job_id, e.kind)

    def _input_rejected(self, e: led.InputRejected, t_us: int) -> None:
        self.report.rejected_inputs += 1

    def _plan_declined(self, e: led.PlanDeclined, t_us: int) -> None:
        self.report.declined_plans += 1

    def _clock_jumped(self, e: led.ClockJumped, t_us: int) -> None:
        if e.estimated != (e.measured is MeasuredBy.WALL):
            self._broken("I10", f"a jump of the clock was measured by {e.measured.value}; estimated: {e.estimated}")

    def _alive(self, job_id: str, what: str) -> _Job | None:
        job = self._jobs.get(job_id)
        if job is None:
            ended = self._ended.has(job_id, self.report.last_t_us)
            self._broken("I3", f"{job_id} is {what} " + ("after it ended" if ended else "and does not wait or run"))
        elif job.terminal is not None:
            self._broken("I3", f"{job_id} is {what} after it ended as {job.terminal.value}")
        else:
            return job
        return None


def _fewest(asked: Resources) -> int:
    """The fewest devices that fulfil a request: elastic ones may get fewer than they ask for."""
    if asked.roles:
        return sum((role.min_count or role.count) * role.devices for role in asked.roles)
    return asked.min_devices or asked.devices


_CHECKS: dict[type, Any] = {
    led.NodeJoined: Checker._node_joined,
    led.BoardRecut: Checker._board_repartitioned,
    led.BoardCutDone: Checker._board_cut,
    led.BoardRecutWithdrawn: Checker._board_withdrawn,
    led.NodeLeft: Checker._node_left,
    led.QuotaSet: Checker._quota_set,
    led.JobQueued: Checker._job_queued,
    led.JobGranted: Checker._job_granted,
    led.DevicesHeld: Checker._devices_held,
    led.HoldReleased: Checker._hold_released,
    led.DevicesFreed: Checker._devices_freed,
    led.AttemptClosed: Checker._attempt_closed,
    led.JobFinished: Checker._job_finished,
    led.AttemptPreempting: Checker._preempting,
    led.AttemptStarting: Checker._follows,
    led.AttemptRunning: Checker._follows,
    led.AttemptCheckpointed: Checker._follows,
    led.AttemptStopping: Checker._follows,
    led.JobRequeued: Checker._follows,
    led.InputRejected: Checker._input_rejected,
    led.PlanDeclined: Checker._plan_declined,
    led.ClockJumped: Checker._clock_jumped,
}
Checker.handled = led.kinds_of(_CHECKS)
