"""`python -m benchmarks.questions`: how long questions take while nothing happens, and under ten times the sustainable load.

Both in one run, on one stack. The sustainable rate is half of what a burst reached just before. A client of its own asks
`pool.status`, `queue.list`, `job.explain` (of a job that waits) and `job.plan` in turn, `--ask` times a second, and counts from
the moment when a question was due, so a stalled answer delays no other from being counted. What counts is the ratio; the
aim for `pool.status` is a p99 under 250 ms.
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks import crowds, machine
from libs.client import Baton, ClientError, connect
from schemas.jobs import JobSpec, Simulation
from schemas.resources import Resources

TEAM, ASKER = "load", "asker"
WAITS = JobSpec(name="waits", resources=Resources(devices=512), simulation=Simulation(duration_s=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each phase, s")
    parser.add_argument("--jobs", type=int, default=2000, help="of the burst that finds the sustainable rate")
    parser.add_argument("--times", type=float, default=10.0, help="load, in sustainable rates")
    parser.add_argument("--ask", type=float, default=20.0, help="questions a second")
    parser.add_argument("--short", action="store_true", help="a few seconds, to see that it works; not for figures")
    parser.add_argument("--state-dir", type=Path, default=Path(".baton/bench-questions"))
    options = parser.parse_args()
    if options.short:
        options.seconds, options.jobs, options.times = 4.0, 200, 3.0
    asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> None:
    about = machine.describe()
    async with crowds.stack(options.state_dir, (TEAM, ASKER)) as (cluster, clients, operator):
        rate = await crowds.sustainable({TEAM: clients[TEAM]}, operator, options.jobs)
        print(f"sustainable: {rate:.0f} jobs/s")
        held = await clients[ASKER].submit(WAITS.model_copy(update={"simulation": Simulation(duration_s=3600)}))
        waits = await clients[ASKER].submit(WAITS)
        await crowds.rest(operator, await crowds.ended(operator))
        async with await connect(cluster.address(ASKER), ASKER) as asker:
            idle = await _ask(asker, waits.job_id, options.ask, options.seconds)
            asking = asyncio.create_task(_ask(asker, waits.job_id, options.ask, options.seconds))
            sent = await crowds.submit_at({TEAM: clients[TEAM]}, {TEAM: rate * options.times}, options.seconds)
            load = await asking
        for job in (waits, held):
            await clients[ASKER].cancel(job.job_id)
    result = {
        "machine": about,
        "sustainable_jobs_per_s": round(rate, 1),
        "offered_jobs_per_s": round(sum(sent.values()) / options.seconds, 1),
        "idle": idle,
        "load": load,
        "p99_ratio": {
            name: round(load[name]["p99_ms"] / idle[name]["p99_ms"], 2) for name in idle if idle[name]["p99_ms"]
        },
        "aim_p99_ms": 250,
    }
    for name in idle:
        print(f"{name}: p99 {idle[name]['p99_ms']} ms idle, {load[name]['p99_ms']} ms under load")
    print(f"written to {machine.write('questions', result)}" if not options.short else "short: nothing is written")


async def _ask(asker: Baton, job_id: str, rate: float, seconds: float) -> dict[str, Any]:
    """Latency of each kind of question, from when it was due; one without an answer counts with the client's time limit."""
    took: dict[str, list[float]] = {"pool.status": [], "queue.list": [], "job.explain": [], "job.plan": []}
    failed = dict.fromkeys(took, 0)
    spec = JobSpec(command=("true",), resources=Resources(devices=8))

    async def one(number: int, due: float) -> None:
        name = list(took)[number % len(took)]
        try:
            match name:
                case "pool.status":
                    await asker.status()
                case "queue.list":
                    await asker.queue()
                case "job.explain":
                    await asker.explain(job_id)
                case _:
                    await asker.plan(spec)
        except ClientError:
            failed[name] += 1
        took[name].append((time.monotonic() - due) * 1000)

    began, asked = time.monotonic(), []
    for number in range(int(seconds * rate)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked.append(asyncio.create_task(one(number, due)))
    await asyncio.gather(*asked)
    return {name: crowds.spread(values) | {"failed": failed[name]} for name, values in took.items()}


if __name__ == "__main__":
    main()
