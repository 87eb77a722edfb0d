"""Ledgers for report tests: the real decider, driven through a day of jobs in virtual time."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from libs.core.accelerators.catalog import models
from libs.core.billing.accounts import Accounts
from libs.core.billing.metering import Meter
from libs.core.billing.pricing import Prices, bill
from libs.core.projections.verify import Verification
from libs.core.scheduling.preemption.victims import plans
from libs.ledger.audited import reconciled
from libs.report.accounts import AccountCurves
from libs.report.facts import Facts
from schemas import inbox
from schemas.billing import BillQuery, BillReply, Price, PriceBook
from schemas.ids import job_id
from schemas.jobs import Checkpoint, CheckpointPolicy, JobSpec
from schemas.resources import Device, DeviceKind, Inventory, Resources
from tests.core.builders import World, node

PRIORITIES = {"serving": 300, "production": 200, "experiment": 100}
T0_US = 1_790_000_000_000_000


@dataclass(frozen=True)
class Ask:
    """One job of a simulated run. `runs_s` is how long its first attempt would take; it saves every `saves_s`."""

    name: str
    team: str
    at_s: float
    runs_s: float
    devices: int = 1
    share_milli: int = 1000
    priority_class: str = "experiment"
    saves_s: float = 0
    types: tuple[str, ...] = ()


def fleet(nodes: int = 16, leaves: int = 2) -> list[Inventory]:
    """`nodes` of 8 H100 on `leaves`, and a machine with one CPU."""
    gpu = [node(f"gpu-{i:02d}", leaf=f"leaf-{i * leaves // nodes}") for i in range(nodes)]
    cpu = Device(id="desk-cpu0", index=0, kind=DeviceKind.CPU, model="CPU", memory_mib=16_384)
    return [*gpu, Inventory(node="desk", devices=(cpu,))]


@dataclass
class Run:
    """Plays asks to their end; `facts`, `audit` and `bill` are what a report is made of."""

    asks: Iterable[Ask]
    nodes: list[Inventory] = field(default_factory=fleet)
    delay_us: int = 4000
    """From a decision to the moment when the broker has stored it."""

    def __post_init__(self) -> None:
        self.world = World()
        self.world.now_us = T0_US
        self.facts, self._meter, self.accounts, self.curves = Facts(), Meter(credits=False), Accounts(), AccountCurves()
        self._order = count()
        self._calendar: list[tuple[int, int, str, Any]] = []
        self._jobs: dict[str, Ask] = {}
        self._left_us: dict[str, int] = {}
        self._send(*(inbox.NodeRegistered(incarnation=1, inventory=n, lease_s=10) for n in self.nodes))
        for ask in self.asks:
            self._at(T0_US + round(ask.at_s * 1e6), "submit", ask)
        while self._calendar:
            t_us, _, what, about = heapq.heappop(self._calendar)
            self.world.now_us = max(self.world.now_us, t_us)
            getattr(self, f"_{what}")(about)

    @property
    def audit(self) -> Verification:
        return reconciled(self.world.checker.finish(), self.accounts)

    @property
    def bill(self) -> BillReply:
        book = PriceBook(
            currency="USD", prices=tuple(Price(model=m, micros_per_device_hour=2_990_000) for m in sorted(models()))
        )
        return bill(self._meter.usage(), Prices(book), BillQuery(), self._meter.seq)

    def job(self, name: str) -> Any:
        return next(job for job in self.facts.jobs.values() if job.spec.name == name)

    def _at(self, t_us: int, what: str, about: Any) -> None:
        heapq.heappush(self._calendar, (t_us, next(self._order), what, about))

    def _send(self, *messages: Any) -> None:
        self.world.send(*messages, after_us=1)
        record, seq = self.world.records[-1], len(self.world.records)
        self.facts.apply(record, seq, record.t_us + self.delay_us)
        self._meter.apply(record, seq)
        for posting in self.accounts.apply(record, seq):
            self.curves.add(posting)
        for event in record.events:
            if event.kind == "job.granted":
                self._at(self.world.now_us + 30_000, "start", (event.job_id, event.attempt))
            elif event.kind == "attempt.preempting":
                self._at(self.world.now_us + 600_000, "yield_", (event.job_id, event.attempt))

    def _submit(self, ask: Ask) -> None:
        key = job_id(ask.team, ask.name)
        self._jobs[key], self._left_us[key] = ask, round(ask.runs_s * 1e6)
        spec = JobSpec(
            name=ask.name,
            command=("true",),
            priority_class=ask.priority_class,
            resources=Resources(devices=ask.devices, share_milli=ask.share_milli, types=ask.types),
            checkpoint=CheckpointPolicy() if ask.saves_s else None,
        )
        priority = PRIORITIES[ask.priority_class]
        self._send(
            inbox.JobAdmitted(
                job_id=key, team=ask.team, spec=spec, spec_hash=key, client_key=ask.name, priority=priority,
                preempts=priority > 200, submitted_us=self.world.now_us - 3000,
            )
        )  # fmt: skip
        for plan in plans(self.world.decider.state, self.world.now_us, len(self.world.records)):
            self._send(plan)

    def _open(self, attempt: tuple[str, int]) -> bool:
        job = self.world.decider.state.jobs.get(attempt[0])
        return job is not None and job.current is not None and job.current.number == attempt[1]

    def _observe(self, attempt: tuple[str, int], seen: Any) -> None:
        if self._open(attempt):
            for name in self.world.nodes_of(attempt[0]):
                self._send(inbox.NodeObserved(node=name, incarnation=1, observations=(seen,)))

    def _start(self, attempt: tuple[str, int]) -> None:
        self._observe(attempt, inbox.Started(job_id=attempt[0], attempt=attempt[1]))
        ask = self._jobs[attempt[0]]
        self._at(self.world.now_us + self._left_us[attempt[0]], "end", (*attempt, 0, True))
        if ask.saves_s:
            self._at(self.world.now_us + round(ask.saves_s * 1e6), "save", attempt)

    def _save(self, attempt: tuple[str, int]) -> None:
        if self._open(attempt):
            step = round((self.world.now_us - T0_US) / 1e5)
            self._left_us[attempt[0]] -= round(self._jobs[attempt[0]].saves_s * 1e6)
            taken = Checkpoint(step=step, reference=f"step-{step}")
            first = self.world.nodes_of(attempt[0])[0]
            seen = inbox.CheckpointTaken(job_id=attempt[0], attempt=attempt[1], checkpoint=taken)
            self._send(inbox.NodeObserved(node=first, incarnation=1, observations=(seen,)))
            self._at(self.world.now_us + round(self._jobs[attempt[0]].saves_s * 1e6), "save", attempt)

    def _yield_(self, attempt: tuple[str, int]) -> None:
        self._save(attempt)
        self._at(self.world.now_us + 400_000, "end", (*attempt, 143, False))

    def _end(self, about: tuple[str, int, int, bool]) -> None:
        job, number, code, own = about
        self._observe((job, number), inbox.Released(job_id=job, attempt=number, exit_code=code, own_exit=own))


def busy(jobs: int = 300, *, seed: int = 1) -> list[Ask]:
    """A mixed load with one preemption in its middle, like the demo's."""
    import random

    chance = random.Random(seed)
    asks = [Ask("train-16", "research", 0, 70, 16, saves_s=4)]
    shapes = [(1, 12), (2, 6), (4, 5), (8, 4), (16, 2)]
    for i in range(jobs):
        devices = chance.choices([s for s, _ in shapes], [w for _, w in shapes])[0]
        team = chance.choice(["research", "vision", "vision", "assistant"])
        klass = "production" if team == "assistant" else "experiment"
        share = chance.choice([250, 500]) if devices == 1 and i % 2 else 1000
        at = chance.uniform(1, 26)
        runs = chance.uniform(1, 6) * min(1, 250 / jobs)
        asks.append(Ask(f"{team[:3]}-{i:03d}", team, at, runs, devices, share, klass))
    asks += [Ask(f"cpu-{i}", "vision", 3 + 2 * i, 2, types=("CPU",), share_milli=500) for i in range(6)]
    asks += [Ask(f"replica-{i}", "assistant", 44, 24, 16, priority_class="serving") for i in range(7)]
    asks.append(Ask("answer", "assistant", 54, 8, 8, priority_class="serving"))
    return [replace(a, at_s=round(a.at_s, 3)) for a in asks]
