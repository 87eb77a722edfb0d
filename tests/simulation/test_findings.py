"""What the simulation has found, each alone: the shortest story that shows it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.kv import KeyValue
from prometheus_client import CollectorRegistry

from libs.bus.connect import connect
from libs.bus.cursors import Cursors
from libs.bus.outbox import Outbox
from libs.core.billing.metering import Meter
from libs.core.state.limits import Limits
from libs.ledger.readers import KNOWN, Declared, Readers
from libs.ledger.tail import Tail
from libs.simulation.dst.populating import populate
from libs.simulation.dst.process import Process
from libs.simulation.dst.run import alone
from libs.simulation.dst.scenario import Asked, Scenario
from libs.simulation.dst.teams import teams
from libs.simulation.dst.world import World
from schemas.ids import job_id
from schemas.inbox import PreemptionPlanned, Started
from schemas.jobs import JobSpec, RetryPolicy, Simulation
from schemas.resources import Resources
from services.agent.reports import Reports
from services.preemption.app import Preemption
from services.preemption.settings import PreemptionSettings
from services.quota_billing.quotas import apply_file


def simulated(story: Callable[[World], Awaitable[None]], seed: int = 1) -> World:
    """Runs `story` in a process of a world with a provisioned pool "main"."""
    world = World(seed, keep_notes=True)
    world.provision(["main"])
    process = Process(world, "test", "test")

    async def main() -> None:
        await process.start(story(world))

    try:
        world.loop.run(main())
    finally:
        world.close()
    return world


def test_a_tail_notices_that_the_last_delivery_was_lost() -> None:
    """Nothing comes after it, so that no gap shows: the feed stood still until the next record (seed 45)."""

    async def story(world: World) -> None:
        nats = await connect("sim://", name="test")
        writer = await connect("sim://", name="writer")
        tail = Tail(nats.jetstream(), "INBOX-main", 0, may_expire=True)
        await writer.jetstream().publish("baton.in.clock.v1.tick.main", b"1")
        assert [s.seq for s in await tail.messages(9, 5)] == [1]
        await writer.publish("baton.in.clock.v1.tick.main", b"2")
        await asyncio.sleep(0.0001)
        world.net.lose = 1.0
        await asyncio.sleep(0.1)
        world.net.lose = 0.0
        assert world.disk.streams["INBOX-main"].last_seq == 2
        assert [s.seq for s in await tail.messages(9, 20)] == [2]

    simulated(story)


def test_an_agent_that_goes_on_with_a_life_is_not_taken_for_a_repeat() -> None:
    """Its messages had the ids of the agent before it, and the broker dropped them: a start was never heard, and no time
    limit held (seed 15)."""

    async def story(world: World) -> None:
        nats = await connect("sim://", name="test")
        for number in range(2):
            await asyncio.sleep(0.1)
            reports = Reports(Outbox(nats.jetstream()).publish_many, pool="main", source="/test")
            running = asyncio.create_task(reports.run())
            reports.add("n0", 1, Started(job_id=job_id("blue", f"job {number}"), attempt=1))
            while not reports.published:
                await asyncio.sleep(0.01)
            running.cancel()
        assert world.disk.streams["INBOX-main"].last_seq == 2

    simulated(story)


def test_quotas_of_a_file_wait_for_a_broker_that_is_away() -> None:
    """It ended quota_billing, with its bills (seed 220)."""

    async def story(world: World) -> None:
        nats = await connect("sim://broker", name="test")
        js = nats.jetstream()
        follower: Any = SimpleNamespace(caught_up=asyncio.Event(), projection=Meter())
        follower.caught_up.set()
        world.kill_broker()
        applying = asyncio.create_task(
            apply_file({"blue": Limits.of(1000, {})}, follower, Cursors(js), Outbox(js, give_up_s=3), "main")
        )
        await asyncio.sleep(20)
        assert not applying.done()
        world.start_broker()
        assert await applying == ["blue"]
        assert world.disk.streams["INBOX-main"].last_seq == 1

    simulated(story)


def test_an_inbox_without_room_does_not_end_preemption() -> None:
    """It ended with each plan while the broker's disk was full, or away for a minute (seed 2411)."""

    async def story(world: World) -> None:
        nats = await connect("sim://broker", name="test")
        plan = PreemptionPlanned(
            plan_id="p", base_seq=1, beneficiary=job_id("blue", "b"), victims=(job_id("red", "v"),), devices=("d0",),
            cost_device_s=1,
        )  # fmt: skip
        done: list[int] = []
        planner: Any = SimpleNamespace(
            plans=lambda *_: [plan], unsent=lambda: done.append(0), sent=lambda _, s: done.append(s)
        )
        preemption = Preemption(PreemptionSettings(nats_url="sim://broker"), CollectorRegistry())
        outbox = Outbox(nats.jetstream(), give_up_s=2)
        world.disk.full = True
        await preemption._plan(planner, outbox, 1)
        world.disk.full = False
        world.kill_broker()
        await preemption._plan(planner, outbox, 1)
        world.start_broker()
        await asyncio.sleep(2)
        await preemption._plan(planner, outbox, 1)
        assert done == [0, 0, 1]

    simulated(story)


def test_a_machine_that_is_cut_off_twice_is_reached_again_both_ways() -> None:
    """The second cut had one direction, and the first one's end healed that alone: the node was away for good (seed 6684)."""
    world = World(1)
    world.provision(["main"])
    process = Process(world, "test", "there")

    async def main() -> None:
        await process.start(story())

    async def story() -> None:
        nats = await connect("sim://broker", name="test")
        world.net.partition("there", {"up", "down"})
        world.net.partition("there", {"up"})
        await asyncio.sleep(1)
        world.net.heal("there")
        await nats.jetstream().stream_info("DEAD")

    world.loop.run(main())
    world.close()


def test_a_nodes_next_life_waits_for_room_on_its_disk() -> None:
    """Its keeper died while the disk was full: the life was over and no other began, and as the agent renewed its lease all
    the same, what was granted there waited for ever (seed 7092)."""
    world = World(1)
    populate(world, Scenario(nodes=1, placements=1, admissions=1))
    machine = world.machines["n0"]

    async def main() -> None:
        await asyncio.sleep(8)
        first = machine.incarnation
        machine.disk_full = True
        machine.keeper_dies()
        await asyncio.sleep(12)
        states = world.redis.hashes["baton:{main}:nodes"]
        assert json.loads(states["n0"])["status"] != "up"
        machine.disk_full = False
        await asyncio.sleep(8)
        assert machine.incarnation > first
        assert json.loads(states["n0"])["incarnation"] == machine.incarnation

    with alone(world):
        world.loop.run(main())
    assert world.violations == []


def test_what_was_refused_is_not_admitted_when_the_request_comes_again() -> None:
    """Admission died between telling the refusal and acknowledging the request, and meanwhile a node had joined: the job ran
    of which its team was told that it never will (seed 12998)."""
    world = World(1)
    populate(world, Scenario(nodes=2, placements=1, admissions=2))
    world.stop("agent-n1")
    spec = JobSpec(name="five", resources=Resources(devices=5), simulation=Simulation(duration_s=1))
    asked = Asked("blue", "key", spec, at=3.0)

    async def main() -> None:
        await asyncio.sleep(2)
        world.faults_on, world.plan.at = True, {"settle.stored": world.failpoints["settle.stored"] + 1}
        Process(world, "teams", "teams").start(teams(world, Scenario(2, 1, 2, jobs=[asked])))
        await asyncio.sleep(2)
        assert world.crashes["settle.stored"] == 1
        slot = world.services["agent-n1"]
        slot.wanted = True
        world._start(slot)
        await asyncio.sleep(20)
        told = [kept.subject for kept in world.disk.streams["EVENTS"].messages.values()]
        assert told == ["baton.evt.job.v1.rejected.blue"]
        assert not world.disk.consumers["REQUESTS"]["admission"].unacked

    with alone(world):
        world.loop.run(main())
    assert world.violations == []


def test_what_is_told_to_a_dead_keeper_does_not_run() -> None:
    """The agent was frozen when its keeper died, and heard of a grant before it heard of that: the simulated machine ran the
    job without a keeper, and so without a lease (seeds 1942 and 2484). On a real one nobody takes the start."""
    world = World(1)
    populate(world, Scenario(nodes=1, placements=1, admissions=1, leases="long"))
    spec = JobSpec(name="one", resources=Resources(devices=1), simulation=Simulation(duration_s=1), retry=RetryPolicy())
    asked = Asked("blue", "key", spec, at=5.0)

    async def main() -> None:
        Process(world, "teams", "teams").start(teams(world, Scenario(1, 1, 1, jobs=[asked])))
        await asyncio.sleep(4)
        agent = world.services["agent-n0"].process
        assert agent is not None
        agent.freeze()
        world.machines["n0"].keeper_dies()
        await asyncio.sleep(2)
        assert asked.stored
        assert not world.truth.ran
        agent.thaw()
        await asyncio.sleep(20)
        assert set(world.truth.ended.values()) == {0}

    with alone(world):
        world.loop.run(main())
    assert world.violations == []


def test_a_simulated_keeper_ends_work_with_the_lease_of_its_class() -> None:
    """It knew of the node's lease alone, which is longer: work of a frozen agent ran on when its class's lease was over, and
    was started elsewhere (seed 5857). A real keeper has the deadline of each attempt."""
    world = World(1)
    populate(world, Scenario(nodes=1, placements=1, admissions=1, leases="long"))
    spec = JobSpec(
        name="serves", priority_class="serving", resources=Resources(devices=1), simulation=Simulation(duration_s=60)
    )
    asked = Asked("blue", "key", spec, at=1.0)

    async def main() -> None:
        Process(world, "teams", "teams").start(teams(world, Scenario(1, 1, 1, jobs=[asked])))
        await asyncio.sleep(4)
        machine, agent = world.machines["n0"], world.services["agent-n0"].process
        assert agent is not None
        assert len(machine.running) == 1
        agent.freeze()
        await asyncio.sleep(6)
        assert machine.running == {}
        assert machine.life is not None
        assert machine.kernel.boot_s() < machine.life.until

    with alone(world):
        world.loop.run(main())
    assert world.violations == []


def test_a_reader_whose_declaration_is_not_told_is_not_taken_for_none() -> None:
    """Its question timed out, and it was left out: a segment could be deleted that it needed, and a newer format be written."""

    async def story(world: World) -> None:
        nats = await connect("sim://broker", name="test")
        readers = Readers(nats.jetstream())
        one = Declared(pool="main", name="a", process="p", release="r", format=1, position=0, resume=0)
        await readers.declare(one)
        assert await readers.resumes("main", without=KNOWN) == {"a": 0}
        asked, lost, get = 0, 9, KeyValue.get

        async def unheard(*args: Any, **kwargs: Any) -> KeyValue.Entry:
            nonlocal asked
            asked += 1
            if asked <= lost:
                raise NatsTimeout
            return await get(*args, **kwargs)

        with patch.object(KeyValue, "get", unheard):
            with pytest.raises(NatsTimeout):
                await readers.resumes("main", without=KNOWN)
            assert asked < lost
            lost = asked + 1
            # Of many questions at once one may be lost: nothing was archived where one of ten was, again and again (seed 2388).
            assert await readers.resumes("main", without=KNOWN) == {"a": 0}

    simulated(story)
