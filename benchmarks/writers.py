"""`python -m benchmarks.writers`: where one pool's single writer saturates, and what more pools cost.

A nats-server that fsyncs each write, and for each of 1, 2, 4, 8 pools one process with the ledger writer that placement runs
(decider, scorer, snapshots; no Redis, no telling of nodes). Each pool has `--nodes` nodes of 8, and its inbox is filled as fast
as the broker stores, so that nothing limits its writer but itself, the broker and the processors.

Two turns: all jobs are admitted and get a device; then all of them end. A job's cost is that of both. *ms per job* is processor
time of the writers, and of the broker; 1,000 / the writer's is what one core lets one writer do. *jobs/s* is by wall clock over
all pools, from the first message sent to the last record stored, and says little on a busy machine.

Writes `benchmarks/results/writers.json`; `python -m benchmarks.growth --plot` draws it.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel

from benchmarks import machine
from benchmarks.growth import DEVICES, admitted, registered
from libs.bus.connect import BusConnection, close, connect
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.bus.streams import provision
from libs.core.placement.score.scorer import Scorer
from libs.core.scheduling.decider import Deciders
from libs.embedded.servers import NATS, ServerOptions
from libs.embedded.stack import Servers
from libs.ledger.reader import LedgerReader
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.writer import LedgerWriter
from schemas import inbox, subjects
from schemas.catalog import BY_TYPE, TYPE_OF
from schemas.ledger import JobGranted, LedgerRecord

POOLS = (1, 2, 4, 8)
SCALE = 0.01
_WAIT_S = 300.0
_READY = "ready"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, nargs="+", default=POOLS)
    parser.add_argument("--nodes", type=int, default=250, help="of a pool; as many jobs as they have devices")
    parser.add_argument("--writer", nargs=2, metavar=("URL", "POOL"), help="be one of the writers")
    options = parser.parse_args()
    if options.writer:
        asyncio.run(_write(*options.writer))
        return
    result: dict[str, Any] = {"machine": machine.describe(), "jobs_of_a_pool": options.nodes * DEVICES, "pools": []}
    for count in options.pools:
        with tempfile.TemporaryDirectory(prefix="baton-writers-") as folder:
            result["pools"].append(asyncio.run(_turn(Path(folder), count, options.nodes)))
        print(result["pools"][-1], flush=True)
    print(f"written to {machine.write('writers', result)}")


async def _write(url: str, pool: str) -> None:
    """One writer, as placement has it, until it is killed, or the benchmark has ended."""
    nats = await connect(url, name=f"writer-{pool}")
    js = nats.jetstream()
    deciders = Deciders(learner=Scorer, largest_event=nats.max_payload - 4096)

    async def committed(_seq: int, _record: LedgerRecord, decider: Any) -> None:
        decider.upkeep()

    writer = LedgerWriter(
        js, pool, deciders, writer_id=pool, snapshots=SnapshotStore(js, pool), on_commit=[committed]
    )  # fmt: skip
    running = asyncio.create_task(writer.run())
    await writer.ready.wait()
    print(_READY, flush=True)
    driver = asyncio.create_task(asyncio.to_thread(sys.stdin.read))  # ends when whoever started us is gone
    await asyncio.wait({running, driver}, return_when=asyncio.FIRST_COMPLETED)
    os._exit(0)


async def _turn(folder: Path, count: int, nodes: int) -> dict[str, Any]:
    pools = [f"pool{number}" for number in range(count)]
    async with Servers(folder, ServerOptions(run=(NATS,))) as servers:
        bus = await connect(servers.nats_url, name="writers")
        await provision(bus.jetstream(), pools, scale=SCALE)
        with ExitStack() as stack:
            writers = _Writers([stack.enter_context(_started(servers.nats_url, pool)) for pool in pools])
            side = _Side(bus, pools, writers)
            await side.put({pool: [registered(number) for number in range(nodes)] for pool in pools})
            jobs = nodes * DEVICES
            granted = await side.put(
                {pool: [admitted(number, 1, 1) for number in range(1, jobs + 1)] for pool in pools}
            )
            ended = await side.put({pool: _ends(await side.granted(pool)) for pool in pools})
            writers.kill()
        await close(bus)
    everything = count * jobs
    return {
        "pools": count,
        "jobs": everything,
        "writer_ms_per_job": round(1000 * (granted[0] + ended[0]) / everything, 3),
        "broker_ms_per_job": round(1000 * (granted[1] + ended[1]) / everything, 3),
        "jobs_per_s": round(everything / (granted[2] + ended[2]), 1),
        "writers_share_of_a_core": round((granted[0] + ended[0]) / (granted[2] + ended[2]), 2),
    }


def _started(url: str, pool: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.writers", "--writer", url, pool]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline().strip() != _READY:
        raise SystemExit(f"the writer of {pool} ended")
    return process


class _Writers:
    """The writers' processes, and the broker's."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self._processes = processes
        self._broker = next(one for one in psutil.Process().children() if "nats" in one.name())

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def cpu_s(self) -> tuple[float, float]:
        """Of all writers, and of the broker."""
        return sum(_cpu_s(psutil.Process(one.pid)) for one in self._processes), _cpu_s(self._broker)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


class _Side:
    """Fills inboxes, and measures how they are emptied."""

    def __init__(self, bus: BusConnection, pools: Sequence[str], writers: _Writers) -> None:
        self._js, self._pools, self._writers = bus.jetstream(), pools, writers

    async def put(self, messages: dict[str, list[BaseModel]]) -> tuple[float, float, float]:
        """CPU seconds of the writers and of the broker, and wall seconds, until the ledgers have decided all of them."""
        filled = [[_input(model, pool) for model in models] for pool, models in messages.items()]
        before, began = self._writers.cpu_s(), time.time()
        await asyncio.gather(*(Outbox(self._js).publish_many(items) for items in filled))
        last = {pool: (await self._js.stream_info(subjects.inbox_stream(pool))).state.last_seq for pool in self._pools}
        ends = [await self._decided(pool, seq) for pool, seq in last.items()]
        after = self._writers.cpu_s()
        return after[0] - before[0], after[1] - before[1], max(ends) - began

    async def granted(self, pool: str) -> dict[str, list[str]]:
        """Node -> the jobs that it has."""
        found = defaultdict(list)
        reader = LedgerReader(self._js, pool)
        async for entries in reader.read_to(await reader.last_seq()):
            for event in (event for entry in entries for event in entry.record.events):
                if isinstance(event, JobGranted):
                    found[event.claims[0].node].append(event.job_id)
        await reader.close()
        return found

    async def _decided(self, pool: str, inbox_seq: int) -> float:
        """When the record was stored that decides up to there, s since the epoch."""
        reader, deadline = LedgerReader(self._js, pool), time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            async for entries in reader.read_to(await reader.last_seq()):
                for entry in entries:
                    if entry.record.inbox_seq >= inbox_seq:
                        await reader.close()
                        return entry.time_us / 1e6
            await asyncio.sleep(0.2)
        raise SystemExit(f"the writer of {pool} has not decided input {inbox_seq} after {_WAIT_S:g} s")


def _ends(granted: dict[str, list[str]]) -> list[BaseModel]:
    """One message for each job, as from agents of which each heard of one end at a time."""
    return [
        inbox.NodeObserved(
            node=node,
            incarnation=1,
            observations=(inbox.Released(job_id=job, attempt=1, exit_code=0, own_exit=True),),
        )
        for node, jobs in granted.items()
        for job in jobs
    ]


def _input(model: BaseModel, pool: str) -> Outgoing:
    type_ = TYPE_OF[type(model)]
    pattern = subjects.fill(BY_TYPE[type_].subject, pool=pool)
    if "node" in subjects.keys_in(pattern):
        node = model.inventory.node if isinstance(model, inbox.NodeRegistered) else getattr(model, "node", "")
        pattern = subjects.fill(pattern, node=node)
    cause = model.job_id if isinstance(model, inbox.JobAdmitted) else model.model_dump_json()
    return outgoing(model, subject=pattern, type=type_, source=f"/baton/{pool}/benchmark", cause=cause)


if __name__ == "__main__":
    main()
