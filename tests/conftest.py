"""Real servers for tests: one set per session (and xdist worker), one pool and fresh team names per test."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from libs.bus.connect import close, connect
from libs.bus.streams import provision
from libs.embedded import Servers


class _Loop:
    """An event loop in a thread of its own: the servers outlive the loops of single tests."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine, timeout_s=60):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture(scope="session")
def servers(tmp_path_factory) -> Iterator[Servers]:
    """nats, valkey and the MongoDB-wire server, as processes."""
    runner = _Loop()
    stack = Servers(tmp_path_factory.mktemp("servers"))
    runner.run(stack.start())
    try:
        yield stack
    finally:
        runner.run(stack.stop())
        runner.stop()


@pytest.fixture(scope="session")
def nats_url(servers: Servers) -> str:
    return servers.nats_url


@pytest.fixture(scope="session")
def redis_url(servers: Servers) -> str:
    return servers.redis_url


@pytest.fixture(scope="session")
def mongo_url(servers: Servers) -> str:
    return servers.mongo_url


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[Client]:
    client = await connect(nats_url, name="test")
    yield client
    await close(client)


@pytest.fixture
async def pool(nats: Client) -> str:
    """A pool of its own, its streams provisioned."""
    name = f"t{uuid.uuid4().hex[:8]}"
    await provision(nats.jetstream(), [name], scale=0.01)
    return name


@pytest.fixture
def team() -> str:
    return f"team-{uuid.uuid4().hex[:8]}"
