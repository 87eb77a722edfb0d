"""What the benchmarks of load share: a stack, teams that submit at a fixed rate, and latencies from the broker's own times."""

import asyncio
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.client import Baton, connect
from libs.ledger.reader import LedgerReader
from libs.ledger.tail import Tail
from schemas import subjects
from schemas.jobs import JobSpec, Simulation
from schemas.ledger import JobFinished, JobGranted, JobQueued
from schemas.resources import Resources

FLEET = ROOT / "deploy" / "fleets" / "bench.yaml"
ENDED = ("succeeded", "failed", "cancelled")
_STEP_S = 0.02
_QUIET_S = 120.0


@dataclass(frozen=True, slots=True)
class Granted:
    """A job: its team, when its request was stored, and from then to its grant's record, by the broker's clock."""

    team: str
    job_id: str
    submitted_us: int
    wait_ms: float


@asynccontextmanager
async def stack(state_dir: Path, teams: Sequence[str]) -> AsyncIterator[tuple[LocalStack, dict[str, Baton], Baton]]:
    """Everything on 64 simulated nodes of 8 devices; a client for each team, and the operator's."""
    shutil.rmtree(state_dir, ignore_errors=True)
    async with AsyncExitStack() as held:
        options = LaunchOptions(state_dir=state_dir, teams=teams, fleet=FLEET, real_node="none")
        cluster = await held.enter_async_context(LocalStack(options))
        clients = {team: await held.enter_async_context(await connect(cluster.address(team), team)) for team in teams}
        operator = await held.enter_async_context(await connect(cluster.address("operator"), operator=True))
        while (await operator.status()).nodes_up < 64:
            await asyncio.sleep(0.1)
        yield cluster, clients, operator


def noop() -> JobSpec:
    return JobSpec(name="load", resources=Resources(), simulation=Simulation(duration_s=0))


async def submit_at(clients: Mapping[str, Baton], rates: Mapping[str, float], seconds: float) -> dict[str, int]:
    """Each team submits at its rate (jobs/s), whatever becomes of them; how many each got stored."""

    async def one(team: str, rate: float) -> int:
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            if (due := int(elapsed * rate) - sent) > 0:
                await clients[team].submit_many([noop()] * due, give_up_s=600)
                sent += due
            await asyncio.sleep(_STEP_S)
        return sent

    return dict(zip(rates, await asyncio.gather(*(one(t, r) for t, r in rates.items())), strict=True))


@dataclass(frozen=True, slots=True)
class Due:
    """A request of an open loop: its job, and when it was to be sent, by this machine's clock."""

    team: str
    job_id: str
    due_us: int


async def submit_open(clients: Mapping[str, Baton], rates: Mapping[str, float], until: Callable[[], bool]) -> list[Due]:
    """Each team submits at its rate (jobs/s) until `until` says so. Nothing waits for an answer, so nothing that stalls delays
    what is due after it."""
    sent: list[Due] = []

    async def some(team: str, specs: list[tuple[str, JobSpec]], due_us: Sequence[int]) -> None:
        stored = await clients[team].submit_many(specs, give_up_s=600)
        sent.extend(Due(team, one.job_id, at) for one, at in zip(stored, due_us, strict=True))

    async def one(team: str, rate: float) -> None:
        began, began_us, count = time.monotonic(), time.time_ns() // 1000, 0
        under_way: set[asyncio.Task[None]] = set()
        while not until():
            if (due := int((time.monotonic() - began) * rate) - count) > 0:
                at = [began_us + int((count + n) * 1e6 / rate) for n in range(1, due + 1)]
                under_way = {task for task in under_way if not task.done()}
                under_way.add(asyncio.create_task(some(team, [(uuid.uuid4().hex, noop()) for _ in at], at)))
                count += due
            await asyncio.sleep(_STEP_S)
        await asyncio.gather(*under_way)

    await asyncio.gather(*(one(team, rate) for team, rate in rates.items()))
    return sent


@dataclass(frozen=True, slots=True)
class Stages:
    """When a job's request was stored, what follows from it was, and its grant: the broker's clock, us."""

    team: str
    stored_us: int
    admitted_us: int
    granted_us: int


async def stages(operator: Baton, after: int, inbox_after: int) -> dict[str, Stages]:
    """Of the jobs that were first granted in the records after sequence `after`, by id; `inbox_after`: the inbox's last message
    then."""
    js, pool = operator.nats.jetstream(), operator.place.pool
    admitted: dict[str, int] = {}
    tail = Tail(js, subjects.inbox_stream(pool), inbox_after, may_expire=True)
    last = (await js.stream_info(subjects.inbox_stream(pool))).state.last_seq
    while tail.position < last and (batch := await tail.messages(1000, 2.0)):
        for message in batch:
            if message.subject == subjects.inbox("job", "admitted", pool):
                start = message.payload.find(b'"job-') + 1
                admitted[message.payload[start : start + 36].decode()] = message.time_us
    await tail.close(tail.position)
    found = await granted(operator, after)
    return {
        job.job_id: Stages(
            job.team, job.submitted_us, admitted.get(job.job_id, 0), int(job.submitted_us + job.wait_ms * 1000)
        )
        for job in found
    }


async def lives(operator: Baton, after: int) -> tuple[set[tuple[str, str]], set[str]]:
    """Of the records after sequence `after`: team and id of the jobs that were queued, and ids of those that ended."""
    reader = LedgerReader(operator.nats.jetstream(), operator.place.pool)
    queued, finished = set[tuple[str, str]](), set[str]()
    async for entries in reader.read_to(await reader.last_seq()):
        for event in (event for e in entries if e.valid and e.seq > after for event in e.record.events):
            if isinstance(event, JobQueued):
                queued.add((event.team, event.job_id))
            elif isinstance(event, JobFinished):
                finished.add(event.job_id)
    await reader.close()
    return queued, finished


async def ended(operator: Baton) -> int:
    jobs = (await operator.status()).jobs
    return sum(jobs.get(state, 0) for state in ENDED)


async def rest(operator: Baton, count: int, limit_s: float = _QUIET_S) -> int:
    """Waits until `count` jobs have ended, or nothing has for `limit_s`; how many have."""
    seen, moved = await ended(operator), time.monotonic()
    while seen < count and time.monotonic() - moved < limit_s:
        await asyncio.sleep(0.1)
        if (now := await ended(operator)) != seen:
            seen, moved = now, time.monotonic()
    return seen


async def granted(operator: Baton, after: int) -> list[Granted]:
    """First grants in the records after sequence `after`."""
    reader = LedgerReader(operator.nats.jetstream(), operator.place.pool)
    asked: dict[str, tuple[str, int]] = {}
    found: list[Granted] = []
    async for entries in reader.read_to(await reader.last_seq()):
        for entry in entries:
            if not entry.valid or entry.seq <= after:
                continue
            for event in entry.record.events:
                if isinstance(event, JobQueued):
                    asked[event.job_id] = (event.team, event.submitted_us)
                elif isinstance(event, JobGranted) and event.job_id in asked:
                    team, at_us = asked.pop(event.job_id)
                    found.append(Granted(team, event.job_id, at_us, (entry.time_us - at_us) / 1000))
    await reader.close()
    return found


async def sustainable(clients: Mapping[str, Baton], operator: Baton, jobs: int) -> float:
    """Half of the rate at which a burst of `jobs` of one team comes to its end, jobs/s."""
    before, began = await ended(operator), time.monotonic()
    await next(iter(clients.values())).submit_many([noop()] * jobs, give_up_s=600)
    await rest(operator, before + jobs)
    return jobs / (time.monotonic() - began) / 2


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(values),
        "p50_ms": round(machine.quantile(values, 0.5), 2),
        "p99_ms": round(machine.quantile(values, 0.99), 2),
        "max_ms": round(max(values, default=0.0), 2),
    }
