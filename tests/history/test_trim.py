"""A loud team loses its own past and nobody else's; and who follows is told what was dropped, by number."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry

from libs.bus.connect import close, connect
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.bus.queries import AskAgain
from libs.bus.streams import provision
from libs.bus.trim import fill_of
from libs.client import following
from libs.embedded.servers import NATS
from schemas import subjects
from schemas.jobs import JobEvent, JobState
from schemas.queries import EventList, EventListQuery, EventsLost
from services.history.events import EventLog
from services.history.handlers import list_events, lost_of
from services.history.trim import TRIM_AT, EventTrimmer, fair_share
from tests.kit.background import ServerInBackground

STORE: Any = None
"""A team's events come from the stream alone."""


@pytest.fixture
async def js(tmp_path: Path) -> AsyncIterator[JetStreamContext]:
    with ServerInBackground(NATS, tmp_path / "own") as server:
        nats = await connect(server.url, name="test")
        await provision(nats.jetstream(), ["p"], scale=0.0005)  # EVENTS: 1 MiB
        yield nats.jetstream()
        await close(nats)


def event(team: str, number: int, *, reason: str = "x" * 400) -> JobEvent:
    return JobEvent(
        job_id=f"job-{number:032x}", team=team, name="n", what="queued", state=JobState.QUEUED, at_us=number,
        reason=reason, pool="p", number=number, previous_us=number - 1 or None,
    )  # fmt: skip


async def tell(js: JetStreamContext, team: str, first: int, last: int) -> None:
    items = [event(team, number) for number in range(first, last + 1)]
    subject = subjects.event("queued", team)
    await Outbox(js).publish_many([Outgoing(subject, e.model_dump_json().encode(), {}) for e in items])


async def kept(js: JetStreamContext, team: str) -> list[int]:
    found = await EventLog(js).read(team, after_us=0, limit=10_000)
    return [e.number for e in found]


async def test_who_asks_while_the_broker_does_not_answer_is_told_to_ask_again(js: JetStreamContext) -> None:
    """It is no fault in this service, whose log would have a page for each such question."""
    await tell(js, "quiet", 1, 1)
    await js.delete_stream(subjects.EVENTS)
    with pytest.raises(AskAgain, match="the broker, which keeps events, does not answer"):
        await EventLog(js).read("quiet", after_us=0, limit=10)


async def test_a_loud_team_drops_its_own_events_only_and_its_follower_hears_of_it(js: JetStreamContext) -> None:
    trimmer = EventTrimmer(js, CollectorRegistry())
    await tell(js, "quiet", 1, 20)
    await tell(js, "loud", 1, 500)
    await trimmer.turn()
    assert len(await kept(js, "loud")) == 500, "there is room"
    await tell(js, "loud", 501, 1100)
    await trimmer.turn()
    assert fill_of(await js.stream_info(subjects.EVENTS)) < TRIM_AT
    assert await kept(js, "quiet") == list(range(1, 21))
    loud = await kept(js, "loud")
    assert loud == list(range(loud[0], 1101))
    assert loud[0] > 101

    query = EventListQuery(after_us=100, seen={"p": 100})
    reply = await list_events(STORE, EventLog(js), query, "loud")
    assert reply.lost == (EventsLost(pool="p", first=101, last=loud[0] - 1, before_us=loud[0]),)
    whole = await list_events(STORE, EventLog(js), EventListQuery(after_us=0), "loud")
    assert [(lost.first, lost.last) for lost in whole.lost] == [(1, loud[0] - 1)]
    late = await list_events(STORE, EventLog(js), EventListQuery(after_us=70), "loud")
    assert [(lost.first, lost.last) for lost in late.lost] == [(1, loud[0] - 1)], "events after that time were dropped"
    since = await list_events(STORE, EventLog(js), EventListQuery(after_us=loud[0] - 1), "loud")
    assert (since.lost, since.events[0].number) == ((), loud[0]), (
        "all that was dropped is older than what was asked for"
    )
    behind = await list_events(STORE, EventLog(js), EventListQuery(seen={"p": 1000}), "loud")
    assert (behind.lost, behind.events[-1].number) == ((), 1100)
    assert loud[0] < behind.events[0].number <= 1001, "found by number, not read from the first on"
    missed = await list_events(STORE, EventLog(js), EventListQuery(seen={"p": 9}), "loud")
    assert [(lost.first, lost.last) for lost in missed.lost] == [(10, loud[0] - 1)]
    elsewhere = await list_events(STORE, EventLog(js), EventListQuery(seen={"p": 1000, "west": 7}), "loud")
    assert elsewhere.events[0].number == loud[0], "a pool without events there: nothing is left out"
    everybody = await list_events(STORE, EventLog(js), EventListQuery(after_us=0), subjects.OPERATOR)
    assert [(lost.team, lost.first, lost.last) for lost in everybody.lost] == [("loud", 1, loud[0] - 1)]
    calm = await list_events(STORE, EventLog(js), EventListQuery(after_us=0), "quiet")
    assert (calm.lost, len(calm.events)) == ((), 20)


async def test_a_full_stream_holds_nobody_up_while_history_does_not_run(js: JetStreamContext) -> None:
    await tell(js, "loud", 1, 2500)  # more than there is room for, and nothing trims
    assert (await js.stream_info(subjects.EVENTS)).state.messages < 2500
    await EventTrimmer(js, CollectorRegistry()).turn()
    assert fill_of(await js.stream_info(subjects.EVENTS)) < TRIM_AT


async def test_following_tells_what_was_lost_between_two_pages() -> None:
    pages = [
        EventList(events=(event("t", 1), event("t", 2))),
        EventList(events=(event("t", 7),), lost=(EventsLost(pool="p", first=3, last=6, before_us=7),)),
    ]
    seen: list[dict[str, int]] = []
    heard: list[EventsLost] = []

    async def ask(after_us: int, limit: int, numbers: Any) -> EventList:
        seen.append(dict(numbers))
        return pages.pop(0) if pages else EventList(events=())

    past = following._Past(ask, 0, heard.append)
    told = [e.number async for e in past.missed()]
    assert told == [1, 2, 7]
    assert seen[:3] == [{}, {"p": 2}, {"p": 7}]
    assert [(lost.first, lost.last) for lost in heard] == [(3, 6)]


async def test_who_goes_on_behind_a_number_gets_what_follows_it_once() -> None:
    pages = [
        EventList(events=tuple(event("t", number) for number in (5, 6, 9)), lost=()),
        EventList(events=(event("t", 9), event("t", 10))),
    ]
    asked: list[tuple[int | None, dict[str, int]]] = []

    async def ask(after_us: int | None, limit: int, numbers: Any) -> EventList:
        asked.append((after_us, dict(numbers)))
        return pages.pop(0) if pages else EventList(events=())

    past = following._Past(ask, None, lambda lost: None, {"p": 6})
    assert [e.number async for e in past.missed()] == [9, 10]
    assert asked[:2] == [(None, {"p": 6}), (8, {"p": 9})]
    assert [e.number async for e in past.missed()] == []


async def test_events_are_found_by_the_ledgers_time_when_the_brokers_clock_was_set_back(js: JetStreamContext) -> None:
    ahead_us = time.time_ns() // 1000 + 3 * 3600 * 1_000_000
    items = [event("t", 1).model_copy(update={"at_us": ahead_us + second}) for second in range(3)]
    subject = subjects.event("queued", "t")
    await Outbox(js).publish_many([Outgoing(subject, e.model_dump_json().encode(), {}) for e in items])
    found = await EventLog(js).read("t", after_us=ahead_us, limit=10)
    assert [e.at_us - ahead_us for e in found] == [1, 2]
    assert await EventLog(js).read("nobody", after_us=ahead_us, limit=10) == []


def test_gaps_are_told_per_pool_and_only_where_numbers_are_known() -> None:
    here, there = event("t", 4), event("t", 9).model_copy(update={"pool": "west"})
    assert [(g.pool, g.first, g.last) for g in lost_of([here, there], {("t", "p"): 2}, 8)] == [("p", 3, 3)]
    assert [g.pool for g in lost_of([here, there], {}, 0)] == ["p", "west"]
    assert [g.pool for g in lost_of([here, there], {}, 3)] == ["west"], "the event before it was after that time, too"
    old = event("t", 1).model_copy(update={"number": 0})
    without = here.model_copy(update={"previous_us": None})
    assert lost_of([old, without], {}, 0) == (), "it was told before events had numbers"


@pytest.mark.parametrize(
    ("counts", "total", "share"),
    [([10, 10], 20, 10), ([1000, 10], 510, 500), ([1000, 1000, 10], 510, 250), ([5, 5, 5], 3, 1), ([], 7, 7)],
)
def test_everybody_may_keep_as_much_as_everybody_else(counts: list[int], total: int, share: int) -> None:
    assert fair_share(counts, total) == share or (sum(counts) <= total and share <= fair_share(counts, total))
    assert sum(min(count, fair_share(counts, total)) for count in counts) <= max(total, len(counts))
