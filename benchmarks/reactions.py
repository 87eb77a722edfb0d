"""`python -m benchmarks.reactions`: what a decision costs while many jobs wait, in time and searches.

A pool of 12,500 nodes of 8 devices (four models, leaves of 32 nodes) is full, and 200 queues wait: requests of 50 sizes for
each model. Then records come that change little:

- *nothing freed*: an attempt has saved a checkpoint. Nobody is helped.
- *one device freed*: a job on one device has ended. Only the queues that wait for its model may be helped: a quarter.

Each is decided by a decider that looks only at what changed, and by one that looks at everything (the same code with an
empty backlog), in turns, on two equal states. Searches are counted; both must grant the same.

Writes `benchmarks/results/reactions.json`.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import machine
from libs.core.scheduling import cycle
from libs.core.scheduling.backlog import Backlog
from libs.core.scheduling.decider import Decider
from libs.core.state.model import State
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import Checkpoint, CheckpointPolicy, JobSpec
from schemas.resources import Device, Inventory, Position, Resources

MODELS = ("H100", "A100", "L40S", "A10")
JOB_SIZE = 8
"""Most jobs hold a whole node; on two nodes of each model there are eight each that hold one device."""
_T0 = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--queues", type=int, default=200)
    parser.add_argument("--records", type=int, default=20, help="timed records of each kind")
    options = parser.parse_args()
    machine.show_progress()
    result: dict[str, Any] = {"machine": machine.describe(), "devices": options.devices, "queues": options.queues}
    print(f"two pools of {options.devices:,} devices, {options.queues} queues waiting")
    pools = {
        "changed": Pool(options.devices, options.queues),
        "everything": Everything(options.devices, options.queues),
    }
    for name in ("nothing_freed", "one_device_freed"):
        result[name] = _measure(name, pools, options.records)
    print(f"written to {machine.write('reactions', result)}")


def _measure(name: str, pools: dict[str, "Pool"], records: int) -> dict[str, Any]:
    """Times `records` decisions of each pool, in turns. The first of each is not counted."""
    costs: dict[str, Costs] = {who: Costs() for who in pools}
    for i in range(records + 1):
        granted = set()
        for who, pool in pools.items():
            message = pool.checkpoint(i) if name == "nothing_freed" else pool.release()
            cost, grants = pool.decide(message)
            granted.add(grants)
            if i:
                costs[who].add(*cost)
        assert len(granted) == 1, "both grant the same"
    row = {who: cost.spread() for who, cost in costs.items()}
    print(f"  {name}: {row}")
    return row


@dataclass(frozen=True, slots=True)
class _Item:
    seq: int
    message: Any
    time_us: int
    subject: str = ""
    error: str = ""


class Pool:
    """A full pool and its decider; messages are made and decided one by one."""

    def __init__(self, devices: int, queues: int) -> None:
        self.decider = Decider()
        self._seq, self._t_us = 0, _T0
        nodes = [_inventory(i) for i in range(devices // JOB_SIZE)]
        for start in range(0, len(nodes), 1000):
            self._take(
                *(inbox.NodeRegistered(inventory=n, incarnation=1, lease_s=10) for n in nodes[start : start + 1000])
            )
        self._singles = self._fill(len(nodes))
        self._take(*_waiting(queues))
        assert len(self.decider.plan.waiting) == queues, "all of them wait"

    @property
    def state(self) -> State:
        return self.decider.state

    def checkpoint(self, step: int) -> inbox.NodeObserved:
        """An attempt that holds a whole node has saved."""
        job = next(j for j in self.state.jobs.values() if j.current is not None and j.shape.devices == JOB_SIZE)
        assert job.current is not None
        seen = inbox.CheckpointTaken(
            job_id=job.id, attempt=1, checkpoint=Checkpoint(step=step + 1, reference=f"s3://c/{step}")
        )
        return inbox.NodeObserved(node=next(iter(job.current.parts)), incarnation=1, observations=(seen,))

    def release(self) -> inbox.NodeObserved:
        """A job on one device has ended."""
        job = self.state.jobs[next(self._singles)]
        assert job.current is not None
        seen = inbox.Released(job_id=job.id, attempt=1, exit_code=0, own_exit=True)
        return inbox.NodeObserved(node=next(iter(job.current.parts)), incarnation=1, observations=(seen,))

    def decide(self, message: Any) -> tuple[tuple[float, int], tuple[str, ...]]:
        """((seconds, searches), ids of the jobs that were granted)."""
        with Searches() as searches:
            began = time.perf_counter()
            events = self._take(message)
            seconds = time.perf_counter() - began
        return (seconds, searches.count), tuple(e.job_id for e in events if e.kind == "job.granted")

    def _take(self, *messages: Any) -> list[Any]:
        items = []
        for message in messages:
            self._seq += 1
            items.append(_Item(self._seq, message, self._t_us))
        self._t_us += 1000
        return self.decider.decide(items, self._t_us)

    def _fill(self, nodes: int) -> Iterator[str]:
        """Every device is taken. Returns the ids of the jobs on one device, model by model."""
        whole = [_job(f"whole-{i}", JOB_SIZE, MODELS[i % 4]) for i in range(8, nodes)]
        single = [_job(f"single-{i}-{model}", 1, model) for i in range(16) for model in MODELS]
        for start in range(0, len(whole), 100):
            self._take(*whole[start : start + 100])
        self._take(*single)
        while self.state.queues:
            self._take(inbox.Tick())
        assert not self.state.fleet.free_milli[self.state.fleet.up].any(), "the pool is full"
        return iter([job.job_id for job in single])


class Everything(Pool):
    """The same, but each cycle looks at everything."""

    def _take(self, *messages: Any) -> list[Any]:
        self.decider._backlog = Backlog()
        return super()._take(*messages)


class Searches:
    """Counts the searches of the cycles that run in it."""

    count = 0

    def __enter__(self) -> "Searches":
        self._find = vars(cycle)["find"]
        vars(cycle)["find"] = self._counted
        return self

    def __exit__(self, *_: object) -> None:
        vars(cycle)["find"] = self._find

    def _counted(self, *args: Any) -> Any:
        self.count += 1
        return self._find(*args)


class Costs:
    """Seconds and searches of decisions."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.searches: list[int] = []

    def add(self, seconds: float, searches: int) -> None:
        self.seconds.append(seconds)
        self.searches.append(searches)

    def spread(self) -> dict[str, float]:
        """Milliseconds of a decision, and its searches."""
        ms = [1000 * s for s in self.seconds]
        return {
            "p50_ms": round(machine.quantile(ms, 0.5), 3),
            "p99_ms": round(machine.quantile(ms, 0.99), 3),
            "max_ms": round(max(ms), 3),
            "searches": round(sum(self.searches) / len(self.searches), 1),
        }


def _inventory(i: int) -> Inventory:
    name, model = f"n{i:05}", MODELS[i % 4]
    devices = tuple(Device(id=f"{name}-{d}", index=d, model=model, memory_mib=81920) for d in range(8))
    leaf = i // 32
    return Inventory(
        node=name,
        position=Position(leaf=f"leaf-{leaf}", spine=f"spine-{leaf // 16}"),
        devices=devices,
        cpus=128,
        memory_mib=1 << 20,
        simulated=True,
    )


def _waiting(queues: int) -> list[inbox.JobAdmitted]:
    """Requests of 20, 21, 22, ... devices for each model: none fits on what the jobs on one device give back."""
    return [_job(f"waits-{i}", 20 + i // 4, MODELS[i % 4]) for i in range(queues)]


def _job(name: str, devices: int, model: str) -> inbox.JobAdmitted:
    return inbox.JobAdmitted(
        job_id=job_id("research", name),
        team="research",
        spec=JobSpec(
            name=name,
            command=("true",),
            resources=Resources(devices=devices, types=(model,)),
            checkpoint=CheckpointPolicy(),
        ),
        spec_hash=name,
        client_key=name,
        priority=0,
        preempts=False,
        submitted_us=_T0,
    )


if __name__ == "__main__":
    main()
