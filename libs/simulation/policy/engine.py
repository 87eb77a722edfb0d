"""Virtual time: what happens next, told to the decider as its services would tell it.

    arrivals, ends, faults --messages--> Decider.decide --events--> simulated agents --messages--> ...

At one moment the decider is called until nothing new is said at that moment. Everything is ordered by time, then by the order
in which it was foreseen, and chance comes from one seed: the same input gives the same run.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from libs.core.placement.score.scorer import Scorer
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import OrderKnobs, OrderRule, Precedence
from libs.core.scheduling.precedence.exchange import apart, exchanges
from libs.core.scheduling.precedence.history import similar_to
from libs.core.scheduling.promises import new_promises
from libs.core.state.job import Job
from libs.simulation.policy.workload import FleetSize, WorkloadRow, admitted, in_order
from schemas import inbox, subjects
from schemas import ledger as led
from schemas.resources import Inventory

MOMENTS = 50_000
"""So many jobs are decided about at the moment that something is said of one."""
CYCLE_S = 5.0
"""How often is decided where there are more: schedulers of clusters with so many decide no more often."""

SimulatedPolicy = OrderRule | inbox.ApplyQueues | None
"""One order for all jobs; or queues, with an order each; None: what a pool has of which nobody said anything."""


class KnownRunTime(StrEnum):
    """What the scheduler is told of a row's run time."""

    NOTHING = "nothing"
    PROGRESS = "progress"
    DURATIONS = "durations"


@dataclass(frozen=True, slots=True)
class SimulatedWorld:
    """What is simulated beside the workload. Times in seconds."""

    knows: KnownRunTime = KnownRunTime.NOTHING
    preemption_loss_s: float = 30.0
    """Work that each device of a preempted gang does again."""
    start_delay_s: float = 0.0
    stop_delay_s: float = 0.0
    """From the decision to preempt until the devices are free: checkpoint and stop."""
    node_faults_per_day: float = 0.0
    """Of each node."""
    repair_s: float = 600.0
    checkpoint_s: float = 600.0
    """Work since the last multiple of this is lost with a node."""
    seed: int = 0
    fast: bool = False
    """No scores: a request takes the first good fit, as for serving classes."""
    cycle_s: float | None = None
    """How often is decided: all that was said since the last time together, and who is told to start or stop has done so by
    the next. 0: at the moment that something is said. None: 0 for up to `MOMENTS` jobs, else `CYCLE_S`."""


@dataclass(slots=True)
class SimulatedJob:
    """One job as its agents see it, and what became of it. Times in microseconds."""

    row: WorkloadRow
    submit_us: int
    remaining_us: int
    run_us: int = -1
    """When it began to run, -1: it does not."""
    waits_us: int = 0
    """Since when it waits."""
    longest_wait_us: int = 0
    end_us: int = -1
    version: int = 0
    preemptions: int = 0
    held_us: int = 0
    """Time that it ran, all attempts."""
    nodes: tuple[str, ...] = ()
    attempt: int = 0
    looked: bool = False
    foretold_s: tuple[float, float] | None = None
    """P50 and P90 of its service by what had ended when it came, device-seconds."""


@dataclass(slots=True)
class SimulatedRun:
    """What happened."""

    jobs: list[SimulatedJob]
    devices: int
    refused: Sequence[WorkloadRow] = ()
    """Gangs that the idle fleet does not hold."""
    preemptions: int = 0
    lost_device_us: int = 0
    decisions: int = 0
    promises: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each promise that came to its end: first promised start, start, since when it waited."""
    foretold: list[tuple[bool, bool]] = field(default_factory=list)
    """Of each job that ended, in that order: whether it took no longer than the P50, and than the P90, that history gave it
    when it came."""


@dataclass(frozen=True, slots=True)
class _Item:
    seq: int
    time_us: int
    message: Any
    subject: str = subjects.inbox("simulated", "told", "simulated")
    error: str = ""


_ARRIVE, _END, _STARTED, _STOPPED, _LOOK, _FAULT, _REPAIR, _WAKE = range(8)
_NEVER = 1 << 62


def simulate(
    rows: Sequence[WorkloadRow],
    inventories: Sequence[Inventory],
    policy: SimulatedPolicy,
    world: SimulatedWorld = SimulatedWorld(),
    knobs: OrderKnobs = OrderKnobs(),
    progress: Callable[[int], None] = lambda ended: None,
) -> SimulatedRun:
    """Runs the workload to its end. `progress` is told how many jobs have ended."""
    return _Engine(rows, inventories, policy, world, knobs, progress).run()


class _Engine:
    def __init__(
        self,
        rows: Sequence[WorkloadRow],
        inventories: Sequence[Inventory],
        policy: SimulatedPolicy,
        world: SimulatedWorld,
        knobs: OrderKnobs,
        progress: Callable[[int], None],
    ) -> None:
        self._world, self._progress, self._random = world, progress, random.Random(world.seed)
        self._size = FleetSize.of(inventories)
        self._cycle_us = round(1e6 * (CYCLE_S * (len(rows) > MOMENTS) if world.cycle_s is None else world.cycle_s))
        ordered = in_order(row for row in rows if self._size.holds(row.devices))
        origin_s = ordered[0].submit_s if ordered else 0.0
        self._run = SimulatedRun(
            [
                SimulatedJob(row, 1 + round((row.submit_s - origin_s) * 1e6), max(1, round(row.duration_s * 1e6)))
                for row in ordered
            ],
            self._size.devices,
            refused=in_order(row for row in rows if not self._size.holds(row.devices)),
        )
        self._by_id: dict[str, SimulatedJob] = {}
        self._promised: dict[str, tuple[int, int]] = {}
        """Waiting gang -> its promise, and when it was made, us."""
        queues = policy if isinstance(policy, inbox.ApplyQueues) else None
        rule = policy if isinstance(policy, OrderRule) else None
        self._precedence = None if policy is None else Precedence(rule, knobs)
        self._others = queues is not None or any(row.preempts for row in ordered)
        """Somebody may have devices of a lower class, or of who borrowed them."""
        if self._precedence is not None:
            self._precedence.reports = lambda job: world.knows is KnownRunTime.PROGRESS
            if world.knows is KnownRunTime.DURATIONS:
                self._precedence.declared = self._declared
        self._policy = Policy(precedence=self._precedence)
        self._decider = Decider(policy=self._policy, learner=None if world.fast else Scorer())
        self._inventories = {inventory.node: inventory for inventory in inventories}
        self._incarnation = dict.fromkeys(self._inventories, 1)
        self._foreseen: list[tuple[int, int, int, Any, int]] = []
        self._order = self._seq = self._ended = self._next = 0
        self._wake_us = _NEVER
        self._planned: list[inbox.PreemptionPlanned] = []
        """For the next cycle, behind what has happened by then: who was to give way may have ended."""
        self._tried: set[str] = set()
        """Waiting jobs for which no exchange was found, and nothing has helped since."""
        self._messages: list[Any] = [
            inbox.NodeRegistered(incarnation=1, inventory=one, lease_s=3600.0) for one in inventories
        ]
        if queues is not None:
            self._messages.append(queues)

    def run(self) -> SimulatedRun:
        self._decide(0)
        if self._world.node_faults_per_day > 0:
            for node in self._inventories:
                self._foresee_fault(node, 0)
        jobs = self._run.jobs
        while self._ended < len(jobs):
            t_us = self._foreseen[0][0] if self._foreseen else _NEVER
            if self._next < len(jobs):
                t_us = min(t_us, jobs[self._next].submit_us)
            t_us = min(t_us, self._wake_us)
            if self._messages or self._planned:
                t_us = self._decider.t_us
            if t_us == _NEVER:
                break  # what is left can never run
            if self._cycle_us:
                t_us = -(-max(t_us, self._decider.t_us + 1) // self._cycle_us) * self._cycle_us
            self._happen(t_us)
            self._settle(t_us)
            self._progress(self._ended)
        return self._run

    # ---------------------------------------------------------------------------------------------- what comes to pass

    def _happen(self, t_us: int) -> None:
        """Collects what is said at `t_us`."""
        jobs = self._run.jobs
        while self._next < len(jobs) and jobs[self._next].submit_us <= t_us:
            job = jobs[self._next]
            message = admitted(job.row, self._size.per_node, job.submit_us)
            self._by_id[message.job_id] = job
            job.waits_us = job.submit_us
            if self._precedence is not None:
                kin = similar_to(job.row.team, message.user, message.spec.name)
                job.foretold_s = self._precedence.foretold_s(kin, job.row.devices)
            self._messages.append(message)
            self._next += 1
        while self._foreseen and self._foreseen[0][0] <= t_us:
            at_us, _, kind, what, version = heapq.heappop(self._foreseen)
            _HAPPENS[kind](self, what, version, at_us)
        if t_us >= self._wake_us:
            self._messages.append(inbox.Tick())
        self._messages += self._planned
        self._planned.clear()

    def _foresee(self, at_us: int, kind: int, what: Any, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._foreseen, (at_us, self._order, kind, what, version))

    def _foresee_fault(self, node: str, t_us: int) -> None:
        wait_s = self._random.expovariate(self._world.node_faults_per_day / 86_400)
        self._foresee(t_us + 1 + int(wait_s * 1e6), _FAULT, node)

    def _say(self, job_id: str, job: SimulatedJob, make: Callable[..., Any], **fields: Any) -> None:
        for node in job.nodes:
            seen = make(job_id=job_id, attempt=job.attempt, **fields)
            self._messages.append(
                inbox.NodeObserved.model_construct(node=node, incarnation=self._incarnation[node], observations=(seen,))
            )

    def _started(self, job_id: str, version: int, t_us: int) -> None:
        job = self._by_id[job_id]
        if job.version != version:
            return
        self._say(job_id, job, inbox.Started)
        job.run_us = t_us
        self._foresee(t_us + job.remaining_us, _END, job_id, version)
        if self._world.knows is KnownRunTime.PROGRESS and not job.looked and self._precedence is not None:
            self._foresee(t_us + int(self._precedence.knobs.look_s * 1e6), _LOOK, job_id, version)

    def _end(self, job_id: str, version: int, t_us: int) -> None:
        job = self._by_id[job_id]
        if job.version != version:
            return
        job.version += 1
        job.held_us += t_us - job.run_us
        job.end_us, job.remaining_us, job.run_us = t_us, 0, -1
        if job.foretold_s is not None:
            took_s = job.row.duration_s
            self._run.foretold.append((took_s <= job.foretold_s[0], took_s <= job.foretold_s[1]))
        self._ended += 1
        self._say(job_id, job, inbox.Released, exit_code=0, own_exit=True)
        del self._by_id[job_id]

    def _stopped(self, job_id: str, version: int, t_us: int) -> None:
        job = self._by_id[job_id]
        if job.version == version:
            self._say(job_id, job, inbox.Released, exit_code=0, own_exit=False, reason="preempted")

    def _look(self, job_id: str, version: int, t_us: int) -> None:
        """Its progress was reported: the rate is known, and with it what remains."""
        job = self._by_id.get(job_id)
        if job is not None and job.version == version and self._precedence is not None:
            job.looked = True
            self._tell(job_id, job)
            self._messages.append(inbox.Tick())

    def _fault(self, node: str, version: int, t_us: int) -> None:
        silent = inbox.NodeLost(node=node, incarnation=self._incarnation[node], silent_s=30.0)
        self._messages.append(silent)
        self._foresee(t_us + int(self._world.repair_s * 1e6), _REPAIR, node)

    def _repair(self, node: str, version: int, t_us: int) -> None:
        self._incarnation[node] += 1
        self._messages.append(
            inbox.NodeRegistered(incarnation=self._incarnation[node], inventory=self._inventories[node], lease_s=3600.0)
        )
        self._foresee_fault(node, t_us)

    def _wake(self, what: Any, version: int, t_us: int) -> None:
        self._messages.append(inbox.Tick())

    # ------------------------------------------------------------------------------------------------- what is decided

    def _settle(self, t_us: int) -> None:
        """Decides at `t_us`: once where there are cycles, else until nothing more is said at that moment."""
        tried: set[str] = set()
        while True:
            while self._messages:
                self._decide(t_us)
            plans = [plan for plan in self._plans(t_us) if plan.beneficiary not in tried]
            tried.update(plan.beneficiary for plan in plans)
            (self._planned if self._cycle_us else self._messages).extend(plans)
            if not plans or self._cycle_us:
                self._promise(t_us)
            if self._foreseen and self._foreseen[0][0] <= t_us and not self._cycle_us:
                self._happen(t_us)
            if not self._messages:
                if self._decider.plan.complete:
                    break
                self._messages.append(inbox.Tick())
            if self._cycle_us:
                break
        if not self._decider.state.queues:
            self._wake_us = _NEVER
            return
        self._wake_us = self._precedence.next_change_us(t_us) if self._precedence is not None else _NEVER
        if self._others:
            self._wake_us = min(
                self._wake_us, preemption.next_turn_us(self._decider.state, t_us, policy=self._policy) or _NEVER
            )

    def _plans(self, t_us: int) -> list[inbox.PreemptionPlanned]:
        """Who should give way now, of lower classes and of who borrowed, then within a class."""
        state, seq = self._decider.state, self._run.decisions
        found = preemption.plans(state, t_us, seq, policy=self._policy) if self._others and state.queues else []
        if self._precedence is not None:
            found += apart(exchanges(state, self._precedence, t_us, seq, self._tried), found)
        return found

    def _promise(self, t_us: int) -> None:
        precedence = self._precedence
        if precedence is None:
            return
        for told in new_promises(self._decider.state, self._policy, t_us):
            precedence.note(self._decider.state, told, t_us)
            self._promised.setdefault(told.job_id, (told.promise.start_us, t_us))

    def _decide(self, t_us: int) -> None:
        items = []
        for message in self._messages:
            self._seq += 1
            items.append(_Item(self._seq, t_us, message))
            if not _helps_nobody(message):
                self._tried.clear()
        self._messages.clear()
        self._run.decisions += 1
        events = self._decider.decide(items, t_us)
        if self._decider.faults:
            raise RuntimeError(f"the decider met an error: {self._decider.faults[0].stack}")
        for event in events:
            react = _REACTS.get(type(event))
            if react is not None:
                react(self, event, t_us)
        self._decider.upkeep()

    def _granted(self, event: led.JobGranted, t_us: int) -> None:
        job = self._by_id[event.job_id]
        job.version += 1
        job.attempt = event.attempt
        job.nodes = tuple(dict.fromkeys(claim.node for claim in event.claims))
        promised = self._promised.pop(event.job_id, None)
        if promised is not None:
            self._run.promises.append((promised[0], t_us, job.waits_us))
        job.longest_wait_us = max(job.longest_wait_us, t_us - job.waits_us)
        self._foresee(t_us + int(self._world.start_delay_s * 1e6), _STARTED, event.job_id, job.version)

    def _preempting(self, event: led.AttemptPreempting, t_us: int) -> None:
        job = self._by_id[event.job_id]
        lost_us = round(self._world.preemption_loss_s * 1e6)
        self._interrupt(job, t_us, lost_us)
        job.preemptions += 1
        self._run.preemptions += 1
        self._foresee(t_us + int(self._world.stop_delay_s * 1e6), _STOPPED, event.job_id, job.version)
        self._told_again(event.job_id, job, lost_us)

    def _stopping(self, event: led.AttemptStopping, t_us: int) -> None:
        """Another part of it was lost with its node."""
        job = self._by_id[event.job_id]
        self._lose(event.job_id, job, t_us)
        self._foresee(t_us + int(self._world.stop_delay_s * 1e6), _STOPPED, event.job_id, job.version)

    def _requeued(self, event: led.JobRequeued, t_us: int) -> None:
        job = self._by_id[event.job_id]
        self._lose(event.job_id, job, t_us)
        job.waits_us = t_us

    def _lose(self, job_id: str, job: SimulatedJob, t_us: int) -> None:
        """A node of it was lost, and what it did since its last checkpoint."""
        lost_us = (t_us - job.run_us) % max(1, round(self._world.checkpoint_s * 1e6)) if job.run_us >= 0 else 0
        self._interrupt(job, t_us, lost_us)
        self._told_again(job_id, job, lost_us)

    def _interrupt(self, job: SimulatedJob, t_us: int, lost_us: int) -> None:
        if job.run_us >= 0:
            ran_us = t_us - job.run_us
            job.held_us += ran_us
            job.remaining_us += lost_us - ran_us
            self._run.lost_device_us += lost_us * job.row.devices
            job.run_us = -1
        job.version += 1

    def _told_again(self, job_id: str, job: SimulatedJob, lost_us: int) -> None:
        if self._precedence is not None and lost_us and (job.looked or self._world.knows is KnownRunTime.DURATIONS):
            self._tell(job_id, job)

    # ----------------------------------------------------------------------------------------------------- what is known

    def _declared(self, job: Job) -> float:
        mine = self._by_id[job.id]
        return mine.remaining_us / 1e6 * mine.row.devices

    def _tell(self, job_id: str, job: SimulatedJob) -> None:
        """What it takes in all is what it got and what remains."""
        assert self._precedence is not None
        served = self._precedence.served
        slot = served.slots[job_id]
        attained_s = float(served.attained_s[slot])  # up to when it began to run; `remaining_us` is as of then, too
        self._precedence.tell(self._decider.state, job_id, attained_s + job.remaining_us / 1e6 * job.row.devices)


def _helps_nobody(message: Any) -> bool:
    """A job that comes or starts leaves no more devices than there were."""
    return isinstance(message, inbox.JobAdmitted) or (
        isinstance(message, inbox.NodeObserved) and isinstance(message.observations[0], inbox.Started)
    )


_HAPPENS: dict[int, Callable[[_Engine, Any, int, int], None]] = {
    _END: _Engine._end,
    _STARTED: _Engine._started,
    _STOPPED: _Engine._stopped,
    _LOOK: _Engine._look,
    _FAULT: _Engine._fault,
    _REPAIR: _Engine._repair,
    _WAKE: _Engine._wake,
}
_REACTS: dict[type, Callable[[_Engine, Any, int], None]] = {
    led.JobGranted: _Engine._granted,
    led.AttemptPreempting: _Engine._preempting,
    led.AttemptStopping: _Engine._stopping,
    led.JobRequeued: _Engine._requeued,
}
