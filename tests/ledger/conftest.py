"""One real nats-server per test, Baton's own streams, and a world of a few verbs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from tests.ledger.broker import Broker
from tests.ledger.world import World


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    server = Broker(tmp_path)
    await server.start()
    yield server
    await server.kill()


@pytest.fixture
async def world(broker: Broker) -> AsyncIterator[World]:
    clients: list[Client] = []
    world = World(broker, clients)
    await world.begin()
    yield world
    await world.end()
