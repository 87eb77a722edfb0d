"""`python -m benchmarks.backlog`: what `--waiting` jobs that wait cost the whole real stack.

The stack is that of `benchmarks.throughput` on 4 nodes of 8. In order: `--burst` timers through the empty stack; all devices
are taken by timers of an hour; `--waiting` jobs with names of their own are submitted, and wait; the timers of an hour are
cancelled, and of those that wait run as many as before; every service and server is ended, and started again, until queries
counts all jobs that there were.

- *memory*: proportional set size (PSS) of each process by name, MiB, before any waited and with all of them.
- *jobs_per_s*, *cpu_ms_per_job*: of the burst through the empty stack, and of as many jobs that waited. On a busy machine
  only CPU counts.
- *submit_ms*: p50 and p99 of `--asks` submits, one after the other, until each is admitted: with none that waits, and with all.
- *restart_s*: from the first process started to an answer that counts all of them.

Writes `benchmarks/results/backlog.json`.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks import machine
from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.client import Baton, connect
from libs.ledger.verify import verify
from schemas.jobs import JobSpec, Simulation
from schemas.resources import Resources

TEAM, NODES, DEVICES = "bench", 4, 8
FLEET = ROOT / "deploy" / "fleets" / "peers-4x8.yaml"
_HOUR_S = 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--burst", type=int, default=2000)
    parser.add_argument("--asks", type=int, default=200)
    options = parser.parse_args()
    if not 0 < options.burst <= options.waiting:
        parser.error("--burst is at least 1, and at most as many as wait")
    result: dict[str, Any] = {"machine": machine.describe(), "waiting": options.waiting}
    with tempfile.TemporaryDirectory(prefix="baton-backlog-") as folder:
        unbounded = Path(folder) / "teams.yaml"
        unbounded.write_text("intake: {}\n")
        launch = LaunchOptions(state_dir=Path(folder), teams=(TEAM,), fleet=FLEET, real_node="none", quotas=unbounded)
        asyncio.run(_filled(launch, options, result))
        asyncio.run(_started_again(launch, options, result))
    print(f"written to {machine.write('backlog', result)}")
    if result["violations"]:
        raise SystemExit("the ledger has violations")


async def _filled(launch: LaunchOptions, options: argparse.Namespace, result: dict[str, Any]) -> None:
    async with LocalStack(launch) as cluster, await connect(cluster.address("operator"), operator=True) as operator:
        team = await connect(cluster.address(TEAM), TEAM)
        async with team as client:
            while (await operator.status()).nodes_up < NODES:
                await asyncio.sleep(0.1)
            await _burst(client, operator, [_timer("warm")] * 200)
            result["empty"] = await _burst(client, operator, [_timer("empty")] * options.burst)
            print(f"empty: {result['empty']}", flush=True)
            result["submit_ms"] = {"empty": await _asked(client, options.asks)}
            await client.submit_many([_timer("hour", _HOUR_S)] * (NODES * DEVICES))
            await _until(operator, "running", NODES * DEVICES)
            result["memory_mib"] = {"empty": _memory()}
            began = time.monotonic()
            for start in range(0, options.waiting, 1000):
                end = min(options.waiting, start + 1000)
                await client.submit_many([_timer(f"waits-{n}") for n in range(start, end)])
            await _until(operator, "queued", options.waiting)
            result["submitted_s"] = round(time.monotonic() - began, 1)
            await asyncio.sleep(5)  # history and the others catch up
            result["memory_mib"]["waiting"] = _memory()
            print(f"waiting: {result['memory_mib']}", flush=True)
            result["submit_ms"]["backlogged"] = await _asked(client, options.asks)
            print(f"a submit: {result['submit_ms']}", flush=True)
            hours = await client.list(name="hour")
            ended, began, before = await _ended(operator), time.monotonic(), sum(machine.cpu_by_process().values())
            for job in hours:
                await client.cancel(job.job_id)
            while (there := await _ended(operator)) < ended + options.burst:
                await asyncio.sleep(0.05)
            result["backlogged"] = _figures(there - ended, began, before)
            print(f"backlogged: {result['backlogged']}", flush=True)


async def _started_again(launch: LaunchOptions, options: argparse.Namespace, result: dict[str, Any]) -> None:
    began = time.monotonic()
    async with LocalStack(launch) as cluster, await connect(cluster.address("operator"), operator=True) as operator:
        while sum((await operator.status()).jobs.values()) < options.waiting + options.burst:
            await asyncio.sleep(0.1)
        result["restart_s"] = round(time.monotonic() - began, 1)
        print(f"restart: {result['restart_s']} s", flush=True)
        audit = await verify(operator.nats.jetstream(), (await operator.status()).pool)
        result["violations"] = audit.violations_total


async def _asked(client: Baton, count: int) -> dict[str, float]:
    took_ms = []
    for n in range(count):
        began = time.monotonic()
        await client.submit(_timer(f"asks-{n}"))
        took_ms.append(1000 * (time.monotonic() - began))
    return {"p50": round(machine.quantile(took_ms, 0.5), 1), "p99": round(machine.quantile(took_ms, 0.99), 1)}


async def _burst(client: Baton, operator: Baton, specs: list[JobSpec]) -> dict[str, float]:
    ended, began, before = await _ended(operator), time.monotonic(), sum(machine.cpu_by_process().values())
    await client.submit_many(specs)
    while await _ended(operator) < ended + len(specs):
        await asyncio.sleep(0.05)
    return _figures(len(specs), began, before)


def _figures(count: int, began: float, cpu_before: float) -> dict[str, float]:
    used = sum(machine.cpu_by_process().values()) - cpu_before
    return {
        "jobs_per_s": round(count / (time.monotonic() - began), 1),
        "cpu_ms_per_job": round(1000 * used / count, 3),
    }


def _timer(name: str, seconds: float = 0) -> JobSpec:
    return JobSpec(name=name, resources=Resources(), simulation=Simulation(duration_s=seconds))


async def _until(operator: Baton, state: str, count: int) -> None:
    while (await operator.status()).jobs.get(state, 0) < count:
        await asyncio.sleep(0.1)


async def _ended(operator: Baton) -> int:
    return (await operator.status()).jobs.get("succeeded", 0)


def _memory() -> dict[str, float]:
    """PSS of each service and server below this process, MiB."""
    found: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            pss, name = process.memory_full_info().pss, machine.service_of(process)
        except psutil.Error:
            continue
        found[name] += pss
    return {name: round(size / 2**20, 1) for name, size in sorted(found.items())} | {
        "all": round(found.total() / 2**20, 1)
    }


if __name__ == "__main__":
    main()
