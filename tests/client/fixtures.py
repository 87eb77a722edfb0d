"""A NATS server with the users that `baton up` makes, streams provisioned, and small fakes of the services."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.bus.connect import BusConnection, connect
from libs.bus.streams import provision
from libs.cli.users import nats_users
from libs.client import Baton
from libs.client import connect as connect_client
from libs.embedded import NatsOptions, ServerOptions, Servers
from tests.client.fakes import Fakes
from tests.client.loop import LoopInBackground

TEAMS = ("blue", "green")
USERS = ("blue.ana", "blue.ben")


@pytest.fixture(scope="session")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A URL for each user of one server: services, operator, teams blue and green, users ana and ben of blue, a node n1."""
    folder = tmp_path_factory.mktemp("teams")
    with LoopInBackground() as loop:
        servers = loop.run(_start(folder))
        try:
            yield {user.name: servers.nats_url_of(user.name) for user in servers.options.nats.users}
        finally:
            loop.run(servers.stop())


async def _start(folder: Path) -> Servers:
    options = NatsOptions(
        users=nats_users(folder, TEAMS, users=USERS, pools=["main"], nodes=[("main", "n1")]), sync_always=False
    )
    servers = Servers(folder, ServerOptions(run=("nats",), nats=options))
    await servers.start()
    client = await connect(servers.nats_url_of("services"), name="provision")
    await provision(client.jetstream(), ["main"], scale=0.01)
    await client.close()
    return servers


@pytest.fixture
async def services(urls: dict[str, str]) -> AsyncIterator[BusConnection]:
    connection = await connect(urls["services"], name="services")
    yield connection
    await connection.close()


@pytest.fixture
async def fakes(urls: dict[str, str]) -> AsyncIterator[Fakes]:
    """Admission, history and an agent, as far as a client can see them."""
    async with Fakes(urls["services"]) as running:
        yield running


@pytest.fixture
async def blue(urls: dict[str, str]) -> AsyncIterator[Baton]:
    async with await connect_client(urls["blue"]) as baton:
        yield baton


@pytest.fixture
async def green(urls: dict[str, str]) -> AsyncIterator[Baton]:
    async with await connect_client(urls["green"]) as baton:
        yield baton


@pytest.fixture
async def operator(urls: dict[str, str]) -> AsyncIterator[Baton]:
    async with await connect_client(urls["operator"], operator=True) as baton:
        yield baton


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex
