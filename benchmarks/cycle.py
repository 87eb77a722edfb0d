"""`python -m benchmarks.cycle`: what one scheduling cycle costs with 10,000 jobs waiting in 200 shapes on 10,000 devices.

A pool of 1,250 nodes of 8 devices, four models, with one job on each node. 10,000 jobs wait, 50 of each of 200 shapes: ten
sizes, four models, five amounts of processors per device. Two scenes:

- *full*: the jobs hold whole nodes. Sizes are 1 to 128 devices.
- *fragmented*: the jobs hold seven devices of each node, and those that wait need 2 to 8 devices of one node: 1,250 devices
  are free and none helps anybody, which every search has to find out.

Scores, limits and orders are those of a service. Then, in turns, each decided with its cycle:

- *end*: a job on one node ends. What fits is granted, and as many jobs as were granted come again: always 10,000 wait.
- *submit*: a job comes.
- *tick*: nothing but time.
- *everything*: a tick of a decider that remembers nothing of earlier cycles, as after a restart: it tries every shape.

At last, once, *release*: 64 nodes become free at once, as when a large job ends, and all that fits is granted.

Milliseconds of processor time (other work on the machine does not count). Once with the order that a pool has of which nobody
said anything, once with `shortest-remaining` for all. `--growth` also varies what waits and how many nodes there are.

Writes `benchmarks/results/cycle.json`.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import machine
from libs.core.placement.score.scorer import Scorer
from libs.core.scheduling.backlog import Backlog
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import OrderRule, Precedence
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import JobSpec
from schemas.ledger import JobGranted, LedgerEvent
from schemas.resources import Device, Inventory, Level, Position, Resources, Topology, TopologyPolicy

MODELS = ("H100", "A100", "L40S", "A10")
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128)
ON_ONE_NODE = (2, 3, 4, 5, 6, 7, 8)
CPUS = (0, 1, 2, 4, 8)
"""Processors per device."""
PER_NODE = 8
ANYWHERE, NODE = Topology(), Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
ORDERS: dict[str, OrderRule | None] = {"default": None, "shortest-remaining": OrderRule.SHORTEST_REMAINING}
_T0, _APART_US = 1_000_000, 200_000
RELEASED = 64
"""Nodes that become free at once."""


@dataclass(frozen=True, slots=True)
class _Told:
    seq: int
    message: Any
    time_us: int
    subject: str = ""
    error: str = ""


class CrowdedPool:
    """A pool, what waits for it, and its decider."""

    def __init__(self, nodes: int, waiting: int, rule: OrderRule | None, fragmented: bool) -> None:
        policy = Policy(precedence=Precedence(rule)) if rule is not None else Policy()
        self.decider = Decider(policy=policy, learner=Scorer())
        self._seq, self._t_us, self._made = 0, _T0, 0
        self.cpu_s = 0.0
        """Of the last decision."""
        self._take([inbox.NodeRegistered(inventory=_node(i), incarnation=1, lease_s=3600) for i in range(nodes)])
        self._running: list[tuple[str, str]] = []
        whole = [_job(f"whole-{i}", PER_NODE - fragmented, MODELS[i % 4], 0, self._t_us) for i in range(nodes)]
        for start in range(0, nodes, 100):
            self._take(whole[start : start + 100])
        while self.decider.state.queues:
            self._take([inbox.Tick()])
        sizes, cpus = (ON_ONE_NODE, (*CPUS, 10, 12)) if fragmented else (SIZES, CPUS)
        shapes = [(size, model, cpu) for size in sizes for model in MODELS for cpu in cpus]
        self._shapes, self._topology = shapes[:200], NODE if fragmented else ANYWHERE
        for start in range(0, waiting, 1000):
            self._take([self._next() for _ in range(min(1000, waiting - start))])
        self._until_quiet()

    def end(self) -> None:
        """A job ends; then as many come as were granted."""
        granted = self._take([self._ended()])
        cost = self.cpu_s
        if granted:
            self._take([self._next() for _ in range(granted)])
        self.cpu_s = cost

    def release(self) -> int:
        """Many end at once; how many are granted. The cost is of all decisions until nothing fits any more."""
        granted = self._take([self._ended() for _ in range(min(RELEASED, len(self._running)))])
        cost = self.cpu_s
        while not self.decider.plan.complete:
            granted += self._take([inbox.Tick()])
            cost += self.cpu_s
        self.cpu_s = cost
        return granted

    def submit(self) -> None:
        self._take([self._next()])

    def tick(self) -> None:
        self._take([inbox.Tick()])

    def everything(self) -> None:
        self.decider._backlog = Backlog()
        self.tick()

    @property
    def waits(self) -> int:
        return sum(len(queue) for queue in self.decider.state.queues.values())

    def _ended(self) -> inbox.NodeObserved:
        """What its node says of the first that runs."""
        name, node = self._running.pop(0)
        seen = inbox.Released(job_id=name, attempt=1, exit_code=0, own_exit=True)
        return inbox.NodeObserved(node=node, incarnation=1, observations=(seen,))

    def _next(self) -> inbox.JobAdmitted:
        size, model, cpu = self._shapes[self._made % len(self._shapes)]
        self._made += 1
        return _job(f"waits-{self._made}", size, model, cpu, self._t_us, self._topology)

    def _until_quiet(self) -> None:
        while not self.decider.plan.complete:
            self._take([inbox.Tick()])

    def _take(self, messages: list[Any]) -> int:
        """Decides; how many were granted."""
        self._t_us += _APART_US
        items = [_Told(self._seq + i, message, self._t_us) for i, message in enumerate(messages, 1)]
        self._seq += len(items)
        began = time.process_time()
        events = self.decider.decide(items, self._t_us)
        self.cpu_s = time.process_time() - began
        self.decider.upkeep()
        return self._note(events)

    def _note(self, events: list[LedgerEvent]) -> int:
        granted = [event for event in events if isinstance(event, JobGranted)]
        for event in granted:
            nodes = {claim.node for claim in event.claims}
            if len(nodes) == 1:
                self._running.append((event.job_id, nodes.pop()))
        return len(granted)


def measure(nodes: int, waiting: int, rule: OrderRule | None, cycles: int, fragmented: bool = False) -> dict[str, Any]:
    """Costs of each kind of cycle, ms."""
    pool = CrowdedPool(nodes, waiting, rule, fragmented)
    kinds: dict[str, Callable[[], None]] = {
        "end": pool.end, "submit": pool.submit, "tick": pool.tick, "everything": pool.everything,
    }  # fmt: skip
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for i in range(cycles + 1):
        for kind, act in kinds.items():
            act()
            if i:
                costs[kind].append(1000 * pool.cpu_s)
    found: dict[str, Any] = {"nodes": nodes, "waiting": pool.waits, "queues": len(pool.decider.state.queues)}
    for kind, ms in costs.items():
        found[kind] = {
            "p50_ms": round(machine.quantile(ms, 0.5), 2),
            "p99_ms": round(machine.quantile(ms, 0.99), 2),
        }
    granted = pool.release()
    found["release"] = {"granted": granted, "ms": round(1000 * pool.cpu_s, 1)}
    return found


def _node(i: int) -> Inventory:
    name, model, leaf = f"n{i:05}", MODELS[i % 4], i // 32
    return Inventory(
        node=name,
        position=Position(leaf=f"leaf-{leaf}", spine=f"spine-{leaf // 16}"),
        devices=tuple(Device(id=f"{name}-{d}", index=d, model=model, memory_mib=81920) for d in range(PER_NODE)),
        cpus=128,
        memory_mib=1 << 20,
        simulated=True,
    )


def _job(
    name: str, devices: int, model: str, cpus: int, t_us: int, topology: Topology = ANYWHERE
) -> inbox.JobAdmitted:  # fmt: skip
    resources = Resources(devices=devices, types=(model,), cpu_milli=1000 * cpus, topology=topology)
    return inbox.JobAdmitted(
        job_id=job_id("research", name), team="research", spec=JobSpec(name=name, command=("true",), resources=resources),
        spec_hash=name, client_key=name, priority=0, preempts=False, submitted_us=t_us,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=100, help="timed cycles of each kind")
    parser.add_argument("--growth", action="store_true")
    asked = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "devices": asked.nodes * PER_NODE}
    for order, rule in ORDERS.items():
        for scene in ("full", "fragmented"):
            told = measure(asked.nodes, asked.waiting, rule, asked.cycles, scene == "fragmented")
            result[f"{order}, {scene}"] = told
            print(f"{order}, {scene}: {told}", flush=True)
    if asked.growth:
        sizes = [(asked.nodes, 1000), (asked.nodes, 100_000), (16, asked.waiting), (128, asked.waiting)]
        result["growth"] = []
        for nodes, waiting in sizes:
            result["growth"].append(measure(nodes, waiting, None, asked.cycles // 4))
            print(result["growth"][-1], flush=True)
    print(f"written to {machine.write('cycle', result)}")


if __name__ == "__main__":
    main()
