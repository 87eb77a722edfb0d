"""Real and simulated ports behave alike: the same behaviours, against nats-server and against the simulated broker; the
projection's functions against Valkey and against their Python."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from libs.adapters.redis.projection import NeedRebuild, Projection
from libs.bus.connect import BusConnection, connect
from libs.core.projections.hot_state import Delta
from libs.simulation.dst.process import Process
from libs.simulation.dst.world import World
from tests.simulation.behaviours import BEHAVIOURS, Behaviour

_named = pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda b: b.__name__)


@_named
async def test_nats_server(behaviour: Behaviour, nats: BusConnection, pool: str) -> None:
    await behaviour(nats, pool)


@_named
def test_the_simulated_broker(behaviour: Behaviour) -> None:
    async def run() -> None:
        await behaviour(await connect("sim://", name="test"), "main")

    _simulated(run)


async def test_valkey(redis_url: str, pool: str) -> None:
    projection = Projection(redis_url, pool)
    assert await _projected(projection, random.Random(5)) == _expected
    await projection.close()


def test_the_simulated_redis() -> None:
    async def run() -> None:
        assert await _projected(Projection("sim://", "main"), random.Random(5)) == _expected

    _simulated(run)


def _simulated(run: Callable[[], Awaitable[None]]) -> None:
    world = World(1)
    world.provision(["main"])
    process = Process(world, "test", "test")

    async def main() -> None:
        await process.start(run())

    try:
        world.loop.run(main())
    finally:
        world.close()


_expected: list[Any] = []
"""What a random walk over the projection's calls answers; the first run writes it, the other must say the same."""


async def _projected(projection: Projection, chance: random.Random) -> list[Any]:
    said: list[Any] = []
    seq, hash_ = 0, ""
    for step in range(60):
        draw = chance.random()
        rows = [Delta("jobs", f"j{chance.randrange(4)}", {"n": step} if chance.random() < 0.7 else None)]
        try:
            if draw < 0.1:
                await projection.rebuild(seq, hash_, rows)
                said.append("rebuilt")
                continue
            first = seq + 1 if draw < 0.8 else max(1, seq + chance.randint(-2, 3))
            before = hash_ if draw < 0.9 else "other"
            at = await projection.apply([(first, f"h{step}", rows)], before)
            said.append(at)
            if at == first:
                seq, hash_ = first, f"h{step}"
        except NeedRebuild as error:
            said.append(str(error))
            await projection.rebuild(seq, hash_, rows)
    said += [await projection.head(), sorted((await projection.jobs()).items())]
    if not _expected:
        _expected.extend(said)
    await asyncio.sleep(0)
    return said
