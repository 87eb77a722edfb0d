"""Documents equal the fold of the ledger, whatever happens to MongoDB or to the service in the meantime."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from nats.aio.client import Client
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from libs.adapters.mongo import store as mongo_store
from libs.adapters.mongo.store import JobStore, ReaderPosition, StoreAway
from libs.bus.queries import NothingFound
from libs.client.listing import pages
from libs.core.projections.history import JobStory, advance, job_events
from libs.embedded.servers import MONGO
from libs.ledger.chain import LedgerRewound
from schemas.jobs import JobSpec, JobState
from schemas.queries import EventListQuery, JobDocument, JobGet, JobListQuery
from schemas.resources import Resources
from services.history import handlers
from services.history.documents import Documents, StoryCache
from services.history.events import EventLog
from tests.core.builders import World
from tests.history.written import Written, busy_world, until
from tests.kit.background import ServerInBackground
from tests.kit.tasks import beside
from tests.kit.wire import Wire


@pytest.fixture
async def store(mongo_url: str, pool: str) -> AsyncIterator[JobStore]:
    store = JobStore(f"{mongo_url}/{pool}")
    await store.prepare("documents")
    yield store
    store.close()


@pytest.fixture
def written(nats: Client, pool: str) -> Written:
    return Written(nats.jetstream(), pool)


@asynccontextmanager
async def running(nats: Client, pool: str, store: JobStore, **options: float) -> AsyncIterator[Documents]:
    loop = Documents(nats.jetstream(), pool, store, CollectorRegistry(), window_s=0.02, **options)
    async with beside(loop.run()):
        yield loop


async def complete(loop: Documents, written: Written) -> None:
    async def done() -> bool:
        return loop.position >= written.records[-1][0]

    await until(done, "all records in MongoDB")


async def stored(store: JobStore, written: Written) -> dict:
    return await store.load(list(written.stories()))


async def test_documents_equal_the_fold_of_the_ledger(
    nats: Client, pool: str, store: JobStore, written: Written, team: str
) -> None:
    world = busy_world(team, "other")
    await written.write(world.records[:10])
    await written.forge(world.records[3])
    await written.write(world.records[10:])
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
    assert await stored(store, written) == written.stories()
    assert len(await store.jobs(None, limit=1000)) == len(written.stories())


async def test_what_a_frozen_process_writes_late_changes_nothing(
    nats: Client, pool: str, store: JobStore, written: Written, team: str
) -> None:
    """It was frozen with documents in hand; meanwhile another has written the same jobs' later records."""
    world = busy_world(team)
    await written.write(world.records[: len(world.records) // 2])
    in_hand = written.stories()
    await written.write(world.records[len(world.records) // 2 :])
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
    assert any(in_hand[job] != story for job, story in written.stories().items() if job in in_hand)

    await store.save(in_hand.values())

    assert await stored(store, written) == written.stories()


async def test_a_mongodb_that_takes_its_time_is_not_taken_for_one_that_is_away(mongo_url: str, pool: str) -> None:
    class Slow(Wire):
        """To a socket in the file system."""

        async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            from_server, to_server = await asyncio.open_unix_connection(unquote(mongo_url.removeprefix("mongodb://")))
            for work in (self._up(reader, to_server), self._down(from_server, writer)):
                self._start(work)

        async def _up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                await asyncio.sleep(2.5)
                to_server.write(data)
            to_server.close()

    async with Slow("mongodb://127.0.0.1:1").opened() as wire:
        store = JobStore(f"{wire.url}/{pool}")

        async def asked() -> bool:
            with suppress(StoreAway):
                return await store.checkpoint("documents") is None
            return False

        await until(asked, "it has answered")
        store.close()


@pytest.mark.parametrize("few", [{"cache_jobs": 1}, {"cache_mib": 0.001}])
async def test_jobs_that_left_memory_are_read_again(
    nats: Client, pool: str, store: JobStore, written: Written, team: str, few: dict[str, float]
) -> None:
    world = busy_world(team)
    async with running(nats, pool, store, **few, window_jobs=1) as loop:
        await written.write(world.records)
        await complete(loop, written)
    assert await stored(store, written) == written.stories()


def test_as_many_jobs_are_kept_in_memory_as_have_room(team: str) -> None:
    world = busy_world(team, "other")
    grown: dict[str, JobStory] = {}
    for seq, record in enumerate(world.records, 1):
        for job_id, events in job_events(record).items():
            grown[job_id] = advance(grown.get(job_id), events, record.t_us, seq)
    running = [story for story in grown.values() if not story.document.state.terminal]
    first, second, third = running[:3]
    cache = StoryCache(2, 100)
    for story, size in ((first, 60), (second, 40), (first, 50)):
        cache.keep(story, size)
    assert (len(cache), cache.size) == (2, 90)
    cache.keep(third, 20)
    assert cache.story(second.document.job_id) is None, "two at the most, those that changed last"
    assert (len(cache), cache.size) == (2, 70)
    cache.keep(second, 101)
    assert (len(cache), cache.size) == (2, 70), "it has no room, even alone"
    cache.keep(second, 60)
    assert (len(cache), cache.size) == (2, 80), "the first has left"
    ended = next(story for story in grown.values() if story.document.state.terminal)
    cache.keep(ended, 1)
    assert (len(cache), cache.size) == (2, 80), "it changes no more"


async def test_a_restart_goes_on_from_the_checkpoint(
    nats: Client, pool: str, store: JobStore, written: Written, team: str
) -> None:
    world = busy_world(team)
    await written.write(world.records[:15])
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
    await written.write(world.records[15:])
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
    assert await stored(store, written) == written.stories()


async def test_a_crash_between_documents_and_checkpoint_repeats_harmlessly(
    nats: Client, pool: str, store: JobStore, written: Written, team: str
) -> None:
    world = busy_world(team)
    await written.write(world.records)
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
    seq, early = written.records[4][0], written.records[5][1]
    await store.forget_checkpoint(loop.name)
    await store.move_checkpoint(loop.name, None, ReaderPosition(seq, early.prev_hash, seq))
    async with running(nats, pool, store, window_jobs=1) as loop:
        await until(lambda: store.checkpoint(loop.name), "a checkpoint")
        assert await stored(store, written) == written.stories()  # none goes back while it is read again
        await complete(loop, written)
    assert await stored(store, written) == written.stories()


async def test_mongodb_killed_in_the_middle_loses_and_doubles_nothing(
    nats: Client, pool: str, written: Written, team: str, tmp_path: Path
) -> None:
    world = busy_world(team, jobs=20)
    with ServerInBackground(MONGO, tmp_path) as mongo:
        store = JobStore(mongo.url)
        async with running(nats, pool, store, window_jobs=2) as loop:
            for start in range(0, len(world.records), 15):
                await written.write(world.records[start : start + 15])
                if start in (15, 45):
                    old = mongo.kill()
                    await asyncio.to_thread(mongo.wait_replaced, old)
            await complete(loop, written)
        assert await stored(store, written) == written.stories()
        assert len(await store.jobs(None, limit=1000)) == len(written.stories())
        store.close()


async def test_mongodb_frozen_in_the_midst_of_a_write_loses_and_doubles_nothing(
    nats: Client, pool: str, written: Written, team: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was sent it does when it goes on, beside what is sent to it again."""
    monkeypatch.setattr(mongo_store, "_SLOW_MS", 500)
    world = busy_world(team, jobs=20)
    with ServerInBackground(MONGO, tmp_path) as mongo:
        store, replace = JobStore(mongo.url), mongo_store.replace_older
        writes = 0

        async def frozen_at_times(collection: Any, operations: Any) -> None:
            nonlocal writes
            writes += 1
            if writes % 4:
                return await replace(collection, operations)
            with mongo.frozen():
                await replace(collection, operations)

        monkeypatch.setattr(mongo_store, "replace_older", frozen_at_times)
        async with running(nats, pool, store, window_jobs=2) as loop:
            for start in range(0, len(world.records), 15):
                await written.write(world.records[start : start + 15])
            await complete(loop, written)
        assert await stored(store, written) == written.stories()
        assert len(await store.jobs(None, limit=1000)) == len(written.stories())
        assert writes > 8
        store.close()


async def test_who_closes_does_not_wait_for_a_server_that_is_frozen(tmp_path: Path) -> None:
    with ServerInBackground(MONGO, tmp_path) as mongo:
        store = JobStore(mongo.url)
        await store.prepare("documents")
        with mongo.frozen():
            store.close()
            assert "end of a client of MongoDB" in {thread.name for thread in threading.enumerate()}


async def test_an_emptied_mongodb_fills_again(
    nats: Client, pool: str, store: JobStore, written: Written, team: str
) -> None:
    world = busy_world(team)
    await written.write(world.records[:-1])
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
        await store._jobs.delete_many({})
        await store._checkpoints.delete_many({})
        await written.write(world.records[-1:])
        await until(lambda: is_complete(store, written), "all documents are there again")
    assert await stored(store, written) == written.stories()


class Emptied(JobStore):
    """MongoDB loses all that it has when documents were written to it for the first time."""

    times = 0

    async def save(self, stories: Iterable[JobStory]) -> dict[str, int]:
        sizes = await super().save(stories)
        if sizes and not self.times:
            self.times += 1
            for collection in (self._jobs, self._checkpoints):
                await collection.delete_many({})
        return sizes


async def test_a_mongodb_that_is_emptied_before_the_first_checkpoint_fills_again(
    nats: Client, pool: str, mongo_url: str, written: Written, team: str
) -> None:
    """Seen: the checkpoint was written into an empty MongoDB, and jobs that had ended by then had no document for good (seed
    59096 of the theme stores)."""
    world = busy_world(team)
    await written.write(world.records[:-1])
    store = Emptied(f"{mongo_url}/{pool}")
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
        await written.write(world.records[-1:])
        await until(lambda: is_complete(store, written), "all documents are there again")
        assert store.times == 1
    store.close()


async def test_lost_documents_are_noticed_and_written_again(
    nats: Client, pool: str, store: JobStore, written: Written, team: str
) -> None:
    world = busy_world(team)
    await written.write(world.records[:-1])
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
    await store._jobs.delete_many({})
    await written.write(world.records[-1:])
    async with running(nats, pool, store):
        await until(lambda: is_complete(store, written), "all documents are there again")


async def is_complete(store: JobStore, written: Written) -> bool:
    return await stored(store, written) == written.stories()


async def test_mongodb_away_is_said_and_nothing_is_read(nats: Client, pool: str, written: Written, team: str) -> None:
    await written.write(busy_world(team).records)
    store = JobStore("mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=200")
    with pytest.raises(StoreAway, match="MongoDB"):
        await store.story("job-x")
    async with running(nats, pool, store) as loop:

        async def said() -> bool:
            return loop.problem.startswith("MongoDB")

        await until(said, "the problem is named")
        assert loop.position == 0
    store.close()


async def test_another_ledger_than_the_one_before_stops_the_service(
    nats: Client, pool: str, store: JobStore, written: Written, team: str
) -> None:
    await written.write(busy_world(team).records)
    await store.move_checkpoint(f"documents-{pool}", None, ReaderPosition(2, "f" * 64, 2))
    loop = Documents(nats.jetstream(), pool, store, CollectorRegistry())
    with pytest.raises(LedgerRewound):
        await loop.run()


async def test_two_writers_of_one_checkpoint_notice_each_other(store: JobStore) -> None:
    first, second = ReaderPosition(1, "a", 1), ReaderPosition(2, "b", 2)
    assert await store.move_checkpoint("x", None, first)
    assert not await store.move_checkpoint("x", None, second)
    assert await store.move_checkpoint("x", first, second)
    assert not await store.move_checkpoint("x", first, ReaderPosition(3, "c", 3))
    assert await store.checkpoint("x") == second


# ----------------------------------------------------------------------------------------------------------- answers


@pytest.fixture
async def filled(store: JobStore, written: Written, team: str) -> World:
    world = busy_world(team, "rivals")
    await written.write(world.records)
    await store.save(written.stories().values())
    return world


async def test_a_team_finds_its_own_jobs_only(
    store: JobStore, written: Written, filled: World, team: str, nats: Client
) -> None:
    own = [s.document for s in written.stories().values() if s.document.team == team]
    foreign = next(s.document for s in written.stories().values() if s.document.team == "rivals")
    assert await handlers.get_job(store, JobGet(job_id=own[0].job_id), team) == own[0]
    assert await handlers.get_job(store, JobGet(job_id=foreign.job_id), "operator") == foreign
    with pytest.raises(NothingFound) as for_foreign:
        await handlers.get_job(store, JobGet(job_id=foreign.job_id), team)
    none = "job-" + "0" * 32
    with pytest.raises(NothingFound) as for_none:
        await handlers.get_job(store, JobGet(job_id=none), team)
    assert str(for_foreign.value).replace(foreign.job_id, none) == str(for_none.value)
    with pytest.raises(NothingFound):
        await handlers.list_events(store, EventLog(nats.jetstream()), EventListQuery(job_id=foreign.job_id), team)
    listed = await handlers.list_jobs(store, JobListQuery(limit=1000), team)
    assert {d.job_id: d for d in listed.jobs} == {d.job_id: d for d in own}
    everything = await handlers.list_jobs(store, JobListQuery(limit=1000), "operator")
    assert len(everything.jobs) == len(written.stories())


async def test_a_list_is_read_page_by_page_as_far_as_an_answer_goes(
    nats: Client, pool: str, store: JobStore, written: Written, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: forty questions for a thousand large jobs each took 600 MiB, and others' waited for five seconds."""
    await written.write(busy_world(team).records)
    async with running(nats, pool, store) as loop:
        await complete(loop, written)
    for states in ((), (JobState.SUCCEEDED,)):
        for whose in (team, None):
            whole = [job.job_id for job in await store.jobs(whose, states=states, limit=1000)]
            monkeypatch.setattr("libs.adapters.mongo.store._READ_AT_ONCE", 2)
            assert [job.job_id for job in await store.jobs(whose, states=states, limit=1000)] == whole
            assert [job.job_id for job in await store.jobs(whose, states=states, limit=3)] == whole[:3]
            monkeypatch.setattr("libs.adapters.mongo.store.MAX_REPLY_BYTES", 1)
            assert [job.job_id for job in await store.jobs(whose, states=states, limit=1000)] == whole[:1]
            monkeypatch.undo()
    await store._jobs.update_many({}, {"$set": {"submitted_us": 7, "by_team": f"{team}|{7:020d}"}})
    monkeypatch.setattr("libs.adapters.mongo.store._READ_AT_ONCE", 2)
    count = await store._jobs.count_documents({})
    assert len({job.job_id for job in await store.jobs(team, limit=1000)}) == count, "of one moment"


async def test_lists_are_newest_first_filtered_and_paged(
    store: JobStore, written: Written, filled: World, team: str
) -> None:
    own = sorted(
        (s.document for s in written.stories().values() if s.document.team == team), key=lambda d: -d.submitted_us
    )
    pages, before = [], None
    while page := (await handlers.list_jobs(store, JobListQuery(limit=5, before_us=before), team)).jobs:
        assert len(page) <= 5
        pages += page
        before = page[-1].submitted_us
    assert pages == own
    states = (JobState.SUCCEEDED, JobState.FAILED)
    listed = (await handlers.list_jobs(store, JobListQuery(states=states), team)).jobs
    assert list(listed) == [d for d in own if d.state in states]
    named = (await handlers.list_jobs(store, JobListQuery(name="j3"), team)).jobs
    assert [d.name for d in named] == ["j3"]
    by_operator = (await handlers.list_jobs(store, JobListQuery(states=states, name="j3"), "operator")).jobs
    assert {d.name for d in by_operator} <= {"j3"}
    for states in ((), *((state,) for state in JobState), tuple(JobState)):
        for name in {d.name for d in own}:
            for before_us in (None, own[len(own) // 2].submitted_us):
                for who, all_ in ((team, own), ("operator", [s.document for s in written.stories().values()])):
                    query = JobListQuery(states=states, name=name, before_us=before_us)
                    found = (await handlers.list_jobs(store, query, who)).jobs
                    wanted = [
                        d.job_id
                        for d in all_
                        if d.name == name and d.state in (states or JobState) and d.submitted_us < (before_us or 2**62)
                    ]
                    assert sorted(d.job_id for d in found) == sorted(wanted)


async def test_documents_of_a_release_before_are_found_by_name_and_by_state_as_well(
    store: JobStore,
    written: Written,
    filled: World,
    team: str,
    mongo_url: str,
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("libs.adapters.mongo.store._PAGE", 7)
    client: Any = AsyncIOMotorClient(f"{mongo_url}/{pool}")
    jobs, checkpoints = client[pool]["jobs"], client[pool]["checkpoints"]
    first, second = ReaderPosition(1, "a", 1), ReaderPosition(2, "b", 2)
    await store.move_checkpoint("documents", None, first)
    bodies = await jobs.find({}).to_list(None)
    for body in bodies:
        del body["by_name"], body["by_named"], body["by_stated"]
        await jobs.replace_one({"_id": body["_id"]}, body)
    await store.prepare("documents")
    assert not (await handlers.list_jobs(store, JobListQuery(name="j3"), team)).jobs, "this release wrote last"
    ended = JobListQuery(states=(JobState.SUCCEEDED,))
    assert not (await handlers.list_jobs(store, ended, "operator")).jobs, (
        "by its key: few are looked at where few are so"
    )
    body = await checkpoints.find_one({"_id": "documents"})
    del body["keys"]
    await checkpoints.replace_one({"_id": "documents"}, body)
    await store.prepare("documents")
    for who in (team, "operator"):
        assert [d.name for d in (await handlers.list_jobs(store, JobListQuery(name="j3"), who)).jobs]
        assert (await handlers.list_jobs(store, ended, who)).jobs
    assert await store.load([body["_id"] for body in bodies]) == written.stories()
    assert await store.move_checkpoint("documents", first, second)
    client.close()


@pytest.mark.parametrize("who", ["blue", "operator"])
async def test_pages_of_several_states_leave_out_no_job_that_was_too_large_for_a_page(
    store: JobStore, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small job of another state fitted behind the page's end, and the next page began behind that."""
    stories = []
    for at_us, (state, length) in enumerate(
        [(JobState.RUNNING, 1), (JobState.QUEUED, 4_000), *[(JobState.QUEUED, 1)] * 3], start=1
    ):
        spec = JobSpec(name="j", command=("x" * length,), resources=Resources(devices=1))
        document = JobDocument(
            job_id=f"job-{at_us:032x}", team="blue", name="j", client_key=str(at_us), priority_class="batch", priority=1,
            state=state, devices=1, submitted_us=at_us, queued_us=at_us, spec=spec, seq=at_us, pool="main",
        )  # fmt: skip
        stories.append(JobStory(document, ()))
    await store.save(stories)
    small = len(stories[0].document.model_dump_json())
    for where in ("libs.adapters.mongo.store.MAX_REPLY_BYTES", "services.history.handlers.MAX_REPLY_BYTES"):
        monkeypatch.setattr(where, 4 * small + 100)

    async def asked(limit: int, before_us: int | None) -> Sequence[JobDocument]:
        query = JobListQuery(states=(JobState.QUEUED, JobState.RUNNING), limit=limit, before_us=before_us)
        return (await handlers.list_jobs(store, query, who)).jobs

    found = [one.submitted_us async for page in pages(asked, before_us=None, limit=100) for one in page]
    assert found == [5, 4, 3, 2, 1]


async def test_a_jobs_events_come_from_its_document(
    store: JobStore, written: Written, filled: World, team: str, nats: Client
) -> None:
    target = next(s for s in written.stories().values() if s.document.team == team and len(s.events) >= 5)
    log = EventLog(nats.jetstream())
    query = EventListQuery(job_id=target.document.job_id)
    events = (await handlers.list_events(store, log, query, team)).events
    assert [e.what for e in events] == [e.what for e in target.events]
    later = query.model_copy(update={"after_us": events[0].at_us, "limit": 2})
    assert (await handlers.list_events(store, log, later, team)).events == tuple(
        e for e in events if e.at_us > events[0].at_us
    )[:2]
    last = query.model_copy(update={"limit": 2})
    assert (await handlers.list_events(store, log, last, team)).events == events[-2:]


async def test_an_answer_is_cut_to_what_the_broker_carries(
    store: JobStore, written: Written, filled: World, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "MAX_REPLY_BYTES", 5000)
    listed = await handlers.list_jobs(store, JobListQuery(), team)
    assert 0 < len(listed.jobs) < 12
    assert len(listed.model_dump_json()) < 5100


def test_no_number_below_zero_was_seen() -> None:
    """The gap behind it began at 0, which no event has, and the question failed in the service."""
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        EventListQuery(seen={"main": -1})
