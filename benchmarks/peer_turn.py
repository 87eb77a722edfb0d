"""`python -m benchmarks.peer_turn --kind process --jobs 1000 --idle 50`: one turn of Baton for `benchmarks.peers`, as JSON.

A whole new stack with everything switched on: a broker that fsyncs each write, walls, accounts, history, bills. Four nodes of
8 devices, and one device a job. *process*: each job is a `bash` behind full walls that writes its clock's time, and the stamps
in the jobs' logs are what is counted. *timer*: a job is a timer of zero seconds in the agent, no process.

Two phases after a warm-up: all jobs submitted one by one without awaiting any (jobs/s from the first submit to the last start,
for timers to the last end), then one at a time on the idle cluster, each from just before its submit to its start. A start is
the process' own stamp; of a timer it is when the record that says it runs was stored. At the end the ledger is verified from
its first record, and the bill must equal its integral.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.client import Baton, connect
from libs.ledger.reader import LedgerReader
from libs.ledger.verify import verify
from schemas.jobs import JobSpec, Simulation
from schemas.ledger import AttemptRunning, JobFinished
from schemas.resources import Resources

TEAM = "bench"
NODES, DEVICES = 4, 8
FLEET = ROOT / "deploy" / "fleets" / "peers-4x8.yaml"
KINDS = ("process", "timer")
_LOOK_S = 0.25
"""Between two questions whether all have ended. They are asked of what is measured, and stamps tell when it was."""
_IDLE_S = 0.5
"""Between the end of a job and the next one, where they come one at a time: until the end is in MongoDB and billed."""
_BILLED_S = 60.0
"""For the bill to come as far as the ledger."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="process")
    parser.add_argument("--jobs", type=int, default=1000, help="submitted at once")
    parser.add_argument("--idle", type=int, default=50, help="submitted one at a time")
    parser.add_argument("--within", type=Path, help="where the turn's folder is made and stays; without, it is removed")
    options = parser.parse_args()

    def turn(folder: str) -> None:
        print(json.dumps(asyncio.run(_turn(Path(folder), options.kind, options.jobs, options.idle))))

    if options.within is not None:
        turn(tempfile.mkdtemp(prefix="baton-peer-", dir=options.within))
        return
    with tempfile.TemporaryDirectory(prefix="baton-peer-") as folder:
        turn(folder)


async def _turn(folder: Path, kind: str, jobs: int, idle: int) -> dict[str, Any]:
    launch = LaunchOptions(state_dir=folder, teams=(TEAM,), fleet=FLEET, real_node="none")
    async with LocalStack(launch) as cluster, await connect(cluster.address("operator"), operator=True) as operator:
        async with await connect(cluster.address(TEAM), TEAM) as client:
            side = _Side(folder, kind, client, operator)
            await side.until_up()
            await side.burst(NODES * DEVICES)  # the same warm-up as the peers'
            cpu = sum(machine.cpu_by_process().values())
            rate = await side.burst(jobs)
            cpu = sum(machine.cpu_by_process().values()) - cpu
            waits = await side.one_by_one(idle)
            walls = _walls(folder) if kind == "process" else "no process"
        problems = await _audit(operator)
    return {
        "peer": f"baton-{kind}",
        "done": jobs,
        "jobs_per_s": round(rate, 1),
        "idle_p50_ms": round(machine.quantile(waits, 0.5), 2),
        "idle_p99_ms": round(machine.quantile(waits, 0.99), 2),
        "cpu_ms_per_job": round(1000 * cpu / jobs, 3),
        "durable": True,
        "walls": walls,
        **problems,
    }


class _Side:
    """Baton as a peer: bursts and single jobs, measured by the machine's one clock."""

    def __init__(self, folder: Path, kind: str, client: Baton, operator: Baton) -> None:
        self._folder, self._kind, self._client, self._operator = folder, kind, client, operator
        if kind == "timer":
            self._spec = JobSpec(name="timer", resources=Resources(), simulation=Simulation(duration_s=0))
        else:
            command = ("/bin/bash", "-c", "echo $EPOCHREALTIME")
            self._spec = JobSpec(name="stamp", command=command, resources=Resources())

    async def until_up(self) -> None:
        while (await self._operator.status()).nodes_up < NODES:
            await asyncio.sleep(0.05)

    async def burst(self, count: int) -> float:
        """Jobs/s of `count` jobs that are there at once."""
        ended = await self._ended()
        began = time.time()
        ids = {one.job_id for one in await self._client.submit_many([self._spec] * count)}
        while await self._ended() < ended + count:
            await asyncio.sleep(_LOOK_S)
        starts = await self._starts(ids, last=True)
        return len(starts) / (max(starts.values()) - began)

    async def one_by_one(self, count: int) -> list[float]:
        """Milliseconds from before a submit to the start, of jobs that come when nothing else runs."""
        submits: dict[str, float] = {}
        for _ in range(count):
            now = time.time()
            job = await self._client.submit(self._spec)
            submits[job.job_id] = now
            await self._client.wait(job.job_id)
            await asyncio.sleep(_IDLE_S)
        starts = await self._starts(set(submits), last=False)
        return [1000 * (starts[job] - now) for job, now in submits.items()]

    async def _ended(self) -> int:
        jobs = (await self._operator.status()).jobs
        if lost := jobs.get("failed", 0) + jobs.get("cancelled", 0):
            raise SystemExit(f"{lost} jobs did not succeed: the figures would say nothing")
        return jobs.get("succeeded", 0)

    async def _starts(self, ids: set[str], *, last: bool) -> dict[str, float]:
        """Job -> when it started, s since the epoch; of timers, with `last`, when it ended."""
        if self._kind == "process":
            kept = self._folder.glob("services/*/jobs/.agent/job-*.1.*/rank-0.log")  # as the agents keep them
            logs = {path.parent.name.split(".")[0]: path for path in kept}
            return {job: float(logs[job].read_text()) for job in ids}
        wanted = JobFinished if last else AttemptRunning
        js, pool = self._operator.nats.jetstream(), (await self._operator.status()).pool
        reader = LedgerReader(js, pool)
        starts: dict[str, float] = {}
        async for entries in reader.read_to(await reader.last_seq()):
            for entry in entries:
                for event in entry.record.events:
                    if isinstance(event, wanted) and event.job_id in ids:
                        starts[event.job_id] = entry.time_us / 1e6
        await reader.close()
        return starts


def _walls(folder: Path) -> str:
    return next((path.read_text().strip() for path in sorted(folder.rglob("agent/walls"))), "unknown")


async def _audit(operator: Baton) -> dict[str, Any]:
    """What the ledger's verification says, and whether the bill is its integral."""
    js, pool = operator.nats.jetstream(), (await operator.status()).pool
    audit = await verify(js, pool)
    deadline = time.monotonic() + _BILLED_S
    while (billed := (await operator.bill()).total_milli_us) != audit.milli_us and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        audit = await verify(js, pool)
    return {"violations": audit.violations_total, "billed": billed == audit.milli_us}


if __name__ == "__main__":
    main()
