"""A projection is the fold of the ledger, whatever becomes of its snapshots, the broker or the process."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.js.api import ObjectMeta
from nats.js.errors import APIError

from libs.bus.table import snapshots_bucket
from libs.ledger.chain import GENESIS, Head, LedgerRewound, UnknownRecord
from libs.ledger.follower import FollowedEntry, Follower, Gather
from libs.ledger.snapshots import Restored, SnapshotStore
from schemas.ledger import NodeLeft
from schemas.subjects import ledger, ledger_stream
from tests.kit.tasks import beside
from tests.ledger.tally import Tally
from tests.ledger.world import POOL, World

NAME = "tally"


class TallyOfTomorrow(Tally):
    version = 2


async def grow(world: World, count: int, head: Head = GENESIS, **fields: Any) -> Head:
    for _ in range(count):
        head = await world.append(head, t_us=head.seq * 10, **fields)
    return head


def follower(world: World, kind: type[Tally] = Tally, **options: Any) -> Follower[Tally]:
    options.setdefault("snapshot_every", 10**9)
    options.setdefault("idle_s", 0.1)
    return Follower(world.js, POOL, kind, name=NAME, **options)


@asynccontextmanager
async def running(made: Follower[Tally], *args: Any, **kwargs: Any) -> AsyncIterator[Follower[Tally]]:
    """The follower in a task; what it raises, the block raises."""
    async with beside(made.run(*args, **kwargs)):
        yield made


async def until(true: Callable[[], Any]) -> None:
    """Waits for what must become true; the test's own time limit is the bound."""
    while not true():
        await asyncio.sleep(0.01)


async def reads(made: Follower[Tally], seq: int) -> list[tuple[int, int | None]]:
    await until(lambda: made.position >= seq)
    return made.projection.seen


def expected(count: int) -> list[tuple[int, int | None]]:
    return [(seq, (seq - 1) * 10) for seq in range(1, count + 1)]


async def unknown_kind(world: World, head: Head) -> None:
    """A record that continues the chain and is not understood."""
    record = {"v": 1, "pool": POOL, "prev_seq": head.seq, "prev_hash": head.hash, "inbox_seq": 9, "t_us": 9}
    strange = '"writer": "w", "events": [{"kind": "job.promoted"}]}'
    await world.js.publish(ledger(POOL), (json.dumps(record)[:-1] + ", " + strange).encode())


async def snapshot(world: World, count: int, *, version: int = 1, parts: Sequence[bytes] | None = None) -> None:
    """Of the first `count` records, as a follower leaves it."""
    whole = Tally()
    head = GENESIS
    for entry in (await world.entries())[:count]:
        whole.apply(entry.record, entry.seq)
        head = entry.head
    await SnapshotStore(world.js, POOL).save(NAME, version, head, count, whole.dump() if parts is None else parts)


# ------------------------------------------------------------------------------------------------------- following


async def test_it_reads_what_is_there_and_then_what_comes(world: World) -> None:
    head = await grow(world, 5)
    async with running(follower(world)) as made:
        assert await reads(made, 5) == expected(5)
        await made.caught_up.wait()
        assert (made.head, made.position, made.began_at, made.lag, made.problem) == (head, 5, 5, 0, "")
        await grow(world, 3, head)
        assert await reads(made, 8) == expected(8)


async def test_an_empty_ledger_is_caught_up_at_once(world: World) -> None:
    made = follower(world)
    assert made.problem == "not read yet"
    async with running(made):
        await made.caught_up.wait()
        assert (made.position, made.projection.seen, made.problem) == (0, [], "")
        await grow(world, 1)
        assert await reads(made, 1) == expected(1)


async def test_after_is_told_of_every_record_once_in_order_and_of_quiet_times(world: World) -> None:
    head = await grow(world, 4)
    await world.append(GENESIS)  # void
    await grow(world, 2, Head(head.seq, head.hash))
    batches: list[list[FollowedEntry]] = []

    async def after(steps: Sequence[FollowedEntry]) -> None:
        batches.append(list(steps))

    async with running(follower(world, max_batch=3), after) as made:
        await reads(made, 7)
        await until(lambda: batches and batches[-1] == [])
    told = [step for batch in batches for step in batch]
    assert [(s.entry.seq, s.told) for s in told] == [(n, None if n == 5 else f"told of {n}") for n in range(1, 8)]
    assert made.projection.seen[4] == (5, None)
    assert (made.counters.records, made.counters.voids) == (6, 1)


async def test_its_position_is_that_of_its_state_also_while_it_stands_still_and_reads(world: World) -> None:
    head = await grow(world, 3)
    async with running(follower(world)) as made:
        await reads(made, 3)
        async with made.still():
            newest = await grow(world, 1, head)
            await until(lambda: made._reader is not None and made._reader.position == 4)
            assert (made.projection.seen, made.position, made.head, made.lag) == (expected(3), 3, head, 1)
        assert await reads(made, 4) == expected(4)
        assert (made.head, made.lag) == (newest, 0)


async def test_begin_comes_before_the_first_record(world: World) -> None:
    await grow(world, 5)
    await snapshot(world, 3)
    order: list[Any] = []
    made = follower(world)

    async def begin() -> None:
        order.append(("begin", made.position, len(made.projection.seen), made.began_at))

    async def after(steps: Sequence[FollowedEntry]) -> None:
        order.extend(step.entry.seq for step in steps)

    async with running(made, after, begin=begin):
        await reads(made, 5)
    assert order == [("begin", 3, 3, 5), 4, 5]


async def test_records_are_gathered_until_there_are_enough(world: World) -> None:
    head = await grow(world, 1)
    sizes: list[int] = []

    async def after(steps: Sequence[FollowedEntry]) -> None:
        sizes.append(len(steps))

    gather = Gather(30.0, lambda steps: len(steps) >= 4)
    async with running(follower(world, gather=gather), after) as made:
        await reads(made, 1)
        await grow(world, 3, head)
        await until(lambda: 4 in sizes)
    assert set(sizes) <= {0, 4}


@pytest.mark.parametrize("busy_events", [0, 1])
async def test_a_busy_reader_gathers_and_a_lone_record_is_not_held_up(world: World, busy_events: int) -> None:
    batches: list[int] = []

    async def after(steps: Sequence[FollowedEntry]) -> None:
        if steps:
            batches.append(len(steps))

    left = {"events": (NodeLeft(node="n", incarnation=1, reason="drained"),)}
    head = await grow(world, 1, **left)
    gather = Gather(60.0, lambda steps: len(steps) >= 5, busy_s=600.0, busy_events=busy_events)
    async with running(follower(world, gather=gather), after):
        await until(lambda: batches == [1])  # the first: nothing came shortly before
        await grow(world, 5, head, **left)  # one after the other, while the first of them waits for company
        await until(lambda: sum(batches) == 6)
    assert batches == [1, 5]


async def test_a_reader_that_rests_reads_together_what_came_meanwhile_and_at_once_when_it_is_hurried(
    world: World,
) -> None:
    batches: list[int] = []

    async def after(steps: Sequence[FollowedEntry]) -> None:
        batches.append(len(steps))

    async with running(follower(world, rest_s=600.0), after) as made:
        await until(lambda: batches == [0])  # it listens now
        batches.clear()
        await grow(world, 3)
        await until(lambda: made._reader is not None and len(made._reader._tail._reading.queue) == 3)
        assert not any(batches)
        made.hurry()
        await until(lambda: 3 in batches)


async def test_a_reader_rests_longer_while_records_keep_coming(world: World) -> None:
    async with running(follower(world, busy_rest_s=600.0)) as made:
        await until(made.caught_up.is_set)
        head = await grow(world, 1)
        await until(lambda: made.position == 1)  # nothing had come before: it does not rest
        await grow(world, 2, head)
        await until(lambda: made._reader is not None and len(made._reader._tail._reading.queue) == 2)
        assert made.position == 1
        made.hurry()
        await until(lambda: made.position == 3)


async def test_a_reader_that_rests_does_not_while_it_is_behind(world: World) -> None:
    await grow(world, 20)
    async with running(follower(world, rest_s=600.0, max_batch=4)) as made:
        made.hurry()  # the first record: what else is there is known once it was read
        assert await reads(made, 20) == expected(20)


async def test_a_reader_whose_batches_are_small_rests_no_more_often_than_it_can_afford(world: World) -> None:
    """Seen: each record told, when it was delivered, that it was the last one, and lay here behind others. So queries rested
    after each eight of them, read 32 a second, and a status was seconds old, ever more, while 70 came."""
    async with running(follower(world, busy_rest_s=600.0, max_batch=2)) as made:
        await until(made.caught_up.is_set)
        head = await grow(world, 1)
        await until(lambda: made.position == 1)
        for _ in range(9):
            head = await grow(world, 1, head)
        await until(lambda: made.lag == 9)
        made.hurry()
        await until(lambda: made.position >= 9)


def test_a_reader_gathers_for_longer_while_records_keep_coming() -> None:
    gather = Gather(0.2, busy_seconds=1.0)
    assert [gather.waits_s(since_s, 1) for since_s in (0.1, 0.3, float("inf"))] == [1.0, 0.2, 0.2]
    lone = Gather(0.2, busy_s=0.5)
    assert [lone.waits_s(since_s, 1) for since_s in (0.4, 0.6)] == [0.2, 0.0]
    steady = Gather(0.2, busy_s=0.5, busy_events=64)
    assert [steady.waits_s(since_s, events) for since_s, events in ((0.4, 64), (0.4, 63), (0.6, 64))] == [0.2, 0.0, 0.0]


async def test_records_of_few_events_are_not_held_up_however_soon_they_come(world: World) -> None:
    batches: list[int] = []

    async def after(steps: Sequence[FollowedEntry]) -> None:
        if steps:
            batches.append(len(steps))

    lone = Gather(60.0, lambda steps: len(steps) >= 5, busy_s=600.0, busy_events=1_000)
    left, head = {"events": (NodeLeft(node="n", incarnation=1, reason="drained"),)}, GENESIS
    async with running(follower(world, gather=lone), after):
        for _ in range(6):
            batches.clear()
            head = await grow(world, 1, head, **left)
            await until(lambda: batches == [1])


async def test_a_reader_that_gathers_goes_on_when_it_is_hurried(world: World) -> None:
    batches: list[int] = []

    async def after(steps: Sequence[FollowedEntry]) -> None:
        if steps:
            batches.append(len(steps))

    async with running(follower(world, gather=Gather(600.0)), after) as made:
        await grow(world, 3)
        await reads(made, 3)
        assert batches == []
        made.hurry()
        await until(lambda: batches == [3])


async def test_what_came_before_a_fault_is_told_though_it_was_being_gathered(world: World) -> None:
    told: list[int] = []

    async def after(steps: Sequence[FollowedEntry]) -> None:
        told.extend(step.entry.seq for step in steps)

    await unknown_kind(world, await grow(world, 2))
    with pytest.raises(UnknownRecord):
        await follower(world, max_batch=1, gather=Gather(30.0)).run(after)
    assert told == [1, 2]


async def test_what_apply_cannot_fold_ends_it_and_names_the_record(world: World, monkeypatch: Any) -> None:
    await grow(world, 3)

    def broken(self: Tally, record: Any, seq: int) -> str:
        raise KeyError("a job that was never queued")

    monkeypatch.setattr(Tally, "apply", broken)
    with pytest.raises(KeyError) as raised:
        await follower(world).run()
    assert raised.value.__notes__ == [f"tally cannot fold record 1 of pool {POOL}"]


async def test_what_after_raises_ends_it_and_a_new_run_repeats_the_batch(world: World) -> None:
    await grow(world, 3)
    heard: list[int] = []

    async def away(steps: Sequence[FollowedEntry]) -> None:
        raise ConnectionError("a database is away")

    async def after(steps: Sequence[FollowedEntry]) -> None:
        heard.extend(step.entry.seq for step in steps)

    made = follower(world)
    with pytest.raises(ConnectionError):
        await made.run(away)
    async with running(made, after):
        await until(lambda: heard)
    assert heard == [1, 2, 3]


async def test_a_broker_that_is_killed_is_waited_for(world: World) -> None:
    head = await grow(world, 3)
    async with running(follower(world)) as made:
        await reads(made, 3)
        await world.broker.kill()
        await until(lambda: made.problem)
        await world.broker.start()
        await until(lambda: world.js._nc.is_connected)
        await grow(world, 3, head)
        assert await reads(made, 6) == expected(6)
        await until(lambda: not made.problem)


async def test_a_broker_that_is_away_at_the_start_is_waited_for(world: World) -> None:
    await grow(world, 3)
    await snapshot(world, 2)
    await world.broker.kill()
    async with running(follower(world)) as made:
        await until(lambda: made.problem.startswith("the broker does not answer"))
        assert not made.caught_up.is_set()
        await world.broker.start()
        assert await reads(made, 3) == expected(3)
        assert made.resumed_at == 2, "the snapshot was given up because the broker was away"


async def test_a_ledger_that_lost_its_tail_ends_it(world: World) -> None:
    head = await grow(world, 5)

    async def place() -> Restored[Tally]:
        return Restored(Head(9, head.hash), 9, Tally())

    with pytest.raises(LedgerRewound):
        await follower(world, place=place).run()


async def test_a_ledger_whose_beginning_is_gone_is_waited_for_unless_a_snapshot_reaches_so_far(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.ledger.restoring.LOOK_S", 0.05)
    name = ledger_stream(POOL)
    config = (await world.js.stream_info(name)).config
    await world.js.delete_stream(name)
    config.first_seq = 4
    await world.js.add_stream(config)
    head = Head(3, "f" * 64)
    await world.append(head, t_us=30)
    async with running(follower(world)) as made:
        await until(lambda: made.archived == 3)
        assert "no longer has 1 to 3" in made.problem
        assert made.projection.seen == []
        whole = Tally()
        whole.seen = expected(3)  # as another process has saved it
        await SnapshotStore(world.js, POOL).save(NAME, 1, head, 3, whole.dump())
        assert await reads(made, 4) == expected(4)
        assert (made.archived, made.problem) == (0, "")


async def test_a_stop_gives_the_consumer_back(world: World) -> None:
    await grow(world, 3)
    async with running(follower(world)) as made:
        await reads(made, 3)
        assert len(await world.js.consumers_info(ledger_stream(POOL))) == 1
    await asyncio.sleep(0.2)
    assert await world.js.consumers_info(ledger_stream(POOL)) == []


# ------------------------------------------------------------------------------------------------------- snapshots


async def test_a_restart_goes_on_from_the_snapshot(world: World) -> None:
    head = await grow(world, 7)
    async with running(follower(world, snapshot_every=5)) as made:
        await until(lambda: made.saves.saved == 1)
        assert made.counters.folded_anew == 1
    await grow(world, 4, head)
    async with running(follower(world)) as again:
        assert await reads(again, 11) == expected(11)
    assert again.resumed_at == 7
    assert again.counters.records == 4, "what the snapshot holds was read again"
    assert again.counters.folded_anew == 0


async def test_far_behind_its_snapshot_it_still_arrives(world: World) -> None:
    """Many batches, snapshots on the way, a kill in the middle."""
    head = await grow(world, 40)
    await snapshot(world, 3)
    await grow(world, 360, head)
    async with running(follower(world, max_batch=7, snapshot_every=50)) as made:
        await reads(made, 150)
        await until(lambda: made.saves.saved)
    async with running(follower(world, max_batch=7)) as again:
        assert again.resumed_at == 0
        assert await reads(again, 400) == expected(400)
        assert 3 < again.resumed_at <= made.position


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_a_snapshot_of_another_version_is_refolded_from_the_log(
    world: World, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    await grow(world, 5)
    await snapshot(world, 4, version=version, parts=[b"of another time"])
    with caplog.at_level(logging.ERROR, "baton.ledger"):
        async with running(follower(world)) as made:
            assert await reads(made, 5) == expected(5)
    assert (made.resumed_at, made.counters.folded_anew) == (0, 1)
    assert f"is of version {version}, this code reads 1" in caplog.text


async def test_an_upgrade_and_its_undoing_each_find_their_own_snapshot(world: World) -> None:
    head = await grow(world, 6)
    await snapshot(world, 4)
    async with running(follower(world, TallyOfTomorrow, snapshot_every=1)) as new:
        await until(lambda: new.saves.saved)
    await grow(world, 2, head)
    async with running(follower(world)) as old:
        assert await reads(old, 8) == expected(8)
    async with running(follower(world, TallyOfTomorrow)) as new_again:
        assert await reads(new_again, 8) == expected(8)
    assert (new.resumed_at, old.resumed_at, new_again.resumed_at) == (0, 4, 6)


@pytest.mark.parametrize("parts", [[b"no JSON"], [b"[[1]]"], [b"17"]])
async def test_a_snapshot_that_cannot_be_read_is_refolded_from_the_log(world: World, parts: list[bytes]) -> None:
    await grow(world, 5)
    await snapshot(world, 4, parts=parts)
    async with running(follower(world)) as made:
        assert await reads(made, 5) == expected(5)
    assert made.resumed_at == 0


async def test_a_snapshot_that_the_next_record_does_not_fit_costs_one_start_and_no_more(world: World) -> None:
    """It can be read and is wrong: the service ends, as with a wrong ledger, and then the log decides."""
    await grow(world, 5)
    await snapshot(world, 4, parts=[b"[]"])
    with pytest.raises(AssertionError, match="5 comes after 0"):
        await follower(world).run()
    async with running(follower(world)) as made:
        assert await reads(made, 5) == expected(5)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\x00" * len(b)])
async def test_bytes_that_were_damaged_are_refolded_from_the_log(
    world: World, damage: Callable[[bytes], bytes]
) -> None:
    """Damaged before the broker took its digest, so that only the packing shows it."""
    await grow(world, 5)
    await snapshot(world, 4)
    bucket = await world.js.object_store(snapshots_bucket(NAME))
    (info,) = await bucket.list()
    packed = (await bucket.get(info.name)).data
    assert packed is not None
    await bucket.put(info.name, damage(packed), meta=ObjectMeta(name=info.name, description=info.description))
    async with running(follower(world)) as made:
        assert await reads(made, 5) == expected(5)
    assert made.resumed_at == 0


async def test_a_failed_save_is_counted_and_tried_again_and_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = True
    put = SnapshotStore.put

    async def sometimes(self: SnapshotStore, *args: Any) -> None:
        if full:
            raise APIError(code=503, description="insufficient storage")
        await put(self, *args)

    monkeypatch.setattr(SnapshotStore, "put", sometimes)
    head = await grow(world, 5)
    with caplog.at_level(logging.WARNING, "baton.ledger"):
        async with running(follower(world, snapshot_every=4)) as made:
            await until(lambda: made.saves.failed == 1)
            assert "no snapshot at 5" in caplog.text
            full = False
            await grow(world, 4, head)
            await until(lambda: made.saves.saved == 1)
            assert await reads(made, 9) == expected(9)
    assert made.saves.failed == 1


async def test_a_state_that_cannot_be_dumped_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    head = await grow(world, 5)

    def broken(self: Tally) -> Any:
        yield b"one part"
        raise RuntimeError("a bug")

    monkeypatch.setattr(Tally, "dump", broken)
    async with running(follower(world, snapshot_every=4)) as made:
        await until(lambda: made.saves.failed == 1)
        await grow(world, 1, head)
        assert await reads(made, 6) == expected(6)
    assert await SnapshotStore(world.js, POOL).load(NAME, 1, list) is None


async def test_a_large_state_is_saved_without_holding_up_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 parts of 100 KB, 2 ms each to make: nearly a second in one piece."""
    await grow(world, 1)

    def large(self: Tally) -> Any:
        for _ in range(400):
            end = asyncio.get_running_loop().time() + 0.002
            while asyncio.get_running_loop().time() < end:
                pass
            yield bytes(100_000)

    monkeypatch.setattr(Tally, "dump", large)
    loop = asyncio.get_running_loop()
    worst = 0.0
    async with running(follower(world, snapshot_every=1)) as made:
        while not made.saves.saved:
            before = loop.time()
            await asyncio.sleep(0)
            worst = max(worst, loop.time() - before)
            await asyncio.sleep(0.001)
    assert worst < 0.4, f"the event loop stood still for {worst:.2f} s"
    found = await SnapshotStore(world.js, POOL).load(NAME, 1, lambda parts: sum(map(len, parts)))
    assert found is not None
    assert found.value == 400 * 100_000


async def test_a_projection_may_keep_its_place_itself(world: World) -> None:
    """As history's documents do in MongoDB."""
    head = await grow(world, 5)
    kept: list[Restored[Tally]] = []

    async def place() -> Restored[Tally] | None:
        return kept[-1] if kept else None

    made = follower(world, place=place, snapshot_every=1)

    async def after(steps: Sequence[FollowedEntry]) -> None:
        if steps:
            kept.append(Restored(made.head, made.position, made.projection))

    async with running(made, after):
        await until(lambda: kept and kept[-1].position == 5)
    await grow(world, 2, head)
    async with running(made, after):
        await until(lambda: kept[-1].position == 7)
        assert made.projection.seen == expected(7)
    assert made.resumed_at == 5
    assert made.saves.saved == 0
    assert await SnapshotStore(world.js, POOL).load(NAME, 1, list) is None


# --------------------------------------------------------------------------------------------------- unknown kinds


async def test_an_unknown_kind_ends_it_with_what_came_before_applied(world: World) -> None:
    await unknown_kind(world, await grow(world, 3))
    made = follower(world)
    with pytest.raises(UnknownRecord, match=r"record 4 of pool main .*'job\.promoted'.* at least as new"):
        await made.run()
    assert made.projection.seen == expected(3)
