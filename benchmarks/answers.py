"""`python -m benchmarks.answers`: CPU time of one answer to each question while very many jobs wait, without a bus.

Jobs of 200 shapes and 20 teams wait for 64 nodes that are full, so there are some 4,000 queues, most of them gangs whose
reservation is due. Each question is asked of a state that was not asked before, as `operator` and as one team. Processor
time of this process; the best of `--repeat`, because other work on the machine adds to it.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import machine
from libs.core.billing.pricing import Prices
from libs.core.explain.dry_run import DryRunInputs
from libs.core.scheduling.decider import Decider
from schemas import inbox
from schemas.billing import Price, PriceBook
from schemas.explanations import ExplainQuery, PlanQuery
from schemas.ids import job_id
from schemas.jobs import JobSpec, JobState
from schemas.queue_status import QueueListQuery
from schemas.resources import Device, Inventory, Position, Resources
from schemas.subjects import OPERATOR
from services.queries.answers import Answers, AskedBy
from services.queries.replica import Latencies, Replica

NODES, SHAPES, TEAMS, BATCH = 64, 200, 20, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="jobs that wait")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="few jobs, to see that it works; nothing is written")
    options = parser.parse_args()
    if options.short:
        options.waiting, options.repeat = [1_000], 1
    about, rows = machine.describe(), []
    for waiting in options.waiting:
        replica = _crowded(waiting)
        rows.append({"waiting": waiting, "queues": len(replica.state.queues), "ms": _asked(replica, options.repeat)})
        print(rows[-1])
    if not options.short:
        print(f"written to {machine.write('answers', {'machine': about, 'cpu_ms': rows, 'aim_ms': 50})}")


@dataclass(frozen=True)
class _Item:
    seq: int
    time_us: int
    message: Any
    subject: str = ""
    error: str = ""


def _crowded(waiting: int) -> Replica:
    decider, seq, t_us = Decider(), 0, 1_000_000
    full = JobSpec(command=("true",), time_limit_s=7200, resources=Resources(devices=8))
    specs = [
        JobSpec(command=("true",), resources=Resources(devices=1 + n % 8, memory_mib=1024 * (1 + n // 8)))
        for n in range(SHAPES)
    ]
    messages: list[Any] = [
        inbox.NodeRegistered(incarnation=1, inventory=_node(f"n{n}", f"leaf-{n // 16}"), lease_s=10)
        for n in range(NODES)
    ]
    messages += [_job(n, full, "first", t_us) for n in range(NODES)]
    messages += [_job(n, specs[n % SHAPES], f"team{n // SHAPES % TEAMS}", t_us + n) for n in range(waiting)]
    for at in range(0, len(messages), BATCH):
        items = [_Item(seq + n + 1, t_us, message) for n, message in enumerate(messages[at : at + BATCH])]
        seq, t_us = items[-1].seq, t_us + 1000
        decider.decide(items, t_us)
    decider.decide([_Item(seq + 1, t_us + 100_000_000, inbox.Tick())], t_us + 100_000_000)
    return Replica.load(list(Replica(decider).dump()))


def _node(name: str, leaf: str) -> Inventory:
    devices = tuple(Device(id=f"{name}-{i}", index=i, model="H100", memory_mib=80 * 1024) for i in range(8))
    return Inventory(node=name, position=Position(leaf=leaf), devices=devices, simulated=True)


def _job(number: int, spec: JobSpec, team: str, submitted_us: int) -> inbox.JobAdmitted:
    return inbox.JobAdmitted(
        job_id=job_id(team, str(number)), team=team, spec=spec, spec_hash="h", client_key=str(number), priority=100,
        preempts=False, submitted_us=submitted_us,
    )  # fmt: skip


_PLANS = {
    name: PlanQuery(job=JobSpec(command=("true",), priority_class=name, resources=Resources(devices=8)))
    for name in ("experiment", "production")
}


def _asked(replica: Replica, repeat: int) -> dict[str, float]:
    state = replica.state
    prices = Prices(PriceBook(currency="USD", prices=(Price(model="H100", micros_per_device_hour=3_000_000),)))
    last = [job for job in state.jobs.values() if job.state is JobState.QUEUED][-1]
    took: dict[str, float] = {}
    for team in (OPERATOR, last.team):
        of_all = Answers("bench", DryRunInputs(prices), Latencies(1), now_us=lambda: state.t_us)
        of_all.plan(replica, _PLANS["experiment"], AskedBy(team, 1))  # the shape of the fleet is kept
        for name, ask in _asks(replica, last.id, team).items():
            times = []
            for _ in range(repeat):
                answers = Answers("bench", DryRunInputs(prices), Latencies(1), now_us=lambda: state.t_us)
                answers._shape = of_all._shape
                began = time.process_time()
                ask(answers)
                times.append((time.process_time() - began) * 1000)
            took[f"{name}, {'operator' if team == OPERATOR else 'a team'}"] = round(min(times), 1)
    return took


def _asks(replica: Replica, job: str, team: str) -> dict[str, Callable[[Answers], object]]:
    by = AskedBy(team, 1)
    return {
        "pool.status": lambda of: of.pool_status(replica, team, 1),
        "queue.list": lambda of: of.queue_list(replica, QueueListQuery(), by),
        "queue.list of 5000": lambda of: of.queue_list(replica, QueueListQuery(limit=5000), by),
        "job.explain": lambda of: of.explain_job(replica, ExplainQuery(job_id=job), by),
        "job.plan of class experiment": lambda of: of.plan(replica, _PLANS["experiment"], by),
        "job.plan of class production": lambda of: of.plan(replica, _PLANS["production"], by),
    }


if __name__ == "__main__":
    main()
