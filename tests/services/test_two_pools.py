"""Two pools on one broker, each with its own placement, leases and agents, and one admission for both.

Jobs that name a pool run there, the others where they fit; neither pool sees the other's requests.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext

from libs.bus.connect import BusConnection
from libs.core.projections.verify import Checker
from libs.ledger.reader import LedgerReader
from schemas import subjects
from schemas.ids import job_id
from schemas.inbox import JobAdmitted
from schemas.jobs import JobRejected, JobSpec, JobState, Simulation
from schemas.ledger import InputRejected, JobFinished, JobGranted, JobQueued, LedgerEvent
from schemas.requests import CancelJob, SubmitJob
from schemas.resources import Resources
from services.admission.app import make_app as admission
from services.admission.settings import AdmissionSettings
from services.agent.app import make_app as agent
from services.agent.settings import AgentSettings, DeviceSource
from services.leases.app import make_app as leases
from services.leases.settings import LeaseSettings
from services.placement.app import make_app as placement
from services.placement.settings import PlacementSettings
from tests.admission.running import running
from tests.kit.waiting import stored, until

FLEET = """
groups:
  - name: "{pool}-{{i}}"
    count: {nodes}
    devices: {{model: {model}, count: 4, memory_gib: 80}}
    cpus: 32
    memory_gib: 256
"""


class Pools:
    """East has 8 H100, west 4 H100 and 4 L4."""

    def __init__(self, nats: BusConnection, east: str, west: str, team: str) -> None:
        self.js: JetStreamContext = nats.jetstream()
        self.east, self.west, self.team = east, west, team

    async def submit(self, key: str, pool: str | None = None, seconds: float = 0.2, **resources: Any) -> str:
        """The job's id."""
        spec = JobSpec(pool=pool, resources=Resources(**resources), simulation=Simulation(duration_s=seconds))
        body = SubmitJob(client_key=key, job=spec).model_dump_json().encode()
        await self.js.publish(subjects.submit(self.team, "ana"), body)
        return job_id(self.team, key)

    async def cancel(self, job: str) -> None:
        body = CancelJob(job_id=job, reason="no longer wanted").model_dump_json().encode()
        await self.js.publish(subjects.cancel(self.team, "ben"), body)

    async def events(self, pool: str) -> list[LedgerEvent]:
        """All of a pool's ledger, verified."""
        reader, checker = LedgerReader(self.js, pool), Checker()
        found: list[LedgerEvent] = []
        async for entries in reader.read_to(await reader.last_seq()):
            for entry in entries:
                checker.step(entry.seq, entry.record, entry.valid)
                found += entry.record.events if entry.valid else ()
        await reader.close()
        report = checker.finish()
        assert report.ok, report.violations
        return found

    async def of(self, pool: str, kind: type) -> list[Any]:
        return [event for event in await self.events(pool) if isinstance(event, kind)]

    async def jobs(self, pool: str) -> set[str]:
        """What the pool was ever told of, by its inbox and by its ledger: the same."""
        sent = await stored(self.js, subjects.inbox_stream(pool), subjects.inbox("job", "admitted", pool))
        admitted = {JobAdmitted.model_validate_json(message.data).job_id for message in sent}
        assert {event.job_id for event in await self.of(pool, JobQueued)} <= admitted
        return admitted

    async def end(self, pool: str, job: str) -> JobFinished:
        """The job's end in the pool's ledger, waited for."""

        async def ended() -> JobFinished | None:
            return next((e for e in await self.of(pool, JobFinished) if e.job_id == job), None)

        found: JobFinished = await until(ended)
        return found

    async def rejected(self, key: str) -> JobRejected:
        async def told() -> JobRejected | None:
            sent = await stored(self.js, subjects.EVENTS, subjects.event("rejected", self.team))
            answers = [JobRejected.model_validate_json(message.data) for message in sent]
            return next((answer for answer in answers if answer.client_key == key), None)

        found: JobRejected = await until(told)
        return found


@pytest.fixture
def pools(nats: BusConnection, pool: str, other_pool: str, team: str) -> Pools:
    return Pools(nats, pool, other_pool, team)


@pytest.fixture
def both(pools: Pools, nats_url: str, redis_url: str, tmp_path: Path) -> Any:
    """Runs both pools, their nodes registered, and admission. Entered in the test: the services belong to its task."""
    urls = {"nats_url": nats_url, "redis_url": redis_url}
    fleets = {pools.east: FLEET.format(pool="east", nodes=2, model="H100"), pools.west: _west()}

    @asynccontextmanager
    async def run() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name, fleet in fleets.items():
                (tmp_path / f"{name}.yaml").write_text(fleet)
                here = PlacementSettings(**urls, pool=name)
                await stack.enter_async_context(running(placement(here, writer_id=f"placement-{name}")))
                await stack.enter_async_context(running(leases(LeaseSettings(**urls, pool=name))))
                agents = AgentSettings(
                    nats_url=nats_url, pool=name, fleet=tmp_path / f"{name}.yaml", devices=DeviceSource.NONE,
                    state_dir=tmp_path / name, lease_s=10,
                )  # fmt: skip
                await stack.enter_async_context(running(agent(agents)))
            for name in fleets:
                await until(partial(_joined, pools, name))
            known = AdmissionSettings(nats_url=nats_url, pools=(pools.east, pools.west))
            await stack.enter_async_context(running(admission(known)))
            yield

    return run


def _west() -> str:
    h100, l4 = (FLEET.format(pool=f"west-{m.lower()}", nodes=1, model=m) for m in ("H100", "L4"))
    return h100 + l4.replace("\ngroups:\n", "")


async def _joined(pools: Pools, name: str) -> bool:
    return len([e for e in await pools.events(name) if e.kind == "node.joined"]) == 2


async def test_jobs_named_and_routed_run_in_their_pools_and_neither_sees_the_others(pools: Pools, both: Any) -> None:
    async with both():
        named = {await pools.submit(f"named-{i}", pools.west, types=("H100",), devices=2): pools.west for i in range(4)}
        named |= {await pools.submit(f"named-east-{i}", pools.east, devices=4): pools.east for i in range(4)}
        routed = {await pools.submit(f"l4-{i}", types=("L4",), devices=1): pools.west for i in range(6)}
        routed |= {await pools.submit(f"gang-{i}", types=("H100",), devices=8): pools.east for i in range(2)}
        routed[await pools.submit("either", types=("H100",))] = pools.east  # the most H100 are there

        for job, where in (named | routed).items():
            assert (await pools.end(where, job)).state is JobState.SUCCEEDED
        for where in (pools.east, pools.west):
            mine = {job for job, its in (named | routed).items() if its == where}
            assert await pools.jobs(where) == mine
            granted = await pools.of(where, JobGranted)
            assert {event.job_id for event in granted} == mine
            prefix = "west" if where == pools.west else "east"
            assert all(claim.node.startswith(prefix) for event in granted for claim in event.claims)
            assert await pools.of(where, InputRejected) == []
            assert {event.user for event in await pools.of(where, JobQueued)} == {"ana"}


async def test_a_repeat_is_answered_by_the_pool_that_has_the_job(pools: Pools, both: Any) -> None:
    async with both():
        first = await pools.submit("twice", pools.west, types=("H100",))
        await pools.end(pools.west, first)
        assert await pools.submit("twice", pools.west, types=("H100",)) == first
        await pools.submit("twice", types=("H100",))  # another body: alone, it would be routed to east
        answer = await pools.rejected("twice")
        assert (answer.job_id, answer.reasons[0].field) == ("", "client_key")
        last = await pools.submit("after", pools.east)
        await pools.end(pools.east, last)
        assert (await pools.jobs(pools.west), await pools.jobs(pools.east)) == ({first}, {last})


async def test_a_cancel_reaches_the_pool_that_has_the_job_and_no_other(pools: Pools, both: Any) -> None:
    async with both():
        job = await pools.submit("long", seconds=600, types=("L4",))
        await until(lambda: pools.of(pools.west, JobGranted))
        await pools.cancel(job)
        ended = await pools.end(pools.west, job)
        assert (ended.state, ended.reason) == (JobState.CANCELLED, "no longer wanted")
        stopped = [e for e in await pools.events(pools.west) if e.kind == "attempt.stopping"]
        assert [e.user for e in stopped] == ["ben"]
        for where in (pools.east, pools.west):
            assert await pools.of(where, InputRejected) == []


async def test_what_cannot_be_is_told_with_the_pools_that_there_are(pools: Pools, both: Any) -> None:
    async with both():
        await pools.submit("nowhere", "north")
        (reason,) = (await pools.rejected("nowhere")).reasons
        assert (reason.field, reason.problem) == ("job.pool", "no such pool")
        assert pools.east in reason.fix
        assert pools.west in reason.fix
        await pools.submit("too-many", types=("H100",), devices=12)
        assert f"pool {pools.east}, the nearest of 2" in (await pools.rejected("too-many")).reasons[0].problem
        await asyncio.sleep(0)
        assert (await pools.jobs(pools.east), await pools.jobs(pools.west)) == (set(), set())


async def test_an_admission_that_starts_anew_knows_where_undecided_jobs_are(pools: Pools, nats_url: str) -> None:
    """Placement is away: the ledgers show nothing, the inboxes do."""
    async with running(admission(AdmissionSettings(nats_url=nats_url, pools=(pools.east, pools.west)))):
        job = await pools.submit("early")
        await until(lambda: pools.jobs(pools.east))
    # In the other order a new job would go to the other pool; this one stays.
    async with running(admission(AdmissionSettings(nats_url=nats_url, pools=(pools.west, pools.east)))):
        await pools.submit("early")
        marker = await pools.submit("late")
        await until(lambda: pools.jobs(pools.west))
    assert (await pools.jobs(pools.east), await pools.jobs(pools.west)) == ({job}, {marker})
