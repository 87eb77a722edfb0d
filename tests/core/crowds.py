"""Random lives of a crowded pool: jobs of every kind wait for each other, and everything that may help one of them
happens in some order.

A life is a list of steps (verb, which, how much), played one by one by `Crowd`; what a step cannot do is left out.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from libs.core.accelerators.kinds import accelerators_milli
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.policy import Policy
from libs.core.state.model import State
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import CheckpointPolicy, JobSpec, RetryPolicy
from schemas.resources import (
    Device,
    DeviceKind,
    Inventory,
    Level,
    Position,
    Resources,
    Role,
    Runtime,
    Spread,
    Topology,
    TopologyPolicy,
)
from tests.core.builders import GIB, World

POLICY = Policy(reserve_after_us=8_000_000, reservations=2, claims_per_cycle=10, reconsider_after_us=1 << 60)
"""Reservations fall due and cycles stop at their bound within a short life. Nothing is reconsidered for no reason."""
NODES = ("n0", "n1", "n2", "n3", "n4")
TEAMS = ("red", "blue", "green")
VERBS = (
    *["submit"] * 6, *["start"] * 2, *["release"] * 5, "fail", "cancel", "checkpoint", "lose", "join", "join",
    "quota", "quota", *["preempt"] * 2, *["urgent"] * 2, "give_up", "refuse", *["wait"] * 3, "batch",
)  # fmt: skip
steps = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 59), st.integers(0, 6)), min_size=25, max_size=80)


PROCESSORS = Device(
    id="n3-cpu", index=9, kind=DeviceKind.CPU, model="CPU", memory_mib=64 * GIB, runtime=Runtime.CPU
)  # fmt: skip
"""Granted to jobs that name them; the accelerators of their node draw on them too."""


def host(name: str, capped: bool, moved: bool = False, devices: int = 4) -> Inventory:
    """Two nodes on a leaf with islands of two, two on another (with a power cap, if `capped`), one of another model."""
    at = NODES.index(name)
    return Inventory(
        node=name,
        position=Position(leaf=f"leaf-{(at // 2 + moved) % 2}", spine=f"spine-{at // 4}"),
        devices=tuple(
            Device(
                id=f"{name}-{i}",
                index=i,
                model="A10" if at == 4 else "H100",
                memory_mib=(24 if at == 4 else 80) * GIB,
                nvlink_domain=f"{i // 2}" if at < 2 else "",
                power_limit_w=500,
            )
            for i in range(devices)
        )
        + ((PROCESSORS,) if at == 3 else ()),
        cpus=16,
        memory_mib=64 * GIB,
        rack_power_w=2500 if capped and at == 2 else 0,
        labels={"site": "east" if at % 2 else "west"},
        simulated=True,
    )


def ask(kind: int, amount: int) -> Resources:
    """Requests of many kinds, for one to a dozen devices."""
    size = (1, 1, 2, 3, 4, 6, 12)[amount]
    wide = Topology(level=Level.LEAF, policy=TopologyPolicy.REQUIRED)
    kinds: list[dict[str, Any]] = [
        {"devices": size},
        {"devices": size, "types": ("H100",)},
        {"devices": min(size, 4), "types": ("A10", "H100")},
        {"devices": 1, "share_milli": 250 + 120 * amount},
        {"devices": size, "cpu_milli": 3000 + 1000 * amount},
        {"devices": size, "host_memory_mib": 20 * GIB},
        {"devices": size, "min_devices": max(1, size // 2)},
        {"devices": size, "topology": Topology(level=Level.NODE, widen_after_s=5 + amount)},
        {"devices": size, "topology": wide},
        {"devices": min(size, 4), "spread": Spread(key="replica", level=(Level.NODE, Level.LEAF)[amount % 2])},
        {"devices": size, "labels": {"site": "east"}},
        {"devices": 1, "memory_mib": 60 * GIB, "share_milli": 500},
        {"devices": 1, "share_milli": 300, "cpu_milli": 6000},
        {"devices": 1, "share_milli": 300, "spread": Spread(key="replica", level=Level.LEAF)},
        {"devices": 1, "types": ("CPU",), "share_milli": 200 + 100 * amount},
        {
            "roles": (Role(name="stage", count=2, devices=2), Role(name="server", devices=1, cpu_milli=4000)),
            "cpu_milli": 1000,
        },
        {
            "roles": (
                Role(name="prefill", devices=max(1, size // 3), types=("H100",)),
                Role(name="decode", devices=2, types=("A10",), topology=Topology(level=Level.NODE)),
            ),
        },
    ]
    return Resources(**kinds[kind % len(kinds)])


class Crowd:
    """A world of five nodes, and what happens in it."""

    def __init__(self, policy: Policy = POLICY, capped: bool = False) -> None:
        self.world = World()
        self.world.decider = Decider(policy=policy)
        self.capped = capped
        self.lives = dict.fromkeys(NODES, 1)
        self.count = 0
        self.sent: list[Any] = []
        for name in NODES:
            self.send(inbox.NodeRegistered(incarnation=1, inventory=host(name, capped), lease_s=10))

    @property
    def state(self) -> State:
        return self.world.decider.state

    def send(self, *messages: Any, after_us: int = 1000) -> None:
        self.sent.extend(messages)
        self.world.send(*messages, after_us=after_us)

    def play(self, step: tuple[str, int, int]) -> None:
        verb, which, amount = step
        getattr(self, verb)(which, amount)

    def submit(self, which: int, amount: int) -> None:
        self.send(self._job(which, amount))

    def batch(self, which: int, amount: int) -> None:
        """Several at once, so that a cycle may stop at its bound."""
        self.send(*(self._job(which + i, amount + i) for i in range(4)))

    def wait(self, which: int, amount: int) -> None:
        self.send(inbox.Tick(), after_us=(amount + 1) * 1_300_000)

    def start(self, which: int, amount: int) -> None:
        if chosen := self._running(which):
            self.world.started(chosen)

    def release(self, which: int, amount: int) -> None:
        self._end(which, amount, exit_code=0)

    def fail(self, which: int, amount: int) -> None:
        self._end(which, amount, exit_code=1)

    def refuse(self, which: int, amount: int) -> None:
        if chosen := self._running(which):
            seen = inbox.Refused(job_id=chosen, attempt=self.world.attempt(chosen), reason="stale epoch")
            self.world.observe(self._open_nodes(chosen)[0], seen)

    def checkpoint(self, which: int, amount: int) -> None:
        if chosen := self._running(which):
            self.world.checkpointed(chosen, step=self.count + amount)

    def cancel(self, which: int, amount: int) -> None:
        if self.state.jobs:
            chosen = sorted(self.state.jobs)[which % len(self.state.jobs)]
            self.send(inbox.CancelRequested(job_id=chosen, team=self.state.jobs[chosen].team, reason="no need"))

    def lose(self, which: int, amount: int) -> None:
        name = NODES[which % len(NODES)]
        self.send(inbox.NodeLost(node=name, incarnation=self.lives[name], silent_s=30, planned=amount > 3))

    def join(self, which: int, amount: int) -> None:
        name = NODES[which % len(NODES)]
        self.lives[name] += 1
        found = host(name, self.capped and amount != 1, moved=amount == 2, devices=3 if amount == 3 else 4)
        self.send(inbox.NodeRegistered(incarnation=self.lives[name], inventory=found, lease_s=10))

    def quota(self, which: int, amount: int) -> None:
        team = TEAMS[which % len(TEAMS)]
        limit = amount * 1500 if amount < 5 else None
        if which % 2:
            by_type = {"H100": 2000 + amount * 1000} if amount < 5 else {}
            if sum(self.state.committed(team).values()) <= sum(by_type.values()) or not by_type:
                self.send(inbox.QuotaChanged(team=team, limit_milli=None, by_type=by_type))
            return
        if limit is None or limit >= accelerators_milli(self.state.committed(team)):  # the checker speaks of grants
            self.send(inbox.QuotaChanged(team=team, limit_milli=limit))

    def urgent(self, which: int, amount: int) -> None:
        """A job of the highest class, and at once the plan of who gives way to it."""
        self.send(self._job(48 + which % 12, amount))
        self.preempt(which, amount)

    def give_up(self, which: int, amount: int) -> None:
        """A job for which devices are held is cancelled."""
        if self.state.holds:
            chosen = sorted(self.state.holds)[which % len(self.state.holds)]
            self.send(inbox.CancelRequested(job_id=chosen, team=self.state.jobs[chosen].team, reason="too late"))

    def preempt(self, which: int, amount: int) -> None:
        for plan in preemption.plans(self.state, self.world.now_us, len(self.world.records), policy=self._policy)[
            : amount + 1
        ]:
            self.send(plan)

    @property
    def _policy(self) -> Policy:
        return self.world.decider.policy

    def _job(self, which: int, amount: int) -> inbox.JobAdmitted:
        self.count += 1
        name, team = f"j{self.count}", TEAMS[(self.count + amount) % 3]
        priority = (0, 0, 0, 50, 100)[which // 12 % 5]
        spec = JobSpec(
            name=name,
            command=("true",),
            resources=ask(which, amount % 7),
            checkpoint=CheckpointPolicy(grace_s=1),
            retry=RetryPolicy(on_failure=1, on_lost=2),
            stop_grace_s=1,
            time_limit_s=(0, 5, 60, 400)[
                self.count % 4
            ],  # gangs are promised starts, and what ends before may go before
        )
        return inbox.JobAdmitted(
            job_id=job_id(team, name),
            team=team,
            spec=spec,
            spec_hash=name,
            client_key=name,
            priority=priority,
            preempts=priority == 100 and self.count % 4 != 3,  # two classes of one priority, of which one may preempt
            submitted_us=max(1, self.world.now_us - 100_000 * (which % 4)),  # commands overtake each other on their way
        )

    def _running(self, which: int) -> str:
        running = sorted(j.id for j in self.state.jobs.values() if j.current is not None)
        return running[which % len(running)] if running else ""

    def _open_nodes(self, chosen: str) -> list[str]:
        current = self.state.jobs[chosen].current
        assert current is not None
        return [name for name, part in current.parts.items() if not part.freed]

    def _end(self, which: int, amount: int, exit_code: int) -> None:
        if chosen := self._running(which):
            self.world.released(chosen, exit_code=exit_code, nodes=self._open_nodes(chosen)[: amount % 3 + 1])


def uncapped(policy: Policy) -> Policy:
    """The same without a bound on what a cycle grants."""
    return replace(policy, claims_per_cycle=1 << 30)
