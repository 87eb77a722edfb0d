"""The seam against a real server: one call per batch, duplicates, gaps, other chains, whole replacement."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from libs.adapters.redis import NeedRebuild, Projection, keys
from libs.cli.stores import rules
from libs.core.projections.hot_state import HotState, encode
from tests.core.builders import World, job, node
from tests.core.histories import drive, steps
from tests.redis.ledgers import batches, chain, tables


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
async def projection(redis_url: str) -> AsyncIterator[Projection]:
    made = Projection(redis_url, f"p{uuid.uuid4().hex[:8]}")
    yield made
    await made.close()


async def held(projection: Projection) -> dict[str, dict[str, str]]:
    found = {
        "nodes": await projection.nodes(),
        "devices": await projection.devices(),
        "teams": await projection.teams(),
        "jobs": await projection.jobs(),
    }
    return {name: {key: encode(row) for key, row in rows.items()} for name, rows in found.items()}


def world() -> World:
    made = World(node("a", 2), node("b", 2))
    first = made.submit(job("first", 2))
    made.submit(job("second", share_milli=250))
    made.started(first)
    made.released(first)
    return made


async def test_batches_of_any_size_give_the_fold(projection: Projection) -> None:
    ledger, state = chain(projection.pool, world().records), HotState()
    entries = batches(ledger, state)
    before = ""
    for start in range(0, len(entries), 2):
        part = entries[start : start + 2]
        assert await projection.apply(part, before) == part[-1][0]
        before = part[-1][1]
    assert await held(projection) == tables(state)
    assert await projection.head() == (ledger[-1].seq, ledger[-1].hash)


async def test_a_batch_that_comes_twice_or_overlaps_changes_nothing(projection: Projection) -> None:
    ledger, state = chain(projection.pool, world().records), HotState()
    entries = batches(ledger, state)
    await projection.apply(entries[:3], "")
    assert await projection.apply(entries[:3], "") == 3
    assert await projection.apply(entries[:2], "") == 3
    await projection.apply(entries[1:], entries[0][1])
    await projection.apply(entries, "")
    assert await held(projection) == tables(state)


async def test_a_gap_is_told_and_nothing_is_written(projection: Projection) -> None:
    entries = batches(chain(projection.pool, world().records), HotState())
    with pytest.raises(NeedRebuild, match="stands at 0, the batch begins at 3"):
        await projection.apply(entries[2:], entries[1][1])
    assert await projection.position() == 0
    assert await projection.nodes() == {}


async def test_another_ledger_is_told(projection: Projection) -> None:
    entries = batches(chain(projection.pool, world().records), HotState())
    await projection.apply(entries[:2], "")
    with pytest.raises(NeedRebuild, match="holds another ledger at 2"):
        await projection.apply(entries[2:], "another hash")


async def test_void_records_move_the_sequence_and_keep_the_hash(projection: Projection) -> None:
    (first, *_) = batches(chain(projection.pool, world().records), HotState())
    await projection.apply([first, (2, first[1], [])], "")
    assert await projection.head() == (2, first[1])


async def test_rebuild_replaces_everything(projection: Projection, raw: Redis) -> None:
    ledger, state = chain(projection.pool, world().records), HotState()
    batches(ledger, state)
    await raw.hset(keys.table(projection.pool, "jobs"), "job-left-over", "{}")
    await projection.rebuild(ledger[-1].seq, ledger[-1].hash, state.rows())
    assert await held(projection) == tables(state)
    await projection.rebuild(9, "h", [])
    assert await held(projection) == {"nodes": {}, "devices": {}, "teams": {}, "jobs": {}}
    assert await projection.head() == (9, "h")
    assert await raw.keys(f"baton:{{{projection.pool}}}:*") == [keys.meta(projection.pool)]


async def test_a_view_that_is_lost_before_it_is_complete_is_not_put_into_place(
    projection: Projection, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, state = chain(projection.pool, world().records), HotState()
    batches(ledger, state)
    await projection.rebuild(ledger[-1].seq, ledger[-1].hash, state.rows())
    call = projection._call

    async def lossy(function: str, *arguments: Any) -> Any:
        if function == "baton_flip":
            await raw.delete(*await raw.keys(f"baton:{{{projection.pool}}}:next:*"))
        return await call(function, *arguments)

    monkeypatch.setattr(projection, "_call", lossy)
    with pytest.raises(NeedRebuild, match="lost a part"):
        await projection.rebuild(99, "h", state.rows())
    assert await held(projection) == tables(state)
    assert await projection.position() == ledger[-1].seq


async def test_a_lost_function_library_is_loaded_again(projection: Projection, raw: Redis) -> None:
    entries = batches(chain(projection.pool, world().records), HotState())
    await projection.apply(entries[:1], "")
    await raw.function_flush()
    assert await projection.apply(entries[1:], entries[0][1]) == entries[-1][0]


async def test_placements_user_is_enough_and_may_do_no_more(projection: Projection, raw: Redis, redis_url: str) -> None:
    user = f"u{uuid.uuid4().hex[:6]}"
    await raw.execute_command("ACL", "SETUSER", user, "on", ">secret", *rules("placement", projection.pool))
    limited = Projection(f"unix://{user}:secret@{redis_url.split('@')[1]}", projection.pool)
    entries = batches(chain(projection.pool, world().records), HotState())
    await limited.apply(entries, "")
    await limited.rebuild(9, "h", HotState().rows())
    assert await limited.position() == 9
    with pytest.raises(ResponseError, match="permissions"):
        await limited._redis.flushall()
    await limited.close()
    await raw.execute_command("ACL", "DELUSER", user)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=steps, cuts=st.lists(st.integers(1, 7), min_size=1, max_size=8), repeat=st.booleans())
async def test_the_projection_equals_the_fold_of_any_ledger(
    redis_url: str, history: list[Any], cuts: list[int], repeat: bool
) -> None:
    projection = Projection(redis_url, f"p{uuid.uuid4().hex[:8]}")
    state = HotState()
    entries = batches(chain(projection.pool, drive(history).records), state)
    start, before = 0, ""
    while start < len(entries):
        part = entries[start : start + cuts[start % len(cuts)]]
        await projection.apply(part, before)
        if repeat:
            await projection.apply(part, before)
        start, before = start + len(part), part[-1][1]
    assert await held(projection) == tables(state)
    await projection.close()
