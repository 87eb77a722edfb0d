"""Teams are told everything once, in order, through restarts; and can read it back from the stream."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from libs.adapters.mongo.store import MAX_REPLY_BYTES, JobStore
from libs.bus.cursors import Cursors
from libs.bus.dead import Received
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.core.admission.evaluate import AdmissionContext
from libs.core.admission.fleet_shape import FleetShape
from libs.core.projections.history import Feed
from libs.core.scheduling import limits
from libs.ledger.chain import LedgerRewound
from schemas import subjects
from schemas.jobs import JobEvent, JobRejected, JobState, Reason
from schemas.queries import EventListQuery
from services.admission.handlers import handle
from services.history.events import EventLog
from services.history.feed import NAME, FeedLoop
from services.history.handlers import list_events
from tests.core.builders import World, job, node
from tests.history.written import Written, busy_world, until
from tests.kit.tasks import beside


@pytest.fixture
def written(nats: Client, pool: str) -> Written:
    return Written(nats.jetstream(), pool)


@asynccontextmanager
async def running(nats: Client, pool: str, *, snapshot_records: int = 7) -> AsyncIterator[FeedLoop]:
    loop = FeedLoop(nats.jetstream(), pool, CollectorRegistry(), snapshot_records=snapshot_records)
    async with beside(loop.run()):
        yield loop


async def complete(loop: FeedLoop, written: Written) -> None:
    async def done() -> bool:
        return loop.position >= written.records[-1][0]

    await until(done, "all records told")


def expected(world: World, team: str, pool: str) -> list[JobEvent]:
    feed = Feed()
    told = (event for record in world.records for event in feed.apply(record, 1))
    return [event.model_copy(update={"pool": pool}) for event in told if event.team == team]


async def heard(nats: Client, team: str) -> list[tuple[str, str, JobEvent]]:
    """What is in the stream for the team: (subject, id, event)."""
    js = nats.jetstream()
    out = []
    subscription = await js.subscribe(subjects.events_of(team), stream=subjects.EVENTS, ordered_consumer=True)
    more = 1
    while more:
        message = await subscription.next_msg(timeout=10)
        more, headers = message.metadata.num_pending, message.headers or {}
        assert headers["ce-type"] == f"io.baton.job.{message.subject.split('.')[4]}.v1"
        out.append((message.subject, headers["ce-id"], JobEvent.model_validate_json(message.data)))
    await subscription.unsubscribe()
    return out


async def test_a_team_is_told_all_in_order_and_once(nats: Client, pool: str, written: Written, team: str) -> None:
    world = busy_world(team, f"{team}-2")
    await written.write(world.records[:20])
    await written.forge(world.records[5])
    await written.write(world.records[20:])
    async with running(nats, pool) as loop:
        await complete(loop, written)
    for one in (team, f"{team}-2"):
        news = await heard(nats, one)
        assert [event for _, _, event in news] == expected(world, one, pool)
        assert all(subject == subjects.event(event.what, one) for subject, _, event in news)
        assert len({id_ for _, id_, _ in news}) == len(news)


async def test_a_restart_tells_nothing_twice_and_leaves_nothing_out(
    nats: Client, pool: str, written: Written, team: str
) -> None:
    world = busy_world(team)
    for start in range(0, len(world.records), 11):
        await written.write(world.records[start : start + 11])
        async with running(nats, pool) as loop:
            await complete(loop, written)
    news = await heard(nats, team)
    assert [event for _, _, event in news] == expected(world, team, pool)


async def test_a_crash_before_the_cursor_is_saved_repeats_the_same_ids(
    nats: Client, pool: str, written: Written, team: str
) -> None:
    world = busy_world(team)
    await written.write(world.records)
    async with running(nats, pool, snapshot_records=1000) as loop:
        await complete(loop, written)
    seq, following = written.records[9][0], written.records[10][1]
    cursor = {"seq": seq, "hash": following.prev_hash, "position": seq}
    await Cursors(nats.jetstream(), "history").save(f"{NAME}-{pool}", cursor)
    async with running(nats, pool, snapshot_records=1000) as loop:
        await complete(loop, written)
    assert [event for _, _, event in await heard(nats, team)] == expected(world, team, pool)


async def test_a_submit_that_admission_refused_as_well_is_told_once(
    nats: Client, pool: str, written: Written, team: str
) -> None:
    """Two admissions judge it when one takes it out of its turn, or dies before it acknowledges: one passed it on."""
    world = World(node("a", 1))
    first = job("j", team=team, submitted_us=1)
    world.send(first, first.model_copy(update={"spec_hash": "another", "submitted_us": 2}))
    await written.write(world.records)
    async with running(nats, pool) as loop:
        await complete(loop, written)
    message = await nats.jetstream().get_last_msg(subjects.EVENTS, subjects.event("rejected", team))
    told = JobRejected.model_validate_json(message.data or b"")
    request = Received(
        subject=subjects.submit(team, "ana"),
        headers={},
        payload=json.dumps({"client_key": "j", "job": {"command": []}}).encode(),
        stream="REQUESTS",
        stream_seq=7,
        time_us=2,
    )
    (refused,) = handle(request, {pool: AdmissionContext(FleetShape(), limits.room)}).out
    assert (told.client_key, told.stored_us) == ("j", 2)
    assert refused.headers["Nats-Msg-Id"] == (message.headers or {})["Nats-Msg-Id"]


@pytest.mark.parametrize(
    "cursor", [{"seq": 3, "hash": "f" * 64, "position": 3}, {"seq": 1, "hash": "", "position": 9**9}]
)
async def test_another_ledger_than_the_one_told_stops_the_service(
    nats: Client, pool: str, written: Written, team: str, cursor: dict
) -> None:
    await written.write(busy_world(team).records[:10])
    await Cursors(nats.jetstream(), "history").save(f"{NAME}-{pool}", cursor)
    with pytest.raises(LedgerRewound):
        await FeedLoop(nats.jetstream(), pool, CollectorRegistry()).run()


async def test_events_are_read_back_by_team_time_and_number(
    nats: Client, pool: str, written: Written, team: str
) -> None:
    world = busy_world(team, f"{team}-2")
    await written.write(world.records)
    async with running(nats, pool) as loop:
        await complete(loop, written)
    log, all_of_them = EventLog(nats.jetstream()), expected(world, team, pool)
    await nats.jetstream().publish(subjects.event("rejected", team), _rejection(team).model_dump_json().encode())
    assert await log.read(team, after_us=None, limit=10_000) == all_of_them
    assert await log.read(team, after_us=0, limit=10_000) == all_of_them
    assert await log.read(team, after_us=0, limit=7) == all_of_them[:7]
    middle = all_of_them[len(all_of_them) // 2].at_us
    assert await log.read(team, after_us=middle, limit=10_000) == [e for e in all_of_them if e.at_us > middle]
    for never in (
        253_402_300_800_000_000,
        2**63 - 1,
    ):  # the first moment that no calendar has a year for, and the last there is
        assert await log.read(team, after_us=never, limit=10_000) == []
    last = await log.read(team, after_us=None, limit=8)  # the rejection counts among what is looked at
    assert last == all_of_them[-len(last) :]
    assert len(last) >= 7
    assert await log.read("team-that-never-was", after_us=None, limit=10) == []
    everybody = await log.read(None, after_us=None, limit=10_000)
    assert {team, f"{team}-2"} <= {event.team for event in everybody}


@pytest.mark.usefixtures("pool")
async def test_of_the_last_events_no_more_are_read_than_an_answer_holds(nats: Client, team: str) -> None:
    """Who asks for ten thousand is told some hundreds. Reading all of them took history 0.7 s, for each such question."""
    js, store = nats.jetstream(), cast(JobStore, None)  # a team's events come from the stream alone
    told = [
        JobEvent(job_id=f"job-{n:032x}", team=team, name="", what="queued", state=JobState.QUEUED, at_us=n, number=n)
        for n in range(1, 2001)
    ]
    subject = subjects.event("queued", team)
    await Outbox(js).publish_many([Outgoing(subject, event.model_dump_json().encode(), {}) for event in told])
    log, before = EventLog(js), nats.stats["in_msgs"]
    answer = await list_events(store, log, EventListQuery(limit=10_000), team)
    assert answer.events == tuple(told[-len(answer.events) :])
    assert sum(len(event.model_dump_json()) + 1 for event in told[-len(answer.events) - 1 :]) > MAX_REPLY_BYTES, (
        "it is full"
    )
    assert nats.stats["in_msgs"] - before < 1_100


def _rejection(team: str) -> JobRejected:
    reason = Reason(field="job", value="", problem="p", fix="f")
    return JobRejected(job_id="job-x", team=team, client_key="k", reasons=(reason,), at_us=1)
