"""Real servers for tests: one of each kind per session (and xdist worker), started when a test first asks for it.

Every test has its own `pool`, with streams of its own, and its own `team`; the streams REQUESTS, EVENTS, DEAD and
TELEMETRY are shared by the session.
"""

import gc
import logging
import os
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer

from libs.bus.connect import BusConnection, close, connect
from libs.bus.streams import provision
from libs.cli import forking
from libs.embedded.servers import MONGO, NATS, VALKEY
from schemas.subjects import REQUESTS
from tests.kit import stems
from tests.kit.background import ServerInBackground
from tests.kit.compiled import compile_for_workers
from tests.kit.files_to_workers import FilesToWorkers, long_first, tell_slowest

settings.register_profile("house", deadline=None)  # a busy machine is not a failure
settings.load_profile("house")

STREAM_SCALE = 0.01
"""Streams of a hundredth of their size: thousands of test pools fit into the server's reservation."""


def pytest_configure(config: pytest.Config) -> None:
    compile_for_workers(config, Path(__file__).parent)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports and collected tests leave next to nothing to free, and stay to the end: looking for garbage among them was a
    third of what collecting cost, and would cost each test that makes much the same again."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long_first(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tell_slowest(terminalreporter)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesToWorkers:
    return FilesToWorkers(config, log)


@pytest.fixture(autouse=True)
def _a_command_in_this_process_silences_its_test_alone() -> Iterator[None]:
    """A command turns the log of libraries off; this process goes on, and other tests read it."""
    yield
    logging.getLogger("baton").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _an_agent_in_this_process_hides_the_files_of_its_test_alone() -> Iterator[None]:
    """An agent sets its umask, and users of jobs could not read what later tests show them."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _a_service_in_this_process_ends_its_test_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A service whose task fails ends its process, which is the test's where it runs in it: then the test fails instead."""
    codes: list[int] = []
    pid, exit_ = os.getpid(), os._exit
    monkeypatch.setattr(os, "_exit", lambda code: codes.append(code) if os.getpid() == pid else exit_(code))
    yield
    assert not codes, "a service in this process ended it, see the log above"


@pytest.fixture(autouse=True, scope="session")
def _stacks_have_imported_once_what_they_share() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forking, "take", stems.take)
        yield


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInBackground]:
    with ServerInBackground(NATS, tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def nats_url(nats_server: ServerInBackground) -> str:
    return nats_server.url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerInBackground(VALKEY, tmp_path_factory.mktemp("valkey")) as server:
        yield server.url


@pytest.fixture(scope="session")
def mongo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerInBackground(MONGO, tmp_path_factory.mktemp("mongo")) as server:
        yield server.url


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[BusConnection]:
    connection = await connect(nats_url, name="test")
    yield connection
    await close(connection)


@pytest.fixture
async def pool(nats: BusConnection) -> str:
    """A pool of its own, its streams provisioned."""
    return await _new_pool(nats)


@pytest.fixture
async def other_pool(nats: BusConnection) -> str:
    """A second one beside it."""
    return await _new_pool(nats)


async def _new_pool(nats: BusConnection) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    js = nats.jetstream()
    await provision(js, [name], scale=STREAM_SCALE)
    await js.purge_stream(REQUESTS)  # the crowds of another test would go to this one's admission, and fill its inbox
    return name


@pytest.fixture
def team() -> str:
    return f"team-{uuid.uuid4().hex[:8]}"
