"""A file system without room under the broker, under Redis and under MongoDB: what is refused, what is kept, how it goes on."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from libs.adapters.mongo.store import JobStore
from libs.bus.connect import Address, close, connect
from libs.bus.retry import UNAVAILABLE
from libs.bus.streams import provision
from libs.embedded import EventKind, NatsOptions, ServerOptions, Servers, supervisor
from libs.embedded.servers import MONGO, NATS, VALKEY
from libs.walls import broker_claims
from libs.walls.keyring import Keyring
from schemas import subjects
from services.history.documents import Documents
from tests.faults.chaos import disks
from tests.history.written import Written, busy_world
from tests.kit.background import ServerInBackground
from tests.kit.tasks import beside
from tests.kit.waiting import until
from tests.redis.test_projector import Bench

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(bool(disks.why_not()), reason=f"no file system can be made: {disks.why_not()}"),
]
POOL = "main"


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    """A broker and a Redis, each with little room of its own."""
    with disks.small(tmp_path / NATS, 48), disks.small(tmp_path / VALKEY, 16):
        async with Servers(tmp_path, ServerOptions(run=(NATS, VALKEY))) as running:
            yield running


@pytest_asyncio.fixture(params=["a page", "a request"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Servers, Path | None]]:
    """One with little room, without accounts and with them, and a credential: by what its health is asked differs."""
    ring = Keyring(tmp_path) if request.param == "a request" else None
    creds = None if ring is None else ring.service()
    nats = NatsOptions() if ring is None else NatsOptions(trust=broker_claims.trust(ring))
    with disks.small(tmp_path / NATS, 48):
        async with Servers(tmp_path, ServerOptions(run=(NATS,), nats=nats)) as running:
            yield running, creds


async def test_what_was_acknowledged_outlives_a_full_disk_under_the_broker(
    broker: tuple[Servers, Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-server 2.15 then answers no publish any more, also when there is room again: it is ill, and is started anew."""
    monkeypatch.setattr(supervisor, "_ILL_S", 0.5)
    (servers, creds), subject, stored = broker, subjects.ledger(POOL), 0
    async with AsyncExitStack() as stack:
        nats = await connect(Address(servers.nats_url, creds), name="test")
        stack.push_async_callback(close, nats)
        js = nats.jetstream()
        await provision(js, [POOL], scale=0.01)
        for _ in range(20):
            stored = (await js.publish(subject, b"x" * 1000)).seq
        with disks.full(servers.state_dir / NATS):
            for _ in range(100):
                try:
                    stored = (await js.publish(subject, b"x" * 100_000, timeout=1)).seq
                except UNAVAILABLE:
                    break
            else:
                pytest.fail("the disk was never full")
            replies: list[bytes] = []

            async def answer(message: object) -> None:
                replies.append(b"granted")

            # What needs no disk goes on: leases are renewed by plain requests.
            await nats.subscribe("baton.tel.node.v1.lease.main.n", cb=answer)
            await nats.publish("baton.tel.node.v1.lease.main.n", b"")
            await until(lambda: replies)
            if servers.options.nats.has_monitor:
                assert await asyncio.to_thread(_status, servers.nats_monitor_url + _compose_asks()) == 503
            pid = servers.supervisor.pid(NATS)
            (ill,) = await until(lambda: [e for e in servers.supervisor.events if e.kind is EventKind.ILL])
            assert "0 MiB are free" in ill.detail
            assert servers.supervisor.pid(NATS) == pid, "it goes on with what needs no disk"
        await servers.supervisor.wait_ready(NATS, replaced_pid=pid)
        await until(lambda: nats.is_connected)
        assert (await js.stream_info(subjects.ledger_stream(POOL))).state.last_seq >= stored
        assert (await js.publish(subject, b"x")).seq > stored


def _compose_asks() -> str:
    """The page by which compose tells whether its broker is healthy."""
    (*_, url) = yaml.safe_load(Path("compose.yaml").read_text())["services"]["nats"]["healthcheck"]["test"]
    return url.partition(":8222")[2]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


async def test_a_full_disk_under_redis_is_waited_for(servers: Servers) -> None:
    """It refuses writes and answers questions; the projector goes on when there is room again."""
    nats = await connect(servers.nats_url, name="test")
    bench = Bench(nats, POOL, servers.redis_url)
    try:
        await provision(bench.js, [POOL], scale=0.01)
        await bench.work(2)
        async with bench.running() as projector:
            await bench.follows()
            with disks.full(servers.state_dir / VALKEY):

                async def refused() -> bool:
                    await bench.work(1)
                    await asyncio.sleep(0.05)
                    return bool(projector.problem)

                await until(refused, 60)
                assert (await bench.reads.head())[0] > 0, "what it knows, it still tells"
            await bench.follows()
    finally:
        await bench.reads.close()
        await close(nats)


async def test_a_full_disk_under_mongodb_is_waited_for(nats: Client, pool: str, team: str, tmp_path: Path) -> None:
    """Nothing of a window that was written in part counts, and history goes on when there is room again."""
    world, written = busy_world(team, jobs=40), Written(nats.jetstream(), pool)
    half = len(world.records) // 2
    with disks.small(tmp_path / MONGO, 32), ServerInBackground(MONGO, tmp_path) as mongo:
        store = JobStore(mongo.url)
        documents = Documents(nats.jetstream(), pool, store, CollectorRegistry(), window_jobs=2, window_s=0.02)
        async with beside(documents.run()):
            await written.write(world.records[:half])
            await until(lambda: documents.position >= written.records[-1][0])
            before, known = documents.position, next(iter(written.stories()))
            with disks.full(tmp_path / MONGO):
                await written.write(world.records[half:])
                await until(lambda: bool(documents.problem), 60)
                assert documents.position < written.records[-1][0]
                assert await store.story(known), "what it knows, it still tells"
            await until(lambda: documents.position >= written.records[-1][0], 120)
        assert before < documents.position
        assert await store.load(list(written.stories())) == written.stories()
        store.close()
