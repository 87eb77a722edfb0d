"""Snapshots save time and never change what is true."""

import asyncio
import json
import zlib
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
from nats.js.api import ObjectMeta
from nats.js.errors import APIError
from nats.js.object_store import ObjectStore

from libs.bus.table import snapshots_bucket
from libs.core.state.parts import SharedParts
from libs.ledger import snapshots
from libs.ledger.chain import GENESIS, Head
from libs.ledger.snapshots import BadSnapshot, Restored, SnapshotStore, pack, unpack
from tests.ledger.toy import Toy, admitted, cancelled
from tests.ledger.world import POOL, World


async def test_a_snapshot_and_the_tail_fold_to_the_same_as_everything(world: World) -> None:
    writer = world.writer("w1", batch=2, snapshot_every=5)
    task = world.start(writer)
    for n in range(30):
        await world.put(admitted(n), cancelled(max(0, n - 2)))
        await world.decided(writer)
    await world.stop(task)
    found = await SnapshotStore(world.js, POOL).load("placement", Toy.version, Toy.load)
    assert found is not None
    assert found.position >= 5
    again = world.writer("w2", snapshot_every=10**9)
    again_task = world.start(again)
    await again.ready.wait()
    await world.stop(again_task)
    assert vars(again.decider) == vars(await world.folded())


async def test_the_newest_of_two_is_loaded_and_an_unusable_one_ignored(world: World) -> None:
    head = await world.chain(2)
    store = SnapshotStore(world.js, POOL)

    async def loaded() -> Restored[list[bytes]] | None:
        return await store.load("x", 1, list)

    assert await loaded() is None
    for position in (2, 3):
        if position == 3:
            await world.append(GENESIS)
        await store.save("x", 1, head, position, [b"at", str(position).encode()])
    assert await loaded() == Restored(head, 3, [b"at", b"3"])
    await store.save("x", 1, Head(2, "f" * 64), 3, [b"of another history"])
    assert await loaded() == Restored(head, 3, [b"at", b"3"])
    await store.save("x", 1, head, 9, [b"of a tail that was lost"])
    found = await loaded()
    assert found is None or found.value == [b"at", b"3"]


async def test_the_newest_of_its_own_version_is_loaded(world: World) -> None:
    """After an upgrade that was taken back, the older code finds what it wrote itself."""
    head = await world.chain(3)
    store = SnapshotStore(world.js, POOL)
    await store.save("x", 1, head, 3, [b"old"])
    await store.save("x", 2, head, 3, [b"new"])
    assert await store.load("x", 1, list) == Restored(head, 3, [b"old"])
    assert await store.load("x", 2, list) == Restored(head, 3, [b"new"])
    assert await store.load("x", 3, list) is None


async def test_a_snapshot_that_breaks_its_reader_makes_way_for_the_other(world: World) -> None:
    head = await world.chain(3)
    store = SnapshotStore(world.js, POOL)
    await store.save("x", 1, head, 2 + 1, [b'{"good": 1}'])
    await world.append(head)
    await store.save("x", 1, head, 4, [b"no JSON"])
    found = await store.load("x", 1, lambda parts: json.loads(b"".join(parts)))
    assert found == Restored(head, 3, {"good": 1})


async def test_a_snapshot_that_is_replaced_while_it_is_looked_at_is_not_taken_for_the_one_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes save under one name: the state would be of another record than its description (seeds 2349, 3578)."""
    heads = [await world.chain(2)]
    store = SnapshotStore(world.js, POOL)
    for position in range(2, 7):
        if position > 2:
            heads.append(await world.append(heads[-1]))
    await store.save("x", 1, heads[0], 2, [b"of 2"])
    await store.save("x", 1, heads[1], 3, [b"of 3"])
    off_chain = SnapshotStore._off_chain
    saved = iter((4, 5))

    async def while_another_saves(self: SnapshotStore, slot: Any) -> str:
        why = await off_chain(self, slot)
        for position in saved:
            await store.save("x", 1, heads[position - 2], position, [f"of {position}".encode()])
        return why

    monkeypatch.setattr(SnapshotStore, "_off_chain", while_another_saves)
    assert await SnapshotStore(world.js, POOL).load("x", 1, list) == Restored(heads[3], 5, [b"of 5"])


PARTS = ([], [b""], [b"", b"a", b""], [b"x" * 700_000, b"y"], [bytes(range(256)) * 1600], [b"z"] * 5000)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: f"{len(parts)} parts of {sum(map(len, parts))} bytes")
async def test_parts_come_back_as_they_were(world: World, parts: list[bytes]) -> None:
    store = SnapshotStore(world.js, POOL)
    await store.save("x", 1, GENESIS, 0, parts)
    assert await store.load("x", 1, list) == Restored(GENESIS, 0, parts)


def shared(text: str) -> SharedParts:
    return SharedParts(text, lambda: [text.encode(), b"more"])


async def test_shared_parts_are_stored_once_and_stand_in_their_places(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(world.js, POOL)
    put: list[str] = []
    put_ = ObjectStore.put

    async def noted(self: ObjectStore, name: str, *more: Any) -> Any:
        put.append(name)
        return await put_(self, name, *more)

    monkeypatch.setattr(ObjectStore, "put", noted)
    await store.save("x", 1, GENESIS, 0, [b"first", shared("one"), shared("two"), b"last"])
    await store.save("x", 1, GENESIS, 0, [b"first", shared("one"), shared("two"), shared("three")])
    slots = [f"{POOL}/x/{slot}" for slot in "ab"]
    made = [f"{POOL}/x/shared/1/{key}" for key in ("one", "two", "three")]
    assert put == [*made[:2], slots[0], made[2], slots[1]]
    for _ in range(2):
        found = await store.load("x", 1, list)
        assert found is not None
        assert found.value[:5] == [b"first", b"one", b"more", b"two", b"more"]
    bucket = await world.js.object_store(snapshots_bucket("x"))
    await bucket.delete(made[1])
    assert await store.load("x", 1, list) is None, "a state without some of its parts is none"
    await store.save("x", 1, GENESIS, 0, [b"first", shared("two")])
    found = await store.load("x", 1, list)
    assert found is not None, "what was named and was not there is stored again"
    assert found.value == [b"first", b"two", b"more"]


async def test_shared_parts_that_nothing_names_go_after_an_hour(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = SnapshotStore(world.js, POOL), SnapshotStore(world.js, POOL)
    bucket = await world.js.object_store(snapshots_bucket("x"))

    async def there() -> set[str]:
        infos = await bucket.list(ignore_deletes=True)
        return {info.name.rpartition("/")[2] for info in infos if "/shared/" in info.name}

    await other.save("y", 1, GENESIS, 0, [shared("of another reader")])
    for position, name in enumerate(("one", "two", "three")):
        await store.save("x", 1, GENESIS, position, [shared(name)])
    assert await there() == {"one", "two", "three", "of another reader"}, "another process may be about to name it"
    monkeypatch.setattr(snapshots, "_UNNAMED_S", 0.0)
    await store.save("x", 1, GENESIS, 3, [shared("four")])
    assert await there() == {"three", "four", "of another reader"}
    for position in (4, 5):
        await store.save("x", 1, GENESIS, position, [b"none"])
    assert await there() == {"of another reader"}


async def test_shared_parts_that_a_failed_save_left_are_not_stored_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first save that takes too long would begin anew each time, and never end."""
    store = SnapshotStore(world.js, POOL)
    put_, left, put = ObjectStore.put, [2], list[str]()

    async def put_two(self: ObjectStore, name: str, *more: Any) -> Any:
        if not left[0]:
            raise TimeoutError
        left[0] -= 1
        put.append(name.rpartition("/")[2])
        return await put_(self, name, *more)

    monkeypatch.setattr(ObjectStore, "put", put_two)
    for _ in range(2):
        left[0] = 2
        with suppress(TimeoutError):
            await store.save("x", 1, GENESIS, 0, [shared("one"), shared("two"), shared("three")])
    assert put == ["one", "two", "three", "a"]
    assert await store.load("x", 1, list) is not None


async def bucket_names(world: World) -> set[str]:
    """The last word of each, of removed ones too if anything is left of them."""
    bucket = await world.js.object_store(snapshots_bucket("x"))
    return {info.name.rpartition("/")[2] for info in await bucket.list()}


async def test_a_bucket_that_is_full_of_what_nothing_names_is_cleared_before_more_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, bucket, chance = SnapshotStore(world.js, POOL), snapshots_bucket("x"), Random(1)
    one, two, three = (
        SharedParts(name, partial(list, [chance.randbytes(100_000)])) for name in ("one", "two", "three")
    )
    for each in (one, two, two):
        await store.save("x", 1, GENESIS, 0, [each])
    about = await world.js.stream_info(f"OBJ_{bucket}")
    await world.js.update_stream(about.config, max_bytes=about.state.bytes + 50_000)
    with pytest.raises(APIError):
        await store.save("x", 1, GENESIS, 0, [three])
    monkeypatch.setattr(snapshots, "_UNNAMED_S", 0.0)
    await store.save("x", 1, GENESIS, 0, [three])
    assert (await bucket_names(world)) == {"a", "b", "two", "three"}


async def test_of_shared_parts_that_are_removed_nothing_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes look at the same time: both remove, and neither save fails."""
    stores = SnapshotStore(world.js, POOL), SnapshotStore(world.js, POOL)
    for name in ("one", "two", "three"):
        await stores[0].save("x", 1, GENESIS, 0, [shared(name)])
    monkeypatch.setattr(snapshots, "_UNNAMED_S", 0.0)
    delete_ = ObjectStore.delete

    async def deleted_by_another_first(self: ObjectStore, name: str) -> Any:
        await delete_(self, name)
        return await delete_(self, name)

    monkeypatch.setattr(ObjectStore, "delete", deleted_by_another_first)
    await stores[1].save("x", 1, GENESIS, 0, [shared("two")])
    assert (await bucket_names(world)) == {"a", "b", "two"}


async def test_shared_parts_that_are_stored_anew_have_their_hour_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stores them names them next."""
    store = SnapshotStore(world.js, POOL)
    for name in ("one", "two", "two"):
        await store.save("x", 1, GENESIS, 0, [shared(name)])
    loop = asyncio.get_running_loop()
    real, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + passed[0])
    bucket = await world.js.object_store(snapshots_bucket("x"))
    await bucket.put(f"{POOL}/x/shared/1/one", (await pack([b"one", b"more"])).stream)
    passed[0] = snapshots._UNNAMED_S + 1
    await store.save("x", 1, GENESIS, 0, [shared("two")])
    assert (await bucket_names(world)) == {"a", "b", "one", "two"}
    passed[0] *= 2
    await store.save("x", 1, GENESIS, 0, [shared("two")])
    assert (await bucket_names(world)) == {"a", "b", "two"}


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
async def test_what_was_cut_or_is_nothing_of_ours_is_said_to_be_so(cut: int) -> None:
    packed = (await pack([b"some", b"parts" * 1000])).stream
    with pytest.raises(BadSnapshot):
        list(unpack(packed[:cut]))
    with pytest.raises(BadSnapshot):
        list(unpack(zlib.compress(b"\0\0\0\x09short")))


async def test_a_snapshot_that_is_not_understood_costs_time_only(world: World) -> None:
    writer = world.writer("w1")
    task = world.start(writer)
    await world.put(admitted(1))
    await world.decided(writer)
    await world.stop(task)
    store = SnapshotStore(world.js, POOL)
    await store.save("placement", Toy.version, writer.head, writer.position, [b"of another version"])
    again = world.writer("w2")
    world.start(again)
    await again.ready.wait()
    assert vars(again.decider) == vars(await world.folded())
    assert isinstance(again.decider, Toy)


async def test_what_0_1_0_left_is_ignored_and_in_time_replaced(world: World) -> None:
    """It kept no version beside its snapshots, and packed them in another way."""
    head = await world.chain(2)
    store = SnapshotStore(world.js, POOL)
    bucket = await world.js.object_store(snapshots_bucket("x"))
    about = json.dumps({"seq": head.seq, "hash": head.hash, "position": 2})
    for slot in "ab":
        name = f"{POOL}/x/{slot}"
        await bucket.put(name, zlib.compress(b'{"version": 3}'), ObjectMeta(name=name, description=about))
    assert await store.load("x", 3, list) is None
    await store.save("x", 3, head, 2, [b"new"])
    assert await store.load("x", 3, list) == Restored(head, 2, [b"new"])


async def test_forgetting_leaves_other_versions_and_names_alone(world: World) -> None:
    head = await world.chain(2)
    store = SnapshotStore(world.js, POOL)
    for name, version in (("x", 1), ("x", 2), ("y", 1)):
        await store.save(name, version, head, 2, [f"{name}{version}".encode()])
    await store.forget("x", 1)
    assert await store.load("x", 1, list) is None
    assert await store.load("x", 2, list) == Restored(head, 2, [b"x2"])
    assert await store.load("y", 1, list) == Restored(head, 2, [b"y1"])
    await store.save("x", 1, head, 2, [b"again"])
    assert await store.load("x", 1, list) == Restored(head, 2, [b"again"])
    assert await store.load("x", 2, list) == Restored(head, 2, [b"x2"])
