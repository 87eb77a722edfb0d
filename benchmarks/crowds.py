"""What the benchmarks of load share: a stack, teams that submit at a fixed rate, and latencies from the broker's own times."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from libs.cli.launch import ROOT, LaunchOptions, LocalStack
from libs.client import Baton, connect
from libs.ledger.reader import LedgerReader
from schemas.jobs import JobSpec, Simulation
from schemas.ledger import JobGranted, JobQueued
from schemas.resources import Resources

FLEET = ROOT / "deploy" / "fleets" / "bench.yaml"
ENDED = ("succeeded", "failed", "cancelled")
_STEP_S = 0.02
_QUIET_S = 120.0


@dataclass(frozen=True, slots=True)
class Granted:
    """A job: its team, when its request was stored, and from then to its grant's record, by the broker's clock."""

    team: str
    submitted_us: int
    wait_ms: float


@asynccontextmanager
async def stack(state_dir: Path, teams: Sequence[str]) -> AsyncIterator[tuple[LocalStack, dict[str, Baton], Baton]]:
    """Everything on 64 simulated nodes of 8 devices; a client for each team, and the operator's."""
    shutil.rmtree(state_dir, ignore_errors=True)
    async with AsyncExitStack() as held:
        options = LaunchOptions(state_dir=state_dir, teams=teams, fleet=FLEET, real_node="none")
        cluster = await held.enter_async_context(LocalStack(options))
        clients = {team: await held.enter_async_context(await connect(cluster.team_url(team), team)) for team in teams}
        operator = await held.enter_async_context(await connect(cluster.operator_url, operator=True))
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
                    found.append(Granted(team, at_us, (entry.time_us - at_us) / 1000))
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
