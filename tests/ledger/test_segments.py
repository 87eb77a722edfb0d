"""A ledger in segments is one ledger: one chain, one numbering, wherever its writers die while they roll."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from libs.bus.cancel import cancel
from libs.bus.streams import bind, provision
from libs.ledger import rolling
from libs.ledger.chain import GENESIS, Head
from libs.ledger.follower import Follower
from libs.ledger.reader import LedgerReader
from libs.ledger.rolling import SEAL_BYTES, Rolling
from libs.ledger.segments import Segment, SegmentState, last_seq, name_of, segments
from libs.ledger.verify import export, verify_files
from libs.ledger.writer import LedgerWriter
from schemas.ledger import SegmentSealed
from schemas.subjects import inbox_stream, ledger
from tests.kit.waiting import until
from tests.ledger.broker import Broker
from tests.ledger.tally import Tally
from tests.ledger.test_fill import fill
from tests.ledger.test_inbox_trim import large
from tests.ledger.toy import Toy, admitted
from tests.ledger.world import POOL, World


@pytest.fixture(autouse=True)
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer looks at its segment often."""
    monkeypatch.setattr("libs.ledger.writer._ASK_S", 0.05)


@pytest.fixture
async def small(broker: Broker) -> AsyncIterator[World]:
    """Segments of 1 MiB."""
    world = World(broker, [])
    await world.begin(scale=0.001)
    yield world
    await world.end()


async def ask_to_roll(world: World) -> None:
    await rolling.ask_to_roll(world.js, POOL)


async def rolled(world: World, count: int) -> list[Segment]:
    async def so_many() -> list[Segment]:
        found = await segments(world.js, POOL)
        return found if len(found) == count and found[-1].state is SegmentState.OPEN else []

    found: list[Segment] = await until(so_many)
    return found


async def submit(world: World, writer: LedgerWriter[Toy], *numbers: int) -> None:
    for number in numbers:
        await world.put(admitted(number))
        await world.decided(writer)


async def test_a_full_segment_is_followed_by_another_and_readers_see_one_ledger(small: World, broker: Broker) -> None:
    (only,) = await segments(small.js, POOL)
    follower = Follower(small.js, POOL, Tally, name="tally")
    following = asyncio.create_task(follower.run())
    writer = small.writer("one")
    small.start(writer)
    for part in range(4):
        await small.put(*(large(part * 100 + n) for n in range(90)))
        await small.decided(writer)
        await small.js.purge_stream(inbox_stream(POOL))  # as placement trims it

    async def gone_on() -> list[Segment]:
        found = await segments(small.js, POOL)
        return found if len(found) >= 2 and found[-1].state is SegmentState.OPEN else []

    found = await until(gone_on)
    assert [s.state for s in found] == [SegmentState.SEALED] * (len(found) - 1) + [SegmentState.OPEN]
    for before, after in itertools.pairwise(found):
        assert after.first == before.last + 1
        assert before.bytes <= only.max_bytes + SEAL_BYTES

    entries = await small.entries()
    assert [e.seq for e in entries] == list(range(1, found[-1].last + 1))
    assert all(e.valid for e in entries)
    seals = [(e.seq, event) for e in entries for event in e.record.events if isinstance(event, SegmentSealed)]
    assert [(s.first - 1, s.name) for s in found[1:]] == [(seq, seal.next) for seq, seal in seals]
    assert len((await small.folded()).seen) == 360
    await until(lambda: follower.position == found[-1].last)
    await cancel(following)

    await broker.restart()
    await submit(small, writer, 9_999)
    assert await last_seq(small.js, POOL) == found[-1].last + 1


async def test_a_ledger_in_segments_is_one_file_that_verifies(
    small: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    writer = small.writer("one")
    small.start(writer)
    for turn in range(3):
        await submit(small, writer, turn)
        await ask_to_roll(small)
        await rolled(small, turn + 2)
    path = tmp_path_factory.mktemp("out") / "ledger.jsonl"
    end = await export(small.js, POOL, path)
    assert end.messages == await last_seq(small.js, POOL)
    report = verify_files([path])
    assert (report.records, report.void, report.head_hash) == (end.messages, 0, writer.head.hash)


async def test_a_sealed_segment_takes_nothing_more(small: World) -> None:
    writer = small.writer("one")
    small.start(writer)
    await submit(small, writer, 1)
    await ask_to_roll(small)
    first, second = await rolled(small, 2)
    config = (await small.js.stream_info(first.name)).config
    assert (config.sealed, config.deny_purge, config.deny_delete) == (True, True, True)
    with pytest.raises(APIError, match="sealed"):
        await small.js.publish((config.subjects or [""])[0], b"{}")
    for change in (config.evolve(sealed=False), config.evolve(deny_purge=False)):
        with pytest.raises(APIError):
            await small.js.update_stream(change)
    assert second.first == first.last + 1


STEPS = ("stage", "seal", "before-open", "after-open")


@pytest.mark.parametrize("step", STEPS)
async def test_whoever_comes_next_finishes_a_roll(small: World, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer dies behind each step of the roll."""
    reached = asyncio.Event()

    async def die(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def finish_and_die(self: Rolling, seal_seq: int) -> None:
        await finish(self, seal_seq)
        await die()

    finish = Rolling.finish
    first = small.writer("first", snapshots=None)
    running = small.start(first)
    await submit(small, first, 1)
    with monkeypatch.context() as patched:
        match step:
            case "stage":
                patched.setattr("libs.ledger.writer.append", die)
            case "seal":
                patched.setattr(Rolling, "finish", die)
            case "before-open":
                patched.setattr(Rolling, "_open", die)
            case _:
                patched.setattr(Rolling, "finish", finish_and_die)
        await ask_to_roll(small)
        await until(reached.is_set)
        await small.stop(running)
    reader = LedgerReader(small.js, POOL)
    follower = Follower(small.js, POOL, Tally, name="tally")
    following = asyncio.create_task(follower.run())
    second = small.writer("second", snapshots=None)
    small.start(second)
    await submit(small, second, 2, 3)
    found = await rolled(small, 2)  # unsealed (`stage`), the first is still marked: it was asked to roll
    assert [s.state for s in found] == [SegmentState.SEALED, SegmentState.OPEN]
    await submit(small, second, 4)
    read = [e async for batch in reader.read_to(await last_seq(small.js, POOL)) for e in batch]
    await reader.close()
    assert all(e.valid for e in read)
    assert set((await small.folded()).seen) == set((await small.folded()).seen)
    assert len((await small.folded()).seen) == 4
    await until(lambda: follower.position == read[-1].seq)
    await cancel(following)


async def test_a_reader_waits_at_a_seal_and_reads_nothing_behind_it(small: World) -> None:
    """The writer died when the seal was committed, and somebody published there before the broker sealed the stream."""
    head = await small.chain(2)
    seal = SegmentSealed(first_seq=1, next=name_of(POOL, 4))
    head = await small.append(head, events=(seal,))
    await small.js.publish(ledger(POOL), b"a straggler")
    fresh, resumed = LedgerReader(small.js, POOL), LedgerReader(small.js, POOL, head)
    assert [e.seq for e in await fresh.next(wait_s=5)] == [1, 2, 3]
    for reader in (fresh, resumed):
        assert await reader.next(wait_s=0.3) == []
        assert "sealed at 3" in reader.problem
        assert reader.position == 3
    writer = small.writer("one", snapshots=None)
    small.start(writer)
    await submit(small, writer, 1)
    for reader in (fresh, resumed):
        (entry,) = await reader.next(wait_s=30)
        assert (entry.seq, entry.valid, entry.record.prev_seq) == (4, True, 3)
        await reader.close()


async def test_a_reader_of_some_kinds_goes_on_behind_a_seal(small: World) -> None:
    """It stood before the seal for ever: with the first roll the granter of leases heard of no node any more, and all work of
    the pool was over when its leases had ended (the simulation, with rolls among its faults)."""
    writer = small.writer("one")
    small.start(writer)
    await submit(small, writer, 1)
    reader = LedgerReader(small.js, POOL, only={"node.joined"})
    async with asyncio.timeout(20):
        while reader.position < writer.position:
            await reader.next(wait_s=0.1)
        await ask_to_roll(small)
        await rolled(small, 2)
        await submit(small, writer, 2)
        while reader.position < writer.position:
            await reader.next(wait_s=0.1)
    assert reader.head == writer.head
    await reader.close()


async def test_two_writers_at_the_roll(small: World) -> None:
    """Each finds its append refused or counted on, whichever segment it thought was open; no input is decided twice."""
    js = [await small.connect(), await small.connect()]
    writers = [small.writer(name, js[i], takeover_s=0.05) for i, name in enumerate(("one", "two"))]
    for writer in writers:
        small.start(writer)
    for turn in range(4):
        for number in range(5):
            await small.put(admitted(turn * 10 + number))
        await ask_to_roll(small)
        await small.decided(*writers)
        await rolled(small, turn + 2)
    assert len((await small.folded()).seen) == 20  # the toy raises when anything is decided twice
    assert [s.state for s in await segments(small.js, POOL)] == [SegmentState.SEALED] * 4 + [SegmentState.OPEN]


async def test_a_stale_writer_cannot_append_over_the_roll(small: World) -> None:
    """Whichever segment it thinks is open: before the seal was made, and behind it."""
    writer = small.writer("one")
    small.start(writer)
    for count in (2, 3):
        await submit(small, writer, count)
        before = (await segments(small.js, POOL))[-1]
        stale = writer.position
        await ask_to_roll(small)
        await rolled(small, count)
        for position in (stale, writer.position):
            with pytest.raises((APIError, NoStreamResponseError)):
                await small.js.publish(
                    before.subject, b"{}", headers={"Nats-Expected-Last-Sequence": str(position)}, timeout=2
                )


async def test_no_subject_goes_from_one_segment_to_another(small: World) -> None:
    """A server of a cluster that missed the roll would refuse the stream that overlaps with what it has; all then drop it."""
    writer = small.writer("one")
    small.start(writer)
    had: dict[str, str] = {}
    for count in range(2, 5):
        await submit(small, writer, count)
        await ask_to_roll(small)
        for segment in await rolled(small, count):
            assert had.setdefault(segment.subject, segment.name) == segment.name


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_segment_that_is_only_said_to_be_staged_is_not_deleted(small: World, sealed: bool) -> None:
    """A server that was away lists what it knew then. Whether a segment can ever be opened, the record before it says."""
    head = await small.chain(1)
    assert await Rolling(small.js, POOL).stage(3)
    await small.append(head, events=(SegmentSealed(first_seq=1, next=name_of(POOL, 3)),) if sealed else ())
    await Rolling(small.js, POOL).stage(9)
    names = [s.name for s in await segments(small.js, POOL)]
    assert (name_of(POOL, 3) in names) is sealed


async def test_a_staged_segment_that_was_overtaken_is_dropped(small: World) -> None:
    writer = small.writer("one")
    await small.chain(1)
    other = Rolling(small.js, POOL)
    assert await other.stage(3)
    await small.append(GENESIS)  # 2: no seal, so a segment from 3 on can never be
    small.start(writer)
    await submit(small, writer, 1)
    assert [s.name for s in await segments(small.js, POOL)] == ["LEDGER-main"]


async def test_without_room_for_another_the_segment_is_used_to_its_end(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = small.js.add_stream

    async def no_room(config: StreamConfig, **_: object) -> object:
        if str(config.name).startswith("SEGMENT"):
            config = config.evolve(max_bytes=1 << 60)
        return await added(config)

    monkeypatch.setattr(small.js, "add_stream", no_room)
    writer = small.writer("one")
    small.start(writer)
    await submit(small, writer, 1)
    await ask_to_roll(small)
    await submit(small, writer, 2, 3)
    assert [s.state for s in await segments(small.js, POOL)] == [SegmentState.OPEN]
    assert rolling.ROLL_AT < 0.95, "there is room left for what must be said"


async def test_a_record_that_does_not_fit_goes_into_another_segment(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is not full enough for a roll, and what is left of it is less than the record."""
    monkeypatch.setattr("libs.ledger.writer._FULL_PAUSES_S", (0.05,))
    monkeypatch.setattr("libs.ledger.batches._INPUT_BYTES", 600 * 1024)
    head = await padded(small, 700 * 1024)
    monkeypatch.setattr("libs.ledger.batches._BUSY_EVENTS", 0)  # all in one record
    monkeypatch.setattr("libs.ledger.batches._ENOUGH_BYTES", 600 * 1024)
    writer = small.writer("one", batch=100, linger_ms=60_000, snapshots=None)
    await small.put(*(large(n) for n in range(100)))
    small.start(writer)
    await small.decided(writer)
    first, second = await rolled(small, 2)
    assert first.last == head.seq + 1, "the seal is all that came"
    assert second.last >= second.first
    assert len((await small.folded()).seen) == 100


async def test_a_segment_without_room_for_its_seal_gets_some(small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was used to its end, as there was no room for another; now there is."""
    monkeypatch.setattr("libs.ledger.writer._FULL_PAUSES_S", (0.05,))
    (only,) = await segments(small.js, POOL)
    await fill(small)
    writer = small.writer("one", snapshots=None)
    small.start(writer)
    await submit(small, writer, 1)
    first, _ = await rolled(small, 2)
    assert only.max_bytes < first.bytes <= only.max_bytes + SEAL_BYTES
    assert len((await small.folded()).seen) == 1


async def padded(world: World, size: int) -> Head:
    """Records without an input, until the segment holds `size` bytes or a little less."""
    head = GENESIS
    while (left := size - (await segments(world.js, POOL))[-1].bytes) > 1200:
        head = await world.append(head, writer="x" * min(left - 700, 200 * 1024))
    return head


async def test_provisioning_a_ledger_in_segments_makes_no_second_one(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = small.writer("one", snapshots=None)
    running = small.start(writer)
    await submit(small, writer, 1)
    await ask_to_roll(small)
    first, second = await rolled(small, 2)
    await provision(small.js, [POOL], scale=0.001)
    await bind(small.js, [POOL], wait_s=0)
    await provision(small.js, [POOL], scale=0.002)
    assert (await small.js.stream_info(second.name)).config.max_bytes > second.max_bytes, "the open one grows"

    reached = asyncio.Event()

    async def die(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    await submit(small, writer, 2)
    monkeypatch.setattr(Rolling, "_open", die)  # sealed, and not open again
    await ask_to_roll(small)
    await until(reached.is_set)
    await small.stop(running)
    await small.js.delete_stream(first.name)  # archived
    await provision(small.js, [POOL], scale=0.001)
    await bind(small.js, [POOL], wait_s=0)
    assert [s.state for s in await segments(small.js, POOL)] == [SegmentState.SEALED, SegmentState.STAGED]
