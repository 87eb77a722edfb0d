"""Two admissions, one placement, the feed: what a team sends at once has one answer each, in whatever order it is taken up."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from libs.bus.connect import BusConnection
from schemas import subjects
from schemas.ids import job_id
from schemas.jobs import JobRejected
from schemas.ledger import JobFinished, JobQueued
from services.admission.app import make_app as make_admission
from services.admission.settings import AdmissionSettings
from services.history.feed import FeedLoop
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from tests.admission.running import running
from tests.kit.tasks import beside
from tests.kit.waiting import stored, until
from tests.services.pool import Pool

JOBS = 12


@pytest.fixture
def serving(nats: BusConnection, world: Pool, team: str, nats_url: str, redis_url: str) -> Any:
    return partial(_serving, nats, world, team, nats_url, redis_url)


@asynccontextmanager
async def _serving(nats: BusConnection, world: Pool, team: str, nats_url: str, redis_url: str) -> AsyncIterator[Any]:
    """Runs the four; gives what publishes requests all at once."""
    settings = AdmissionSettings(nats_url=nats_url, pool=world.name, batch=3)
    placing = PlacementSettings(nats_url=nats_url, redis_url=redis_url, pool=world.name)

    async def publish(*requests: tuple[str, dict[str, Any]]) -> None:
        async def one(what: str, body: dict[str, Any]) -> None:
            await world.js.publish(f"baton.cmd.job.v1.{what}.{team}.ana", json.dumps(body).encode())

        await asyncio.gather(*(one(what, body) for what, body in requests))

    feed = FeedLoop(nats.jetstream(), world.name, CollectorRegistry())
    async with (
        running(make_admission(settings)),
        running(make_admission(settings)),
        running(make_placement(placing, writer_id="w1")),
        beside(feed.run()),
    ):
        yield publish


def submit(key: str, word: str = "x") -> tuple[str, dict[str, Any]]:
    return "submit", {"client_key": key, "job": {"command": [word]}}


async def test_of_two_bodies_under_one_key_one_is_queued_and_the_other_is_refused(
    world: Pool, team: str, serving: Any
) -> None:
    """Both were acknowledged and passed on, as the ledger did not know of either; then there was silence for one of them."""
    keys = [f"k{n}" for n in range(JOBS)]
    async with serving() as send:
        await send(*(submit(key, word) for key in keys for word in ("one", "another")))

        async def refused() -> list[JobRejected]:
            found = await stored(world.js, subjects.EVENTS, subjects.event("rejected", team))
            return [JobRejected.model_validate_json(m.data) for m in found]

        async def answered() -> bool:
            return len(await refused()) >= JOBS

        await until(answered)
        await world.event(JobQueued, JOBS)
        assert Counter(told.client_key for told in await refused()) == Counter(keys)
        assert {told.job_id for told in await refused()} == {""}, "the job of that key goes on"
        queued = [e.job_id for record in await world.records() for e in record.events if isinstance(e, JobQueued)]
        assert sorted(queued) == sorted(job_id(team, key) for key in keys)


async def test_a_cancel_cancels_its_job_whichever_of_them_is_taken_up_first(
    world: Pool, team: str, serving: Any
) -> None:
    keys = [f"c{n}" for n in range(JOBS)]
    async with serving() as send:
        for key in keys:
            await send(submit(key))
            await send(("cancel", {"job_id": job_id(team, key)}))
        await world.event(JobFinished, JOBS)
    ended = [e for record in await world.records() for e in record.events if isinstance(e, JobFinished)]
    assert {e.job_id for e in ended} == {job_id(team, key) for key in keys}
    assert {e.state for e in ended} == {"cancelled"}
