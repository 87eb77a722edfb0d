"""A world in one line: fleets, jobs, and a driver that commits decisions like the real writer does."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from libs.core.billing.accounts import Accounts
from libs.core.placement import mig
from libs.core.projections.verify import Checker
from libs.core.scheduling.decider import Decider
from libs.core.state.ended import DAY_US
from libs.core.state.formats import NEWEST
from libs.core.state.model import State
from libs.ledger.audited import reconciled
from schemas import inbox
from schemas.clock import MeasuredBy
from schemas.ids import job_id
from schemas.jobs import Checkpoint, CheckpointPolicy, JobSpec, RetryPolicy
from schemas.ledger import ClockJumped, DevicesFragmented, LedgerRecord
from schemas.resources import Device, Inventory, Level, Position, Resources, Role, Topology, TopologyPolicy

GIB = 1024


def node(name: str, devices: int = 8, *, leaf: str = "leaf-0", model: str = "H100", memory_gib: int = 80) -> Inventory:
    """A node with identical devices, on a leaf."""
    return Inventory(
        node=name,
        position=Position(leaf=leaf),
        devices=tuple(
            Device(id=f"{name}-gpu{i}", index=i, model=model, memory_mib=memory_gib * GIB) for i in range(devices)
        ),
        simulated=True,
    )


def maximal_layouts(geometry: mig.Geometry) -> list[mig.Layout]:
    """The legal layouts of a board to which nothing can be added."""
    names = [profile.name for profile in geometry.profiles]
    return [x for x in mig.layouts(geometry) if not any(mig.fits(geometry, x, name) for name in names)]


@dataclass(frozen=True)
class _Item:
    seq: int
    time_us: int
    message: Any
    subject: str = "baton.in.test"
    error: str = ""


def job(
    name: str,
    devices: int = 1,
    *,
    team: str = "research",
    priority: int = 0,
    preempts: bool = False,
    types: tuple[str, ...] = (),
    share_milli: int = 1000,
    memory_gib: int = 0,
    required: Level | None = None,
    roles: tuple[Role, ...] = (),
    retry: RetryPolicy | None = None,
    time_limit_s: float = 0,
    submitted_us: int = 1,
) -> inbox.JobAdmitted:
    """An admitted job; `required` pins its topology level."""
    topology = Topology(level=required, policy=TopologyPolicy.REQUIRED) if required else Topology()
    spec = JobSpec(
        name=name,
        command=("true",),
        resources=Resources(
            devices=devices,
            types=types,
            share_milli=share_milli,
            memory_mib=memory_gib * GIB,
            topology=topology,
            roles=roles,
        ),
        checkpoint=CheckpointPolicy(),
        retry=retry or RetryPolicy(),
        time_limit_s=time_limit_s,
    )
    return inbox.JobAdmitted(
        job_id=job_id(team, name),
        team=team,
        spec=spec,
        spec_hash=f"hash of {name}",
        client_key=name,
        priority=priority,
        preempts=preempts,
        submitted_us=submitted_us,
    )


class World:
    """A pool driven by messages. Every record goes through its wire form, a second decider, and the checker."""

    def __init__(self, *nodes: Inventory, allowed: int = NEWEST) -> None:
        """`allowed`: the format of the ledger that all readers understand."""
        self.decider = Decider(allowed=lambda: allowed)
        self.allowed = allowed
        self.replica = Decider()
        self.checker = Checker()
        self.records: list[LedgerRecord] = []
        self._seq = 0
        self.now_us = 0
        self.behind_us: int | None = None
        """By so much the broker's clock is behind ledger time; None: nobody has set it, and records do not tell it."""
        if nodes:
            self.send(*(inbox.NodeRegistered(incarnation=1, inventory=n, lease_s=10) for n in nodes))

    def send(
        self,
        *messages: Any,
        after_us: int = 1000,
        subject: str = "baton.in.test",
        behind: bool = False,
        jumps: tuple[ClockJumped, ...] = (),
    ) -> list[Any]:
        """Decides `messages` as one batch, commits, and returns the events. A pool that lives writes a record now and then,
        so a long time passes in steps of half a day."""
        while after_us > DAY_US // 2:
            self.send(after_us=DAY_US // 2)
            after_us -= DAY_US // 2
        self.now_us += after_us
        items = []
        for message in messages:
            self._seq += 1
            items.append(_Item(self._seq, self.wall_us, message, subject=subject))
        events = self.decider.decide(items, self.now_us, behind=behind, jumps=jumps)
        record = LedgerRecord(
            pool="test",
            prev_seq=len(self.records),
            prev_hash="",
            inbox_seq=self._seq,
            t_us=self.now_us,
            wall_us=None if self.behind_us is None else self.wall_us,
            format=self.allowed,
            writer="test",
            events=(*jumps, *events),
        )
        record = LedgerRecord.model_validate_json(record.model_dump_json())
        self.records.append(record)
        self.replica.apply(record, len(self.records))
        self.checker.step(len(self.records), record, valid=True)
        return list(record.events)

    @property
    def wall_us(self) -> int:
        """What the broker's clock shows."""
        return self.now_us - (self.behind_us or 0)

    def set_clock(self, by_us: int) -> None:
        """Somebody sets the broker's clock, and the next tick finds it."""
        shown_us = self.wall_us + 1000
        self.behind_us = (self.behind_us or 0) - by_us
        jump = ClockJumped(from_us=shown_us, to_us=shown_us + by_us, elapsed_us=1000, measured=MeasuredBy.BOOT_TIME)
        self.send(inbox.Tick(), jumps=(jump,))

    def submit(self, admitted: inbox.JobAdmitted) -> str:
        self.send(admitted)
        return admitted.job_id

    def state_of(self, job: str) -> str:
        """`queued`, `running`, ... or `ended`."""
        if job in self.decider.state.finished:
            return "ended"
        return self.decider.state.jobs[job].state.value

    def nodes_of(self, job: str) -> list[str]:
        current = self.decider.state.jobs[job].current
        return list(current.parts) if current else []

    def started(self, job: str) -> None:
        """Every node of the job reports that its part runs."""
        for name in self.nodes_of(job):
            self.observe(name, inbox.Started(job_id=job, attempt=self.attempt(job)))

    def released(self, job: str, *, exit_code: int = 0, own_exit: bool = True, nodes: list[str] | None = None) -> None:
        """Nodes report that nothing of the job is left there."""
        number = self.attempt(job)
        for name in nodes or self.nodes_of(job):
            self.observe(name, inbox.Released(job_id=job, attempt=number, exit_code=exit_code, own_exit=own_exit))

    def checkpointed(self, job: str, step: int) -> None:
        self.observe(
            self.nodes_of(job)[0],
            inbox.CheckpointTaken(
                job_id=job, attempt=self.attempt(job), checkpoint=Checkpoint(step=step, reference=f"s3://ckpt/{step}")
            ),
        )

    def observe(self, name: str, *observations: Any) -> list[Any]:
        incarnation = self.decider.state.fleet.nodes[name].incarnation
        return self.send(inbox.NodeObserved(node=name, incarnation=incarnation, observations=observations))

    def attempt(self, job: str) -> int:
        current = self.decider.state.jobs[job].current
        assert current is not None
        return current.number

    def check(self) -> None:
        """No violation, all accounts sum to what existed, and the decider that decided equals the one that only read."""
        accounts = Accounts()
        for seq, record in enumerate(self.records, 1):
            accounts.apply(record, seq)
            if any(isinstance(event, DevicesFragmented) for event in record.events):
                assert not accounts.overstated, f"more of {accounts.overstated} is told to be fragmented than is idle"
        report = reconciled(self.checker.finish(), accounts)
        assert report.violations == []
        parts = list(self.decider.dump())
        assert parts == list(self.replica.dump())
        loaded = Decider.load(parts)
        assert list(loaded.dump()) == parts
        keys = [{job.id: job.queue for job in one.state.jobs.values()} for one in (self.decider, self.replica, loaded)]
        assert keys[0] == keys[1] == keys[2]
        claims = [_claims_of(one.state) for one in (self.decider, self.replica, loaded)]
        assert claims[0] == claims[1] == claims[2]


def _claims_of(state: State) -> list[Any]:
    """What each team holds, and until when what is held whole is."""
    fleet, nothing = state.fleet, np.zeros(len(state.fleet.up), dtype=np.bool_)
    held = {team: state.team_claims.of(fleet, team, but=nothing) for team in state.used}
    whole = np.flatnonzero(fleet.end_us)
    of_teams = {
        team: sorted(zip(*(column.tolist() for column in one), strict=True)) if one is not None else None
        for team, one in held.items()
    }
    return [of_teams, whole.tolist(), fleet.since_us[whole].tolist(), fleet.end_us[whole].tolist()]
