"""A snapshot that cannot be loaded or saved costs time, never a service."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from nats.js.errors import APIError

from libs.bus.cancel import cancel
from libs.bus.table import snapshots_bucket
from libs.core.admission.fleet_shape import FleetShape
from libs.core.billing.metering import Meter
from libs.core.projections.history import Feed
from libs.core.projections.hot_state import HotState
from libs.core.scheduling.decider import Deciders
from libs.ledger import saver
from libs.ledger.chain import GENESIS, Head
from libs.ledger.follower import Follower
from libs.ledger.saver import SnapshotSaver
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.writer import LedgerWriter
from services.preemption.planner import PreemptionPlanner
from services.telemetry.figures import PoolFigures
from tests.ledger.toy import Toy, admitted
from tests.ledger.world import POOL, World

READERS = [FleetShape, HotState, Feed, Meter, PoolFigures, PreemptionPlanner]


async def until(true: Any) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def test_every_reader_starts_beside_a_snapshot_of_another_version(world: World) -> None:
    head = await world.chain(3)
    store = SnapshotStore(world.js, POOL)
    followers: list[Follower[Any]] = []
    for kind in READERS:
        for version in (kind.version - 1, kind.version + 1):  # type: ignore[attr-defined]
            await store.save(kind.__name__, version, head, 3, [b"what another version wrote"])
        followers.append(Follower(world.js, POOL, kind, name=kind.__name__, idle_s=0.1))  # type: ignore[type-var]
    tasks = [asyncio.create_task(one.run()) for one in followers]
    await asyncio.wait_for(asyncio.gather(*(one.caught_up.wait() for one in followers)), 60)
    assert [one.counters.folded_anew for one in followers] == [1] * len(READERS)
    assert not any(task.done() for task in tasks)
    await cancel(*tasks)

    await store.save("placement", Deciders.version + 1, head, 3, [b"of a later placement"])
    writer = LedgerWriter(world.js, POOL, Deciders(), writer_id="w", snapshots=store)
    task = asyncio.create_task(writer.run())
    await asyncio.wait_for(writer.ready.wait(), 60)
    assert writer.position == 3
    await cancel(task)


async def test_without_a_store_the_ledger_is_folded_and_saves_fail_and_nothing_ends(world: World) -> None:
    await world.js.delete_stream(f"OBJ_{snapshots_bucket('placement')}")
    writer = world.writer("w1", batch=1, snapshot_every=2)
    task = world.start(writer)
    for n in range(6):
        await world.put(admitted(n))
        await world.decided(writer)
    await until(lambda: writer.saves.failed)
    assert writer.saves.unusable >= 1
    assert not task.done()
    assert list((await world.folded()).seen) == list(writer.decider.seen)


async def test_a_store_that_does_not_answer_while_the_ledger_does_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def silent(self: SnapshotStore, *args: Any) -> None:
        nonlocal asked
        asked += 1
        raise TimeoutError

    monkeypatch.setattr(SnapshotStore, "load", silent)
    writer = world.writer("w1")
    world.start(writer)
    await world.put(admitted(1))
    await world.decided(writer)
    assert asked == 3


@pytest.mark.parametrize("trouble", ["full", "slow", "a bug"])
async def test_a_save_that_fails_is_counted_and_tried_again_soon(
    world: World, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Not one whole interval of records later: a restart in between would fold all of them."""
    monkeypatch.setattr(saver, "_RETRY_S", (0.05,))
    monkeypatch.setattr(saver, "_LONGEST_S", 0.5)
    monkeypatch.setattr(saver, "_SHARE", 0)
    put, well = SnapshotStore.put, False

    async def sometimes(self: SnapshotStore, *args: Any) -> None:
        if well:
            await put(self, *args)
        elif trouble == "full":
            raise APIError(code=503, description="insufficient storage")
        elif trouble == "slow":
            await asyncio.sleep(3600)
        else:
            raise ZeroDivisionError

    monkeypatch.setattr(SnapshotStore, "put", sometimes)
    writer = world.writer("w1", batch=1, snapshot_every=5)
    task = world.start(writer)
    for n in range(6):
        await world.put(admitted(n))
        await world.decided(writer)
    await until(lambda: writer.saves.failed)
    well = True
    while not writer.saves.saved:
        await world.put(admitted(world.inputs))
        await world.decided(writer)
        await asyncio.sleep(0.05)
    assert not task.done()
    assert writer.position < 60


async def test_a_writer_drops_a_snapshot_that_the_next_record_does_not_fit(world: World) -> None:
    """It can be read and is wrong: that start fails, and the next one folds the log."""
    for n in range(3):
        await world.put(admitted(n))
    writer = world.writer("w1", batch=1)
    task = world.start(writer)
    await world.decided(writer)
    await world.stop(task)
    wrong = Toy()
    wrong.inbox_seq = 99
    entries = await world.entries()
    head = entries[0].head
    await SnapshotStore(world.js, POOL).save("placement", Toy.version, head, head.seq, wrong.dump())
    with pytest.raises(AssertionError, match="decides input"):
        await world.writer("w2").run()
    again = world.writer("w3")
    world.start(again)
    await asyncio.wait_for(again.ready.wait(), 30)
    assert again.position == len(entries)


async def test_closing_drops_what_is_half_saved(world: World) -> None:
    def parts() -> Iterable[bytes]:
        yield b"first"
        raise AssertionError("was not dropped")

    made = SnapshotSaver(SnapshotStore(world.js, POOL), "x", 1, every=1)
    made.start(Head(0, ""), 1, parts())
    await made.close()
    assert (made.counters.saved, made.counters.failed) == (0, 0)
    assert await made.load(list) is None
    assert made.due(1)
    assert GENESIS.seq == 0


async def test_a_state_that_cannot_be_written_down_is_a_failed_save_and_ends_nothing(world: World) -> None:
    def parts() -> Iterable[bytes]:
        yield b"first"
        raise TypeError("not serializable")

    made = SnapshotSaver(SnapshotStore(world.js, POOL), "x", 1, every=1)
    await made.save(Head(0, ""), 1, parts())
    assert (made.counters.saved, made.counters.failed) == (0, 1)
    made.start(Head(0, ""), 1, parts())
    await until(lambda: made.counters.failed == 2)
    assert await made.load(list) is None


async def test_few_records_of_many_events_are_saved_as_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 jobs that were submitted at once are a thousand records: each start folded all of them."""
    monkeypatch.setattr(saver, "_EVENTS", 4)
    monkeypatch.setattr(saver, "_SHARE", 0)
    writer = world.writer("w1", batch=1, snapshot_every=1000)
    task = world.start(writer)
    for n in range(6):
        await world.put(admitted(n))
        await world.decided(writer)
    await until(lambda: writer.saves.saved)
    assert writer.position < 1000
    await world.stop(task)
    follower = Follower(world.js, POOL, Toy, name="follows", snapshot_every=1000, idle_s=0.1)  # type: ignore[type-var]
    following = asyncio.create_task(follower.run())
    await until(lambda: follower.saves.saved)
    await cancel(following)
    again = world.writer("w2", snapshot_every=1000)
    await SnapshotStore(world.js, POOL).forget("placement", Toy.version)
    world.start(again)
    await again.ready.wait()
    await world.put(admitted(6))
    await until(lambda: again.saves.saved)  # what it has folded at its start counts


async def test_who_needs_few_events_saves_for_the_records_that_it_has_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases had no snapshot of 100,000 jobs that wait, and read them all at each start."""
    await world.chain(3)
    size = (await world.entries())[0].size
    for bytes_, saves in ((10 * size, 0), (2 * size, 1)):
        monkeypatch.setattr(saver, "_BYTES", bytes_)
        made: Follower[Any] = Follower(world.js, POOL, Toy, name="few", idle_s=0.1, only={"none.of.these"})
        task = asyncio.create_task(made.run())
        await asyncio.wait_for(made.caught_up.wait(), 60)
        if saves:
            await until(lambda made=made: made.saves.saved)
        await asyncio.sleep(0.3)
        assert made.saves.saved == saves
        await cancel(task)


async def test_a_state_at_rest_is_saved_for_fewer_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a backlog up to 50,000 events were in no snapshot for as long as nothing else happened: each start read them anew."""
    writer = world.writer("w1", batch=1)
    task = world.start(writer)
    for n in range(3):
        await world.put(admitted(n))
        await world.decided(writer)
    await world.stop(task)
    events = sum(len(entry.record.events) for entry in await world.entries())
    for least, saves in ((events + 1, 0), (events, 1)):
        monkeypatch.setattr(saver, "_REST_S", 0.2)
        monkeypatch.setattr(saver, "_EVENTS_AT_REST", least)
        made: Follower[Any] = Follower(world.js, POOL, Toy, name="rests", idle_s=0.05)
        task = asyncio.create_task(made.run())
        await asyncio.wait_for(made.caught_up.wait(), 60)
        assert not made.saves.saved
        if saves:
            await until(lambda made=made: made.saves.saved)
        await asyncio.sleep(0.5)
        assert made.saves.saved == saves
        await cancel(task)
