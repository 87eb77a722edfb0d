"""Readers: each record once and in order, through kills of the broker; a stream that is not the same stops them."""

import asyncio
import shutil
from typing import Any

import pytest

from libs.ledger.chain import GENESIS, ChainEntry, Head, LedgerGap, LedgerRewound, UnknownRecord
from libs.ledger.reader import LedgerReader
from libs.ledger.tail import Tail
from libs.ledger.verify import verify
from schemas.inbox import Tick
from schemas.subjects import inbox_stream, ledger
from tests.ledger.world import POOL, World


async def take(reader: LedgerReader, count: int) -> list[ChainEntry]:
    """That many entries; a single `next` gives what has arrived."""
    return [e async for batch in reader.read_to(reader.position + count) for e in batch]


async def test_a_reader_sees_all_and_resumes_where_it_was(world: World) -> None:
    head = await world.chain(7)
    first = LedgerReader(world.js, POOL)
    early = [e async for batch in first.read_to(4) for e in batch]
    second = LedgerReader(world.js, POOL, first.head, first.position)
    late = [e async for batch in second.read_to(7) for e in batch]
    assert [e.seq for e in early + late] == list(range(1, 8))
    assert all(e.valid for e in early + late)
    assert (second.head, second.position, second.lag()) == (head, 7, 0)


async def test_void_records_move_the_position_and_not_the_head(world: World) -> None:
    head = await world.chain(2)
    await world.append(GENESIS)
    reader = LedgerReader(world.js, POOL)
    entries = [e async for batch in reader.read_to(3) for e in batch]
    assert [e.valid for e in entries] == [True, True, False]
    assert (reader.head, reader.position, reader.voids) == (head, 3, 1)
    resumed = LedgerReader(world.js, POOL, reader.head, reader.position)
    await world.append(head)
    assert [e.valid for e in await take(resumed, 1)] == [True]


async def test_without_news_it_gives_an_empty_list(world: World) -> None:
    reader = LedgerReader(world.js, POOL)
    async for entries in reader.follow(idle_s=0.05):
        assert entries == []
        break
    await reader.close()


@pytest.mark.faults
async def test_kills_of_the_broker_make_neither_gap_nor_duplicate(world: World) -> None:
    reader = LedgerReader(world.js, POOL)
    seen: list[int] = []

    async def follow() -> None:
        async for entries in reader.read_to(60):
            seen.extend(e.seq for e in entries if e.valid)

    following = asyncio.create_task(follow())
    head = GENESIS
    for _ in range(3):
        for _ in range(20):
            head = await world.append(head)
        await world.broker.restart()
        world.js = await world.connect()
    await asyncio.wait_for(following, 30)
    assert seen == list(range(1, 61))
    assert reader.head == head


async def test_a_reader_waits_for_a_broker_that_is_away(world: World) -> None:
    await world.chain(1)
    reader = LedgerReader(world.js, POOL)
    assert len(await take(reader, 1)) == 1
    await world.broker.kill()
    assert await reader.next(wait_s=0.1) == []
    await world.broker.start()
    await (await world.connect()).publish(ledger(POOL), b"void")
    entries = [e async for batch in reader.read_to(2) for e in batch]
    assert [e.valid for e in entries] == [False]


@pytest.mark.faults
async def test_a_lost_tail_stops_the_reader(world: World) -> None:
    head = await world.chain(3)
    reader = LedgerReader(world.js, POOL)
    assert len(await take(reader, 3)) == 3
    await world.broker.kill()
    shutil.copytree(world.broker.folder / "store", world.broker.folder / "backup")
    await world.broker.start()
    js = await world.connect()
    await js.publish(ledger(POOL), b"void")
    assert len([e async for batch in reader.read_to(4) for e in batch]) == 1
    await world.broker.kill()
    shutil.rmtree(world.broker.folder / "store")
    shutil.move(world.broker.folder / "backup", world.broker.folder / "store")
    await world.broker.start()
    with pytest.raises(LedgerRewound, match="ends at 3, but 4"):
        async for _ in reader.follow(idle_s=0.2):
            pass
    assert head.seq == 3


async def test_a_stream_that_was_made_anew_stops_the_reader(world: World) -> None:
    await world.chain(3)
    reader = LedgerReader(world.js, POOL, Head(2, "0" * 64), 2)
    with pytest.raises(LedgerRewound, match="record 2 is not the one that was read"):
        await reader.next()


async def test_an_unknown_event_kind_stops_the_reader_after_what_came_before(world: World) -> None:
    head = await world.chain(2)
    link = f'"prev_seq": {head.seq}, "prev_hash": "{head.hash}"'
    rest = '"pool": "main", "inbox_seq": 0, "t_us": 1, "writer": "w"'
    await world.js.publish(ledger(POOL), f'{{"v": 1, {link}, {rest}, "events": [{{"kind": "job.promoted"}}]}}'.encode())
    reader = LedgerReader(world.js, POOL)
    assert len(await take(reader, 2)) == 2
    for _ in range(2):  # never skipped, however often it is tried
        with pytest.raises(UnknownRecord, match="ledger record 3"):
            await reader.next(wait_s=5)
    assert reader.position == 2


async def test_what_retention_took_is_said_and_a_hole_in_the_middle_stops(world: World) -> None:
    await world.put(*(Tick() for _ in range(6)))
    stream = inbox_stream(POOL)
    await world.js.purge_stream(stream, seq=3)
    tail = Tail(world.js, stream, 0, may_expire=True)
    assert [m.seq for _ in range(4) for m in await tail.messages(1, 5)] == [3, 4, 5, 6]
    assert tail.expired == 2
    await tail.close()
    with pytest.raises(LedgerGap, match="no longer has 1 to 2"):
        await Tail(world.js, stream, 0).messages(10, 5)
    await world.js.delete_msg(stream, 4)
    holed = Tail(world.js, stream, 2, may_expire=True)
    assert [m.seq for m in await holed.messages(10, 5)] == [3]
    with pytest.raises(LedgerGap, match="no message 4 to 4"):
        await holed.messages(10, 5)


async def test_a_reader_whose_request_was_lost_asks_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that waits long. A look for a silence had come as late as that each counted as the first after a pause."""
    await world.put(Tick())
    real, lost = world.js._nc.publish, []

    async def publish(subject: str, *args: Any, **named: Any) -> None:
        if ".CONSUMER.MSG.NEXT." in subject and not lost:
            lost.append(subject)
        else:
            await real(subject, *args, **named)

    monkeypatch.setattr(world.js._nc, "publish", publish)
    assert [m.seq for m in await Tail(world.js, inbox_stream(POOL), 0).messages(1, 30)] == [1]
    assert lost


async def test_a_cancelled_read_loses_nothing(world: World) -> None:
    tail = Tail(world.js, inbox_stream(POOL), 0)
    seen: list[int] = []

    async def read_and_cancel() -> None:
        for n in range(2000):
            reading = asyncio.create_task(tail.messages(7, 0.5))
            for _ in range(n % 5):
                await asyncio.sleep(0)
            reading.cancel()  # does nothing to one that is done
            try:
                seen.extend(m.seq for m in await reading)
            except asyncio.CancelledError:
                await asyncio.sleep(0.001)
            if len(seen) >= 300:
                return

    await asyncio.gather(read_and_cancel(), world.put(*(Tick() for _ in range(300))))
    while len(seen) < 300:
        seen.extend(m.seq for m in await tail.messages(100, 5))
    assert seen == list(range(1, 301))


async def test_the_audit_reads_the_real_ledger(world: World) -> None:
    await world.chain(3)
    await world.js.publish(ledger(POOL), b"void")
    report = await verify(world.js, POOL)
    assert (report.records, report.void, report.violations) == (3, 1, [])
