"""Segments go to a folder and come back; none is deleted that is not there, byte for byte, or that a reader needs."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.errors import ConnectionClosedError

from libs.core.state.formats import NEWEST
from libs.ledger import archive as ledger_archive
from libs.ledger.archive import NotArchived, archive, files_of, restore, restored
from libs.ledger.chain import GENESIS, Head, LedgerGap
from libs.ledger.export import BadLedgerFile, FileStart, LedgerFile, LedgerFileWriter
from libs.ledger.follower import Follower
from libs.ledger.reader import LedgerReader
from libs.ledger.readers import KNOWN, Declared, Readers
from libs.ledger.segments import Segment, SegmentState, last_seq, segments
from libs.ledger.tail import Stored
from libs.ledger.verify import verify, verify_files
from tests.kit.tasks import beside
from tests.kit.waiting import until
from tests.ledger.broker import Broker
from tests.ledger.tally import Tally
from tests.ledger.test_segments import ask_to_roll, rolled, submit
from tests.ledger.toy import admitted
from tests.ledger.world import POOL, World


@pytest.fixture(autouse=True)
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer looks at its segment often."""
    monkeypatch.setattr("libs.ledger.writer._ASK_S", 0.05)


@pytest.fixture
async def three(broker: Broker) -> AsyncIterator[World]:
    """Three sealed segments, the second with a void message in it, and an open one."""
    world = World(broker, [])
    await world.begin(scale=0.001)
    writer = world.writer("one")
    task = world.start(writer)
    for turn in range(3):
        await submit(world, writer, turn)
        if turn == 1:
            await world.append(GENESIS)
            await submit(world, writer, 50)
        await ask_to_roll(world)
        await rolled(world, turn + 2)
    await submit(world, writer, 9)
    await world.stop(task)
    yield world
    await world.end()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archive")


def told(positions: Mapping[str, int | None]) -> Callable[[], Awaitable[Mapping[str, int | None]]]:
    async def resumes() -> Mapping[str, int | None]:
        return positions

    return resumes


async def everything(world: World) -> list[tuple[int, bool, str]]:
    return [(e.seq, e.valid, e.hash) for e in await world.entries()]


async def test_segments_are_archived_deleted_and_restored(three: World, folder: Path) -> None:
    before, last = await everything(three), await last_seq(three.js, POOL)
    assert not all(valid for _, valid, _ in before)
    done = await archive(three.js, POOL, folder)
    assert [one.kept for one in done] == ["not asked to delete"] * 3
    assert [one.path for one in done] == files_of(folder, POOL)
    whole = verify_files(files_of(folder, POOL))
    assert whole.void == 1

    done = await archive(three.js, POOL, folder, resumes=told({"placement": last, "history-feed": last}))
    assert [one.kept for one in done] == ["", "", "the last sealed one"]
    assert [s.state for s in await segments(three.js, POOL)] == [SegmentState.SEALED, SegmentState.OPEN]
    with pytest.raises(LedgerGap, match="baton ledger restore"):
        await everything(three)
    with pytest.raises(LedgerGap):
        await verify(three.js, POOL)
    report = await verify(three.js, POOL, folder)
    assert (report.last_seq, report.void) == (last, 1)
    late = LedgerReader(three.js, POOL, _head(files_of(folder, POOL)[1]))
    read = [e async for batch in late.read_to(last) for e in batch]
    assert (read[0].seq, all(e.valid for e in read)) == (done[2].segment.first, True)
    await late.close()

    there: list[str] = []
    back = [one.first async for one in restored(three.js, POOL, files_of(folder, POOL), there.append)]
    assert back == [done[1].segment.first, 1]
    assert ["nothing needs to be restored" in why for why in there] == [True], "and it keeps none of the others away"
    assert await everything(three) == before
    assert [s.state for s in await segments(three.js, POOL)] == [SegmentState.SEALED] * 3 + [SegmentState.OPEN]
    writer = three.writer("two")  # folds all of it
    three.start(writer)
    await submit(three, writer, 77)
    again = await archive(three.js, POOL, folder, resumes=told({"placement": last}))
    assert [one.kept for one in again] == ["", "", "the last sealed one"], "what was restored is as it was"


async def test_who_needs_archived_records_waits_until_they_are_restored(
    three: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade to another layout of snapshots: readers ended, and were started again for ever."""
    monkeypatch.setattr("libs.ledger.restoring.LOOK_S", 0.05)
    before, last = await everything(three), await last_seq(three.js, POOL)
    await archive(three.js, POOL, folder, resumes=told({"placement": 10_000}))
    lacks = (await segments(three.js, POOL))[0].first - 1
    reader = Follower(three.js, POOL, Tally, name="tally", idle_s=0.1)
    writer = three.writer("two")
    writing = three.start(writer)
    async with beside(reader.run()):
        await until(lambda: reader.archived and writer.archived)
        for one in (reader, writer):
            assert (one.archived, "baton ledger restore" in one.problem) == (lacks, True)
        assert not writer.ready.is_set()
        await three.put(admitted(88))  # what comes meanwhile waits
        resume = await Readers(three.js).resumes(POOL)
        assert {name: at for name, at in resume.items() if at is not None} == {"tally": 0, "placement": 0}
        _ = [one async for one in restored(three.js, POOL, files_of(folder, POOL))]
        kept = await archive(three.js, POOL, folder, resumes=told(resume))
        assert all("resumes at 0" in one.kept for one in kept[:-1]), "what they wait for goes away again"
        await reader.caught_up.wait()
        await until(lambda: writer.position > last and reader.position == writer.position)
        assert [seq for seq, _ in reader.projection.seen[:last]] == [seq for seq, _, _ in before]
        assert [(one.archived, one.problem) for one in (reader, writer)] == [(0, "")] * 2
    await three.stop(writing)


async def test_restores_beside_each_other_and_after_one_that_was_ended_make_one_segment(
    three: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in simulation: each took the other's for one that was ended, and an empty segment was sealed."""
    before = await everything(three)
    await archive(three.js, POOL, folder, resumes=told({"placement": 10_000}))
    first, second = files_of(folder, POOL)[:2]
    made = await asyncio.gather(*(restore(three.js, POOL, second) for _ in range(3)), return_exceptions=True)
    assert any(isinstance(one, Segment) for one in made)
    assert all(isinstance(one, Segment | NotArchived) for one in made), made

    monkeypatch.setattr("libs.ledger.archive._same", _ended)
    with pytest.raises(ConnectionClosedError):
        await restore(three.js, POOL, first)
    monkeypatch.undo()
    assert [s.state for s in await segments(three.js, POOL)].count(SegmentState.RESTORING) == 1
    await restore(three.js, POOL, first)
    assert await everything(three) == before


async def test_one_that_was_put_back_alone_is_archived_again(three: World, folder: Path) -> None:
    """What followed it is in the folder, and need not be put back as well."""
    last = await last_seq(three.js, POOL)
    before = await archive(three.js, POOL, folder, resumes=told({"placement": last}))
    await restore(three.js, POOL, files_of(folder, POOL)[0])
    again = await archive(three.js, POOL, folder, resumes=told({"placement": last}))
    assert [(one.last, one.kept) for one in again] == [(before[0].last, ""), (before[2].last, "the last sealed one")]
    await restore(three.js, POOL, files_of(folder, POOL)[0])
    files_of(folder, POOL)[1].unlink()
    with pytest.raises(LedgerGap, match="restore it from the archive"):
        await archive(three.js, POOL, folder)


async def test_archiving_goes_on_past_what_another_has_archived_and_deleted_meanwhile(
    three: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ledger_archive.check

    async def another_is_quicker(*args: Any) -> None:
        monkeypatch.setattr(ledger_archive, "check", check)
        await archive(three.js, POOL, folder, resumes=told({"placement": 10_000}))
        await check(*args)

    monkeypatch.setattr(ledger_archive, "check", another_is_quicker)
    done = await archive(three.js, POOL, folder, resumes=told({"placement": 10_000}))
    assert [one.kept for one in done] == ["the last sealed one"]
    assert len(files_of(folder, POOL)) == 3


async def _ended(*_: Any) -> None:
    raise ConnectionClosedError


def _head(path: Path) -> Head:
    file = LedgerFile(path)
    for _ in file:
        pass
    return file.head


async def test_a_segment_that_a_reader_needs_is_kept(three: World, folder: Path) -> None:
    first = (await segments(three.js, POOL))[0]
    done = await archive(three.js, POOL, folder, resumes=told({"placement": 10_000, "slow": first.last - 1}))
    assert done[0].kept == f"slow resumes at {first.last - 1}"
    done = await archive(three.js, POOL, folder, resumes=told({}))
    assert {one.kept for one in done} == {"no reader is declared", "the last sealed one"}
    assert len(await segments(three.js, POOL)) == 4


async def test_a_reader_that_has_not_declared_itself_is_waited_for(three: World, folder: Path) -> None:
    """Found by seed 30425: telemetry had not begun when all others had passed the first segment."""
    readers, last = Readers(three.js), await last_seq(three.js, POOL)

    async def declare(name: str) -> None:
        place = {"format": NEWEST, "position": last, "resume": last}
        await readers.declare(Declared(pool=POOL, name=name, process="here", release="0", **place))

    async def archived() -> list[str]:
        return [
            one.kept
            for one in await archive(three.js, POOL, folder, resumes=partial(readers.resumes, POOL, without=["vault"]))
        ]

    for name in KNOWN - {"telemetry", "vault"}:
        await declare(name)
    for one in await readers.declared(POOL):
        if one.process != "here":  # the writer of these segments
            await readers.forget(one)
    assert await archived() == ["telemetry is not declared"] * 2 + ["the last sealed one"]
    await declare("telemetry")
    assert await archived() == ["", "", "the last sealed one"]


async def test_a_reader_that_needs_a_segment_by_now_is_heard(three: World, folder: Path) -> None:
    """To verify what lies before it may take hours."""
    positions = {"placement": 10_000}

    async def resumes() -> dict[str, int]:
        found = dict(positions)
        positions["restored"] = 0
        return found

    done = await archive(three.js, POOL, folder, resumes=resumes)
    assert [one.kept for one in done] == ["", "restored resumes at 0", "the last sealed one"]


async def test_a_damaged_or_foreign_file_deletes_nothing(three: World, folder: Path) -> None:
    await archive(three.js, POOL, folder)
    path = files_of(folder, POOL)[0]
    good = path.read_bytes()
    everyone = {"placement": 10_000}
    path.write_bytes(good[:-20])
    with pytest.raises(BadLedgerFile):
        await archive(three.js, POOL, folder, resumes=told(everyone))

    lines = gzip.decompress(good).decode().splitlines()
    changed = json.loads(lines[1])
    changed["payload"] = changed["payload"].replace('"writer":"one"', '"writer":"two"')
    lines[1] = json.dumps(changed)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    with pytest.raises((BadLedgerFile, NotArchived)):
        await archive(three.js, POOL, folder, resumes=told(everyone))
    assert len(await segments(three.js, POOL)) == 4
    path.write_bytes(good)
    with pytest.raises(NotArchived, match="nothing needs to be restored"):
        await restore(three.js, POOL, path)


async def test_what_is_restored_must_be_what_the_ledger_goes_on_from(
    three: World, folder: Path, broker: Broker
) -> None:
    """A file of another ledger, with as many records."""
    await archive(three.js, POOL, folder, resumes=told({"placement": 10_000}))
    path = files_of(folder, POOL)[1]
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    seal = json.loads(lines[-2]["payload"])
    assert seal["events"][0]["kind"] == "segment.sealed"
    original = LedgerFile(path)
    forged = folder / "forged" / path.name
    forged.parent.mkdir()
    with LedgerFileWriter(forged, FileStart(POOL, original.start.first_seq, original.start.head)) as out:
        for stored in original:
            payload = stored.payload
            if stored.seq == lines[-2]["seq"]:
                payload = payload.replace(b'"writer":"one"', b'"writer":"two"')
            out.add(Stored(stored.seq, "", stored.headers, payload, stored.time_us))
        out.finish()
    with pytest.raises(NotArchived, match="of another one"):
        await restore(three.js, POOL, forged)
    assert len(await segments(three.js, POOL)) == 2, "and nothing of it is left"
