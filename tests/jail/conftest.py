"""A whole agent with walls around its jobs, against a real NATS server, as the root or the plain user that runs the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from libs.adapters.devices.layer import DeviceLayer
from libs.adapters.devices.simulated import SimulatedLayer
from libs.bus.cancel import cancel
from libs.bus.connect import close, connect
from schemas.inbox import Released
from schemas.nodes import DesiredPart
from schemas.queries import LogQuery
from services.agent.agent import Agent
from services.agent.app import build, prepare
from services.agent.node import NodeCounts
from services.agent.nodes import Hosted
from services.agent.settings import AgentSettings
from tests.agent.build import inventory
from tests.agent.conftest import until
from tests.agent.world import World


class Walled:
    """An agent of one node, and what its jobs say."""

    def __init__(self, agent: Agent, world: World) -> None:
        self.agent, self.world = agent, world

    def says(self, part: DesiredPart) -> str:
        piece = self.agent.read_log(LogQuery(job_id=part.job_id), part.team)
        return "" if piece is None else piece.text

    async def up(self, *parts: DesiredPart, word: str = "up") -> None:
        await self.world.want("n0", *parts)
        await until(lambda: all(word in self.says(part) for part in parts))

    async def ends(self, *parts: DesiredPart) -> list[Released]:
        await self.world.want("n0", *parts)
        return [await self.world.sees(part, Released) for part in parts]


@pytest.fixture
async def world(nats, pool):
    return await World(nats, pool).open()


@pytest.fixture
def start(world, nats_url, tmp_path):
    """Runs an agent of node n0. `layer`: with these devices in place of simulated ones."""

    @asynccontextmanager
    async def running(layer: DeviceLayer | None = None, **fields) -> AsyncIterator[Walled]:
        quick = {"lease_s": 30.0, "ask_s": 0.2, "repeat_s": 0.3} | fields
        settings = AgentSettings(nats_url=nats_url, pool=world.pool, state_dir=tmp_path, **quick)
        one = inventory("n0", simulated=False)
        if layer is not None:
            one = one.model_copy(update={"devices": layer.discover()})
        hosted = Hosted(one, layer or SimulatedLayer(one.devices))
        own = await connect(nats_url, name="agent")
        agent = await build(settings, own, prepare(settings, [hosted]), NodeCounts())
        await agent.subscribe()
        tasks = [
            asyncio.create_task(getattr(agent, f"run_{loop}")())
            for loop in ("heartbeats", "watch_leases", "ask", "limits", "shared", "quarantine")
        ]
        tasks.append(asyncio.create_task(agent.reports.run()))
        try:
            await world.joined("n0")
            await until(lambda: all(n.known and n.lease.valid(n.now()) for n in agent.nodes.values()))
            yield Walled(agent, world)
        finally:
            await cancel(*tasks)
            await agent.close()
            await close(own)

    return running
