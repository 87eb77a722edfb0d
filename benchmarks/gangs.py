"""`python -m benchmarks.gangs`: gangs through the whole real stack: many of 8 devices, and one of 512 on 64 nodes at a time.

The stack is that of `benchmarks.throughput`: fsync for each stored message, walls, all services, 64 simulated nodes of 8.

- *timers*, *processes*: `--gangs` gangs of 8 at once, with timers of zero seconds and with a `true` for each device. Gangs/s
  from the first stored request to the last stored end; processor time of all processes for each gang.
- *large*: one gang of 512 devices after the other, with timers. *granted*: from stored request to stored grant; *running*: to
  the stored record that says that all of it runs, so all 64 nodes were told, have started, and have said so.

Writes `benchmarks/results/gangs.json`.
"""

import argparse
import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import machine
from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.client import Baton, connect
from libs.ledger.reader import LedgerReader
from libs.ledger.verify import verify
from schemas.jobs import JobSpec, Simulation
from schemas.ledger import AttemptRunning, JobFinished, JobGranted, JobQueued
from schemas.resources import Level, Resources, Topology

TEAM, NODES, DEVICES = "bench", 64, 8
FLEET = ROOT / "deploy" / "fleets" / "bench.yaml"
_STAGES: dict[type, str] = {JobGranted: "granted", AttemptRunning: "running", JobFinished: "ended"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gangs", type=int, default=400, help="of 8 devices, with timers; with processes a quarter of them"
    )
    parser.add_argument("--large", type=int, default=20, help="gangs of 512 devices")
    options = parser.parse_args()
    about = machine.describe()
    with tempfile.TemporaryDirectory(prefix="baton-gangs-") as folder:
        result = asyncio.run(_bench(Path(folder), options.gangs, options.large))
    print(f"written to {machine.write('gangs', {'machine': about, **result})}")
    if result["violations"]:
        raise SystemExit("the ledger has violations")


async def _bench(folder: Path, gangs: int, large: int) -> dict[str, Any]:
    launch = LaunchOptions(state_dir=folder, teams=(TEAM,), fleet=FLEET, real_node="none")
    async with LocalStack(launch) as cluster, await connect(cluster.address("operator"), operator=True) as operator:
        async with await connect(cluster.address(TEAM), TEAM) as client:
            while (await operator.status()).nodes_up < NODES:
                await asyncio.sleep(0.1)
            side = _Side(client, operator)
            timer, process = _gang(DEVICES, timer=True), _gang(DEVICES, timer=False)
            await side.burst(timer, NODES)
            await side.burst(process, 4)
            found = {"timers": await side.burst(timer, gangs)}
            print(f"timers: {found['timers']}", flush=True)
            found["processes"] = await side.burst(process, max(1, gangs // 4))
            print(f"processes: {found['processes']}", flush=True)
            found["large"] = await side.one_by_one(_gang(NODES * DEVICES, timer=True), large)
            print(f"large: {found['large']}", flush=True)
        audit = await verify(operator.nats.jetstream(), (await operator.status()).pool)
    return {**found, "violations": audit.violations_total}


def _gang(devices: int, *, timer: bool) -> JobSpec:
    resources = Resources(devices=devices, topology=Topology(level=Level.NODE if devices <= DEVICES else Level.POOL))
    if timer:
        return JobSpec(name="gang", resources=resources, simulation=Simulation(duration_s=0))
    return JobSpec(name="gang", command=("/bin/true",), resources=resources)


class _Side:
    """Submits gangs, and reads what became of them from the ledger, by the broker's clock."""

    def __init__(self, client: Baton, operator: Baton) -> None:
        self._client, self._operator = client, operator

    async def burst(self, spec: JobSpec, count: int) -> dict[str, float]:
        before = sum(machine.cpu_by_process().values())
        ended = await self._ended()
        ids = [one.job_id for one in await self._client.submit_many([spec] * count)]
        while await self._ended() < ended + count:
            await asyncio.sleep(0.05)
        used = sum(machine.cpu_by_process().values()) - before
        times = await self._times(set(ids))
        span = max(at["ended"] for at in times.values()) - min(at["submitted"] for at in times.values())
        return {"gangs_per_s": round(1e6 * count / span, 1), "cpu_ms_per_gang": round(1000 * used / count, 2)}

    async def one_by_one(self, spec: JobSpec, count: int) -> dict[str, float]:
        """Milliseconds. The first is not counted."""
        ids = []
        for _ in range(count + 1):
            ids.append((await self._client.submit(spec)).job_id)
            await self._client.wait(ids[-1])
        times = await self._times(set(ids[1:]))
        found: dict[str, float] = {}
        for what in ("granted", "running"):
            took = [(at[what] - at["submitted"]) / 1000 for at in times.values()]
            found |= {f"{what}_p{q}_ms": round(machine.quantile(took, q / 100), 1) for q in (50, 99)}
        return found

    async def _ended(self) -> int:
        jobs = (await self._operator.status()).jobs
        if lost := jobs.get("failed", 0) + jobs.get("cancelled", 0):
            raise SystemExit(f"{lost} gangs did not succeed: the figures would say nothing")
        return jobs.get("succeeded", 0)

    async def _times(self, ids: set[str]) -> dict[str, dict[str, int]]:
        """Job -> stage -> when its record was stored, us."""
        times: dict[str, dict[str, int]] = defaultdict(dict)
        js, pool = self._operator.nats.jetstream(), (await self._operator.status()).pool
        reader = LedgerReader(js, pool)
        async for entries in reader.read_to(await reader.last_seq()):
            for entry in entries:
                for event in entry.record.events:
                    if isinstance(event, JobQueued) and event.job_id in ids:
                        times[event.job_id]["submitted"] = event.submitted_us
                    elif isinstance(event, JobGranted | AttemptRunning | JobFinished) and event.job_id in ids:
                        times[event.job_id][_STAGES[type(event)]] = entry.time_us
        await reader.close()
        return times


if __name__ == "__main__":
    main()
