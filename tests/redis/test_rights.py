"""What the Redis users of services may do: each its work, on its own pool, and nothing else."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from libs.adapters.redis import Projection, keys
from libs.bus.wire import check, check_store
from libs.cli.stores import REDIS_RIGHTS, redis_user, redis_users
from libs.core.projections.hot_state import HotState
from libs.embedded import ServerOptions, Servers, ValkeyOptions
from tests.core.builders import World, job, node
from tests.redis.ledgers import batches, chain, tables


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Servers]:
    options = ServerOptions(run=["valkey"], valkey=ValkeyOptions(users=redis_users(["main", "west"])))
    async with Servers(tmp_path, options) as servers:
        yield servers


async def test_each_service_can_do_its_work_and_no_more(valkey: Servers) -> None:
    world = World(node("n1", 2))
    world.submit(job("a"))
    ledger, state = chain("main", world.records), HotState()
    writer = Projection(valkey.redis_url_of(redis_user("placement", "main")), "main")
    reader = Projection(valkey.redis_url_of(redis_user("telemetry", "main")), "main")
    assert await writer.position() == 0, "an empty Redis; the library of functions is loaded with what comes first"
    assert await writer.apply(batches(ledger, state), "") == len(ledger)
    await writer.rebuild(len(ledger), ledger[-1].hash, state.rows())
    assert await writer.head() == await reader.head() == (len(ledger), ledger[-1].hash)
    assert set(await reader.nodes()) == set(tables(state)["nodes"])
    assert set(await reader.devices()) == set(tables(state)["devices"])
    with pytest.raises(NoPermissionError):
        await reader.rebuild(1, "x", state.rows())
    for service in REDIS_RIGHTS:
        of_west = Projection(valkey.redis_url_of(redis_user(service, "west")), "main")
        with pytest.raises(NoPermissionError):
            await of_west.nodes()
        raw = of_west._redis
        for command in (
            ["FLUSHALL"],
            ["CONFIG", "GET", "*"],
            ["KEYS", "*"],
            ["EVAL", "return 1", "0"],
            ["ACL", "LIST"],
        ):
            with pytest.raises(NoPermissionError):
                await raw.execute_command(*command)
        with pytest.raises(NoPermissionError):
            await raw.execute_command("HSET", keys.meta("main"), "seq", "0")
        await of_west.close()
    await writer.close()
    await reader.close()


async def test_a_password_may_hold_anything_that_its_url_writes_out(valkey: Servers) -> None:
    odd = "p,a@s/s#w?o%r:d[é]&"
    admin = Redis.from_url(valkey.redis_url)
    await admin.execute_command("ACL", "SETUSER", "odd", "on", f">{odd}", "~*", "+@all")
    await admin.aclose()
    for password in (quote(odd, safe=""), quote(odd, safe=",")):
        url = f"unix://odd:{password}@{valkey.redis_url.rpartition('@')[2]}"
        check_store(url, "BATON_REDIS_URL", ("unix",))
        check(url)
        reader = Projection(url, "main")
        assert await reader.head() == (0, "")
        await reader.close()
