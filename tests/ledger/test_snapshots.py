"""Snapshots save time and never change what is true."""

import pytest

from libs.ledger.chain import GENESIS, Head
from libs.ledger.snapshots import Snapshots
from tests.ledger.toy import Toy, admitted, cancelled
from tests.ledger.world import POOL, World


async def test_a_snapshot_and_the_tail_fold_to_the_same_as_everything(world: World) -> None:
    writer = world.writer("w1", batch=2, snapshot_every=5)
    task = world.start(writer)
    for n in range(30):
        await world.put(admitted(n), cancelled(max(0, n - 2)))
        await world.decided(writer)
    await world.stop(task)
    found = await Snapshots(world.js, POOL).load("placement")
    assert found is not None
    assert found[1] >= 5
    again = world.writer("w2", snapshot_every=10**9)
    again_task = world.start(again)
    await again.ready.wait()
    await world.stop(again_task)
    assert vars(again.machine) == vars(await world.folded())


async def test_the_newest_of_two_is_loaded_and_an_unusable_one_ignored(world: World) -> None:
    head = await world.chain(2)
    snapshots = Snapshots(world.js, POOL)
    assert await snapshots.load("x") is None
    for position in (2, 3):
        if position == 3:
            await world.append(GENESIS)
        await snapshots.save("x", head, position, f"at {position}".encode())
    assert await snapshots.load("x") == (head, 3, b"at 3")
    await snapshots.save("x", Head(2, "f" * 64), 3, b"of another history")
    assert await snapshots.load("x") == (head, 3, b"at 3")
    await snapshots.save("x", head, 9, b"of a tail that was lost")
    found = await snapshots.load("x")
    assert found is None or found[2] == b"at 3"


@pytest.mark.parametrize("size", [0, 400_000])
async def test_any_size(world: World, size: int) -> None:
    data = bytes(range(256)) * (size // 256)
    snapshots = Snapshots(world.js, POOL)
    await snapshots.save("x", GENESIS, 0, data)
    assert await snapshots.load("x") == (GENESIS, 0, data)


async def test_a_snapshot_that_is_not_understood_costs_time_only(world: World) -> None:
    writer = world.writer("w1")
    task = world.start(writer)
    await world.put(admitted(1))
    await world.decided(writer)
    await world.stop(task)
    await Snapshots(world.js, POOL).save("placement", writer.head, writer.position, b"of another version")
    again = world.writer("w2")
    world.start(again)
    await again.ready.wait()
    assert vars(again.machine) == vars(await world.folded())
    assert isinstance(again.machine, Toy)
