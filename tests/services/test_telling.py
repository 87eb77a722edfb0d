"""Placement and a real agent over a broker with small messages: nothing that a team submits keeps nodes from hearing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.adapters.devices.simulated import SimulatedLayer
from libs.bus.cancel import cancel
from libs.bus.connect import BusConnection, close, connect
from libs.bus.outbox import Outbox
from libs.bus.queries import QueryError, ask
from libs.bus.streams import provision
from schemas.catalog import BY_TYPE
from schemas.inbox import CheckpointTaken, JobAdmitted, NodeLost, NodeRegistered, Started
from schemas.jobs import Checkpoint, Simulation
from schemas.ledger import AttemptRunning, InputRejected, JobGranted, NodeJoined
from schemas.nodes import DesiredQuery
from services.agent.agent import Agent
from services.agent.app import build, prepare
from services.agent.node import NodeCounts
from services.agent.nodes import Hosted
from services.agent.reports import Reports
from services.agent.settings import AgentSettings
from services.placement.app import make_app
from services.placement.settings import PlacementSettings
from tests.admission.running import running
from tests.core.builders import job, node
from tests.kit.tasks import beside
from tests.kit.waiting import until
from tests.ledger.broker import Broker
from tests.services.pool import Pool

MAX_PAYLOAD = 128 * 1024


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Pool]:
    """A pool on a broker of its own, which takes messages of 128 KiB."""
    broker = Broker(tmp_path, max_payload=MAX_PAYLOAD)
    await broker.start()
    nats: BusConnection = await connect(broker.url, name="test")
    await provision(nats.jetstream(), ["main"], scale=0.01)
    yield Pool(nats, "main")
    await close(nats)
    await broker.kill()


def placing(world: Pool, redis_url: str, writer_id: str = "w1") -> AbstractAsyncContextManager[Any]:
    settings = PlacementSettings(
        nats_url=world.nats.connected_url.geturl(), redis_url=redis_url, pool=world.name, insecure=True
    )
    return running(make_app(settings, writer_id=writer_id))


@asynccontextmanager
async def agent(world: Pool, folder: Path, devices: int = 8) -> AsyncIterator[Agent]:
    """An agent of one simulated node n1; nobody grants leases, so the lease is renewed by hand."""
    inventory = node("n1", devices)
    url = world.nats.connected_url.geturl()
    settings = AgentSettings(nats_url=url, pool=world.name, state_dir=folder, ask_s=0.3, repeat_s=0.3, lease_s=300)
    nats = await connect(url, name="agent")
    one = await build(
        settings, nats, prepare(settings, [Hosted(inventory, SimulatedLayer(inventory.devices))]), NodeCounts()
    )
    await one.subscribe()

    async def renew() -> None:
        while True:
            for each in one.nodes.values():
                each.renewed(each.now())
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(what) for what in (one.run_ask(), one.reports.run(), renew())]
    try:
        yield one
        assert not [task for task in tasks if task.done()], "it has ended"
    finally:
        await cancel(*tasks)
        await one.close()
        await close(nats)


def timer(name: str, kib: int = 0, share_milli: int = 1000) -> JobAdmitted:
    """A job that runs for ever as a timer, with so much environment."""
    admitted = job(name, share_milli=share_milli)
    env = {f"PART_{n}": "x" * 1024 for n in range(kib)}
    spec = admitted.spec.model_copy(update={"env": env, "simulation": Simulation(duration_s=10_000)})
    return admitted.model_copy(update={"spec": spec})


@pytest.mark.parametrize(("jobs", "kib", "share_milli"), [(8, 40, 1000), (160, 0, 50)], ids=["large", "many"])
async def test_jobs_that_are_more_than_a_message_run(
    world: Pool, tmp_path: Path, redis_url: str, jobs: int, kib: int, share_milli: int
) -> None:
    """Both put placement into a loop: what should run on n1 is larger than the broker's messages."""
    async with placing(world, redis_url), agent(world, tmp_path / "a") as one:
        await until(lambda: one.nodes["n1"].known)
        for n in range(jobs):
            await world.put(timer(str(n), kib, share_milli))
        await until(lambda: len(one.nodes["n1"].parts) == jobs)
        async with asyncio.timeout(60):
            await world.event(AttemptRunning, jobs)
        whole = BY_TYPE["io.baton.node.desired.query.v1"]
        with pytest.raises(QueryError, match="start an agent of the present version"):
            await ask(world.nats, whole, DesiredQuery(nodes=("n1",)), pool=world.name, node="n1")
        writers = {record.writer for record in await world.records()}
        assert writers == {"w1"}
    async with placing(world, redis_url, "w2"), agent(world, tmp_path / "a") as one:
        await until(lambda: len(one.nodes["n1"].parts) == jobs)
        assert one.nodes["n1"].incarnation > 1


async def test_shares_of_a_device_whose_specs_come_late_are_not_taken_for_old_grants(
    world: Pool, tmp_path: Path, redis_url: str
) -> None:
    """Specs that are told with a change are there at once, others are asked for: of one device both are started in the order of
    their grants. Of 10,000 small jobs on one node 1,980 were refused as stale, some of them twice."""
    async with placing(world, redis_url), agent(world, tmp_path / "a", devices=1) as one:
        await until(lambda: one.nodes["n1"].known)
        for n in range(40):
            await world.put(timer(str(n), kib=45 * (n % 8 < 4), share_milli=25))
        await until(lambda: len(one.nodes["n1"].parts) == 40)
        async with asyncio.timeout(60):
            await world.event(AttemptRunning, 40)
        kinds = {event.kind for record in await world.records() for event in record.events}
        assert {"devices.freed", "job.requeued"} & kinds == set(), "some were refused"


async def test_a_start_behind_hostile_acknowledgements_reaches_the_ledger(world: Pool, redis_url: str) -> None:
    """They are larger together than placement reads, and larger than the broker takes."""
    async with placing(world, redis_url):
        await world.put(NodeRegistered(incarnation=1, inventory=node("n1", 1), lease_s=10))
        await world.put(timer("j"))
        granted = await world.event(JobGranted)
        publish = Outbox(world.js).publish_many
        reports = Reports(publish, pool=world.name, source="/test", max_payload=MAX_PAYLOAD)
        for step in range(40):
            saved = Checkpoint(step=step, reference="\x01" * 4096)
            reports.add("n1", 1, CheckpointTaken(job_id=granted.job_id, attempt=1, checkpoint=saved))
        reports.add("n1", 1, Started(job_id=granted.job_id, attempt=1))
        async with beside(reports.run()):
            await world.event(AttemptRunning)


async def test_a_node_whose_life_was_over_before_its_agent_heard_of_it_begins_another(
    world: Pool, tmp_path: Path, redis_url: str
) -> None:
    """It repeated its registration for ever, and placement refused it for ever."""
    async with agent(world, tmp_path / "a") as one:
        first = one.nodes["n1"].incarnation
        await until(lambda: one.reports.published and not one.reports.backlog())
        await world.put(NodeLost(node="n1", incarnation=first, silent_s=99))
        async with placing(world, redis_url):
            await until(lambda: one.nodes["n1"].known)
            assert one.nodes["n1"].incarnation == first + 1
            joined = await world.event(NodeJoined, 2)
            assert joined.incarnation == first + 1


async def test_an_agent_with_a_restored_state_folder_goes_above_what_placement_knows(
    world: Pool, tmp_path: Path, redis_url: str
) -> None:
    known = 6_000_000_000
    await world.put(NodeRegistered(incarnation=known, inventory=node("n1", 8), lease_s=10))
    async with placing(world, redis_url), agent(world, tmp_path / "a") as one:
        await world.event(NodeJoined)
        assert one.nodes["n1"].incarnation < known
        await world.event(InputRejected)
        assert not one.nodes["n1"].known, "another agent may have the name: its life must end first"
        await world.put(NodeLost(node="n1", incarnation=known, silent_s=99))
        await until(lambda: one.nodes["n1"].known)
        assert one.nodes["n1"].incarnation == known + 1
