"""Redis is emptied, or filled with something else, while work goes on: the projection is the ledger's fold again."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from libs.adapters.redis import keys
from libs.cli.launch import LocalStack
from tests.faults.books import books_agree
from tests.faults.cluster import clients, deaths, running
from tests.faults.load import crowd, mixed, submit
from tests.kit.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

JOBS = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with running(tmp_path_factory.mktemp("redis")) as launched:
        yield launched


@pytest_asyncio.fixture(loop_scope="module")
async def redis(cluster: LocalStack) -> AsyncIterator["Redis"]:
    client: Redis = Redis.from_url(cluster.redis_url, decode_responses=True)
    yield client
    await client.aclose()


async def test_an_emptied_redis_fills_again_under_load(cluster: LocalStack, redis: "Redis") -> None:
    meta = keys.meta(cluster.options.pool)
    jobs = [*crowd("emptied"), *mixed("emptied", JOBS)]
    async with clients(cluster) as teams:
        submitted = asyncio.create_task(submit(teams, jobs))
        for _ in range(3):
            await until(lambda: redis.exists(meta), 60)
            await redis.flushall()
        await submitted

    await books_agree(cluster, {job.job_id: job.end for job in jobs})
    assert not deaths(cluster), f"died of an empty Redis: {deaths(cluster)}"


async def test_an_emptied_redis_fills_again_when_nothing_happens(cluster: LocalStack, redis: "Redis") -> None:
    await books_agree(cluster)
    await redis.flushall()
    await books_agree(cluster)


async def test_an_old_state_is_noticed_and_replaced(cluster: LocalStack, redis: "Redis") -> None:
    """What a fail-over to a replica that lags behind leaves: right in itself, and not the ledger's present."""
    tables = [keys.meta(cluster.options.pool), *keys.tables(cluster.options.pool)]
    old = {key: await redis.hgetall(key) for key in tables}
    jobs = mixed("rolled back", 30)
    async with clients(cluster) as teams:
        await submit(teams, jobs)
        await books_agree(cluster, {job.job_id: job.end for job in jobs})
        async with redis.pipeline(transaction=True) as pipe:
            for key, rows in old.items():
                pipe.delete(key)
                if rows:
                    pipe.hset(key, mapping={str(k): str(v) for k, v in rows.items()})
            await pipe.execute()
        more = mixed("after the roll-back", 30)
        await submit(teams, more)
    await books_agree(cluster, {job.job_id: job.end for job in (*jobs, *more)})
