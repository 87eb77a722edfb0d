"""`./dev bench`: jobs through the whole real stack on this machine. `./dev bench --peers`: beside others (`benchmarks.peers`).

Every part is real: client, NATS with fsync on each write, admission, placement, ledger, agent, Redis, MongoDB-wire
server, billing, history, all as processes. Jobs do nothing: timers of zero seconds on 64 simulated nodes of 8 devices.

Phases, each on the same running stack:

1. *capacity*: `--jobs` jobs submitted at once; throughput is jobs / (last terminal - first submit).
2. *half load*: open loop at half of the aim of 300 jobs/s; latency of each job from submit stored to grant and to its
   terminal state.
3. *real processes*: one real process (`/bin/true`) per job, as fast as it goes.

The stages of a job are read from the broker's own timestamps of the stored messages: request, admitted (inbox), granted
(ledger record), observed (inbox), terminal (ledger record). CPU seconds per job are summed over all processes, until two
seconds after the last end.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks import machine
from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.client import connect
from libs.ledger.reader import LedgerReader
from schemas import subjects
from schemas.jobs import JobSpec, Simulation
from schemas.ledger import JobFinished, JobGranted, JobQueued
from schemas.resources import Resources

TEAM = "bench"
FLEET = ROOT / "deploy" / "fleets" / "bench.yaml"
_SETTLED_S = 2.0
"""Readers such as history rest while much comes: so long after the last end they have done a phase's work, which counts with it
and not with the next one."""
PEERS = {
    "source": "measured by others of this project on a 2-core machine like this one; not in this run",
    "slurm_22_05": {"jobs_per_s": "50-62", "p50_ms": 1000},
    "hyperqueue_0_27": {"jobs_per_s": "455-530", "p50_ms_idle": 21},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=6000, help="no-op jobs of the capacity phase")
    parser.add_argument("--rate", type=float, default=150.0, help="jobs/s of the latency phase")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of the latency phase, s")
    parser.add_argument("--processes", type=int, default=600, help="jobs with a real process each; 0: leave out")
    parser.add_argument("--state-dir", type=Path, default=Path(".baton/bench"))
    asyncio.run(_bench(parser.parse_args()))


async def _bench(options: argparse.Namespace) -> None:
    import shutil

    about = machine.describe()
    shutil.rmtree(options.state_dir, ignore_errors=True)
    launch = LaunchOptions(state_dir=options.state_dir, teams=(TEAM,), fleet=FLEET, real_node="none")
    async with LocalStack(launch) as cluster, await connect(cluster.address("operator"), operator=True) as operator:
        client = await connect(cluster.address(TEAM), TEAM)
        await _until(operator, lambda s: s.nodes_up == 64)
        print("warming up")
        await _burst(client, operator, _noop("warm"), 500)
        print(f"capacity: {options.jobs} no-op jobs at once")
        capacity = await _burst(client, operator, _noop("cap"), options.jobs)
        print(_line(capacity))
        print(f"latency: {options.rate:.0f} jobs/s for {options.seconds:g} s")
        half = await _open_loop(client, operator, _noop("half"), options.rate, options.seconds)
        print(_line(half))
        real = None
        if options.processes:
            print(f"real processes: {options.processes} jobs of /bin/true")
            spec = JobSpec(name="true", command=("/bin/true",), resources=Resources())
            real = await _burst(client, operator, spec, options.processes)
            print(_line(real))
        verified = await _verify(operator)
        await client.close()
    result = {
        "machine": about,
        "stack": "embedded, sync_interval always, all services, 64 nodes x 8 simulated devices",
        "capacity": capacity,
        "half_load": half,
        "real_processes": real,
        "ledger": verified,
        "targets": {"jobs_per_s": 300, "p99_submit_to_granted_ms_at_half": 100},
        "peers": PEERS,
    }
    print(f"written to {machine.write('throughput', result)}")
    if verified["violations"]:
        raise SystemExit("the ledger has violations")


def _noop(name: str) -> JobSpec:
    return JobSpec(name=name, resources=Resources(), simulation=Simulation(duration_s=0))


async def _burst(client: Any, operator: Any, spec: JobSpec, count: int) -> dict[str, Any]:
    """`count` jobs submitted as fast as the client can."""
    return await _measured(operator, count, client.submit_many([spec] * count))


async def _open_loop(client: Any, operator: Any, spec: JobSpec, rate: float, seconds: float) -> dict[str, Any]:
    """Jobs at a fixed rate, whatever becomes of them (no coordinated omission)."""

    async def send() -> None:
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            due = int(elapsed * rate) - sent
            if due > 0:
                await client.submit_many([spec] * due)
                sent += due
            await asyncio.sleep(0.005)

    before = _ended(await operator.status())
    result = await _measured(operator, None, send())
    result["offered_jobs_per_s"] = round((_ended(await operator.status()) - before) / seconds, 1)
    return result


async def _measured(operator: Any, count: int | None, work: Any) -> dict[str, Any]:
    """Runs `work`, waits until all is ended, and reads stages from the broker's timestamps."""
    js, pool = operator.nats.jetstream(), (await operator.status()).pool
    marks = {name: (await js.stream_info(name)).state.last_seq for name in _streams(pool)}
    ended_before = _ended(await operator.status())
    cpu_before = machine.cpu_by_process()
    began = time.monotonic()
    await work
    submitted = (await js.stream_info(subjects.REQUESTS)).state.last_seq - marks[subjects.REQUESTS]
    total = count if count is not None else submitted
    await _until(operator, lambda s: _ended(s) - ended_before >= total)
    wall_s = time.monotonic() - began
    await asyncio.sleep(_SETTLED_S)
    cpu = {name: after - cpu_before.get(name, 0.0) for name, after in machine.cpu_by_process().items()}
    return _summary(await _stages(js, pool, marks), total, wall_s, cpu)


def _streams(pool: str) -> tuple[str, str, str]:
    return subjects.REQUESTS, subjects.inbox_stream(pool), subjects.ledger_stream(pool)


async def _stages(js: Any, pool: str, marks: dict[str, int]) -> dict[str, dict[str, int]]:
    """Job -> stage -> broker timestamp, us."""
    jobs: dict[str, dict[str, int]] = {}
    reader = LedgerReader(js, pool)
    last = (await js.stream_info(subjects.ledger_stream(pool))).state.last_seq
    async for entries in reader.read_to(last):
        for entry in entries:
            if entry.seq <= marks[subjects.ledger_stream(pool)]:
                continue
            for event in entry.record.events:
                if type(event) is JobQueued:
                    jobs[event.job_id] = {"submitted": event.submitted_us, "admitted": 0}
                    jobs[event.job_id]["decided"] = entry.record.t_us
                elif type(event) is JobGranted and event.job_id in jobs:
                    jobs[event.job_id].setdefault("granted", entry.time_us)
                elif type(event) is JobFinished and event.job_id in jobs:
                    jobs[event.job_id]["observed"] = entry.record.t_us
                    jobs[event.job_id]["ended"] = entry.time_us
    await reader.close()
    async for subject, time_us, data in _messages(js, subjects.inbox_stream(pool), marks[subjects.inbox_stream(pool)]):
        if ".admitted." in subject:
            start = data.find(b'"job-') + 1
            job = data[start : start + 36].decode()
            if job in jobs:
                jobs[job]["admitted"] = time_us
    return {job: at for job, at in jobs.items() if "ended" in at and at["admitted"]}


async def _messages(js: Any, stream: str, after: int) -> AsyncIterator[tuple[str, int, bytes]]:
    from nats.errors import TimeoutError as NatsTimeout
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1, ack_policy=AckPolicy.NONE
    )
    subscription = await js.pull_subscribe("", stream=stream, config=config)
    while True:
        try:
            batch = await subscription.fetch(1000, timeout=1.0)
        except (TimeoutError, NatsTimeout):
            break
        for msg in batch:
            yield msg.subject, int(msg.metadata.timestamp.timestamp() * 1e6), msg.data
    await subscription.unsubscribe()


def _summary(jobs: dict[str, dict[str, int]], count: int, wall_s: float, cpu: dict[str, float]) -> dict[str, Any]:
    def spread(begin: str, end: str) -> dict[str, float]:
        values = [(at[end] - at[begin]) / 1000 for at in jobs.values()]
        return {
            "p50_ms": round(machine.quantile(values, 0.5), 2),
            "p99_ms": round(machine.quantile(values, 0.99), 2),
            "max_ms": round(max(values, default=0.0), 2),
        }

    first = min((at["submitted"] for at in jobs.values()), default=0)
    last = max((at["ended"] for at in jobs.values()), default=0)
    span_s = max(1e-9, (last - first) / 1e6)
    return {
        "jobs": count,
        "jobs_seen": len(jobs),
        "wall_s": round(wall_s, 3),
        "jobs_per_s": round(len(jobs) / span_s, 1),
        "submit_to_granted": spread("submitted", "granted"),
        "submit_to_ended": spread("submitted", "ended"),
        "stages": {
            "request stored -> admitted stored (admission)": spread("submitted", "admitted"),
            "admitted stored -> grant stored (placement)": spread("admitted", "granted"),
            "grant stored -> last fact stored (agent)": spread("granted", "observed"),
            "last fact stored -> end stored (placement)": spread("observed", "ended"),
        },
        "cpu_ms_per_job": {
            name: round(1000 * used / max(1, count), 3) for name, used in sorted(cpu.items()) if used > 0
        },
        "cpu_ms_per_job_total": round(1000 * sum(cpu.values()) / max(1, count), 3),
    }


async def _until(operator: Any, done: Any) -> None:
    while not done(await operator.status()):
        await asyncio.sleep(0.05)


def _ended(status: Any) -> int:
    return sum(status.jobs.get(state, 0) for state in ("succeeded", "failed", "cancelled"))


async def _verify(operator: Any) -> dict[str, Any]:
    from libs.ledger.verify import verify

    report = await verify(operator.nats.jetstream(), (await operator.status()).pool)
    return {"records": report.records, "events": report.events, "violations": report.violations_total}


def _line(result: dict[str, Any]) -> str:
    granted = result["submit_to_granted"]
    return (
        f"  {result['jobs_per_s']} jobs/s, submit to granted p50 {granted['p50_ms']} ms, p99 {granted['p99_ms']} ms, "
        f"{result['cpu_ms_per_job_total']} CPU-ms a job"
    )


if __name__ == "__main__":
    main()
