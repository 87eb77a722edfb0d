"""A NATS server with the users that `baton up` makes, streams provisioned, and small fakes of the services."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.bus.connect import Address, BusConnection, connect
from libs.bus.streams import provision
from libs.client import Baton
from libs.client import connect as connect_client
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.walls import broker_claims
from libs.walls.keyring import Keyring
from schemas.subjects import OPERATOR
from tests.client.fakes import Fakes
from tests.client.loop import LoopInBackground

TEAMS = ("blue", "green")
USERS = ("blue.ana", "blue.ben")


@pytest.fixture(scope="session")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Address]]:
    """Where each user of one server connects: services, operator, teams blue and green, users ana and ben of blue, a node
    main.n1."""
    folder = tmp_path_factory.mktemp("teams")
    ring = Keyring(folder)
    paths = {name: ring.team(name) for name in (*TEAMS, *USERS)}
    paths |= {"services": ring.service(), OPERATOR: ring.operator(), "main.n1": ring.node("main", "n1")}
    with LoopInBackground() as loop:
        servers = loop.run(_start(folder, ring))
        try:
            yield {name: Address(servers.nats_url, path) for name, path in paths.items()}
        finally:
            loop.run(servers.stop())


async def _start(folder: Path, ring: Keyring) -> Servers:
    servers = Servers(
        folder, ServerOptions(run=("nats",), nats=NatsOptions(trust=broker_claims.trust(ring), sync_always=False))
    )
    await servers.start()
    client = await connect(Address(servers.nats_url, ring.service()), name="provision")
    await provision(client.jetstream(), ["main"], scale=0.01)
    await client.close()
    return servers


@pytest.fixture
async def services(urls: dict[str, Address]) -> AsyncIterator[BusConnection]:
    connection = await connect(urls["services"], name="services")
    yield connection
    await connection.close()


@pytest.fixture
async def fakes(urls: dict[str, Address]) -> AsyncIterator[Fakes]:
    """Admission, history and an agent, as far as a client can see them."""
    async with Fakes(urls["services"]) as running:
        yield running


@pytest.fixture
async def blue(urls: dict[str, Address]) -> AsyncIterator[Baton]:
    async with await connect_client(urls["blue"]) as baton:
        yield baton


@pytest.fixture
async def green(urls: dict[str, Address]) -> AsyncIterator[Baton]:
    async with await connect_client(urls["green"]) as baton:
        yield baton


@pytest.fixture
async def operator(urls: dict[str, Address]) -> AsyncIterator[Baton]:
    async with await connect_client(urls["operator"], operator=True) as baton:
        yield baton


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex
