"""The projector against real servers: whatever happens to Redis, it ends up as the fold of the ledger."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from redis.asyncio import Redis

from libs.adapters.redis import Projection
from libs.adapters.redis.projection import Unavailable
from libs.core.projections.hot_state import HotState
from libs.embedded import ServerOptions, Servers, read_processes
from libs.embedded.servers import VALKEY
from libs.ledger.snapshots import SnapshotStore
from schemas.ledger import DevicesFreed
from services.placement.projector import FOLLOWER, Projector
from tests.core.builders import World, job, node
from tests.kit.tasks import beside
from tests.redis.ledgers import Stored, chain, store, tables
from tests.redis.test_projection import held


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what must become true; the test's own time limit is the bound."""
    while True:
        try:
            if await true():
                return
        except Unavailable:
            pass
        await asyncio.sleep(0.05)


class Bench:
    """A pool's ledger that grows, a projector that follows it, and what Redis should hold."""

    def __init__(self, nats: Client, pool: str, redis_url: str) -> None:
        self.js, self.pool, self.redis_url = nats.jetstream(), pool, redis_url
        self.world = World(node("a", 4), node("b", 4))
        self.state = HotState()
        self.ledger: list[Stored] = []
        self.reads = Projection(redis_url, pool)

    async def work(self, jobs: int) -> None:
        """Jobs come, run and end; the records are stored in the ledger."""
        for _ in range(jobs):
            name = f"job{len(self.world.records)}"
            run = self.world.submit(job(name, 1 + len(name) % 3))
            if self.world.nodes_of(run):
                self.world.started(run)
                if len(self.world.records) % 2:
                    self.world.released(run)
        await self.write()

    async def write(self) -> None:
        head = (self.ledger[-1].seq, self.ledger[-1].hash) if self.ledger else (0, "")
        new = chain(self.pool, self.world.records[len(self.ledger) :], head)
        await store(self.js, self.pool, new)
        self.ledger += new
        for stored in new:
            self.state.apply(stored.record, stored.seq)

    async def follows(self) -> None:
        """Waits until Redis is the fold of the whole ledger."""
        await until(self._complete)
        assert await held(self.reads) == tables(self.state)

    async def _complete(self) -> bool:
        return await self.reads.head() == (self.ledger[-1].seq, self.ledger[-1].hash)

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Projector]:
        projector = Projector(self.pool, self.redis_url, **options)
        async with beside(projector.run(self.js)):
            yield projector


@pytest.fixture
async def bench(nats: Client, pool: str, redis_url: str) -> AsyncIterator[Bench]:
    made = Bench(nats, pool, redis_url)
    yield made
    await made.reads.close()


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


async def empty(raw: Redis, pool: str) -> None:
    """As FLUSHALL does, for this pool's keys alone: the server is shared with other tests."""
    await raw.delete(*await raw.keys(f"baton:{{{pool}}}:*"))


async def test_it_catches_up_and_follows(bench: Bench) -> None:
    await bench.work(5)
    async with bench.running() as projector:
        await bench.follows()
        await bench.work(5)
        await bench.follows()
        assert projector.rebuilds == 1  # the first fill
        assert projector.problem == ""


async def test_emptied_while_idle_it_fills_again(bench: Bench, raw: Redis) -> None:
    await bench.work(5)
    async with bench.running() as projector:
        await bench.follows()
        await empty(raw, bench.pool)
        await bench.follows()
        assert projector.rebuilds == 2


async def test_emptied_while_busy_it_fills_again(bench: Bench, raw: Redis) -> None:
    await bench.work(3)
    async with bench.running():
        await bench.follows()
        await empty(raw, bench.pool)
        await bench.work(3)
        await bench.follows()


async def test_rolled_back_or_of_another_ledger_it_is_written_anew(bench: Bench, raw: Redis) -> None:
    await bench.work(4)
    for head in ({"seq": 2, "hash": "older"}, {"seq": 10_000, "hash": "of a longer one"}, {"hash": "same length"}):
        async with bench.running():
            await bench.follows()
            await raw.hset(f"baton:{{{bench.pool}}}:meta", mapping=head)
            await raw.hset(f"baton:{{{bench.pool}}}:nodes", "ghost", "{}")
            await bench.work(1)
            await bench.follows()


async def test_a_void_record_changes_nothing(bench: Bench) -> None:
    await bench.work(2)
    async with bench.running():
        await bench.follows()
        ack = await bench.js.publish(f"baton.led.pool.v1.record.{bench.pool}", b"{}")
        await until(lambda: _at(bench.reads, ack.seq))
        assert await held(bench.reads) == tables(bench.state)


async def _at(projection: Projection, seq: int) -> bool:
    return await projection.position() == seq


async def test_two_projectors_of_one_pool_agree(bench: Bench, raw: Redis) -> None:
    async with bench.running(), bench.running():
        await bench.work(5)
        await bench.follows()
        await empty(raw, bench.pool)
        await bench.work(5)
        await bench.follows()


async def test_a_ledger_that_it_cannot_fold_ends_the_projection_and_not_its_process(bench: Bench) -> None:
    await bench.work(1)
    impossible = bench.world.records[-1].model_copy(
        update={
            "events": (DevicesFreed(job_id=f"job-{0:032x}", attempt=1, node="a", devices=("x",), evidence="released"),)
        }
    )
    bench.world.records.append(impossible)
    head = (bench.ledger[-1].seq, bench.ledger[-1].hash)
    await store(bench.js, bench.pool, chain(bench.pool, [impossible], head))
    projector = Projector(bench.pool, bench.redis_url)
    await projector.run(bench.js)
    assert projector.problem.startswith("stopped at")


async def test_a_restart_goes_on_from_its_snapshot(bench: Bench) -> None:
    snapshots = SnapshotStore(bench.js, bench.pool)
    await bench.work(5)
    async with bench.running(snapshot_every=3):
        await bench.follows()
        await bench.work(5)
        await bench.follows()
        await until(lambda: _saved(snapshots))
    await bench.work(2)
    async with bench.running() as projector:
        await bench.follows()
        assert projector.follower is not None
        assert projector.follower.resumed_at > 0


async def _saved(snapshots: SnapshotStore) -> bool:
    return await snapshots.load(FOLLOWER, HotState.version, HotState.load) is not None


@pytest.mark.faults
async def test_a_killed_server_is_filled_again_and_nothing_else_waits(nats: Client, pool: str, tmp_path: Path) -> None:
    async with Servers(tmp_path, ServerOptions(run=(VALKEY,))) as servers:
        bench = Bench(nats, pool, servers.redis_url)
        await bench.work(3)
        async with bench.running() as projector:
            await bench.follows()
            process = read_processes(tmp_path)[VALKEY]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            await bench.work(3)  # the ledger goes on
            await bench.follows()
            raw: Redis = Redis.from_url(servers.redis_url)
            await raw.flushall()
            await raw.aclose()
            await bench.follows()
            assert projector.problem == ""
        await bench.reads.close()
