"""`baton team suspend|resume` over several pools, of which one does not decide, does not answer, or is closed: what became of
it is told of each, and one that is away keeps none of the others from deciding."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from faststream.asgi import AsgiFastStream

from libs.bus.connect import Address, BusConnection
from libs.cli import pool_commands
from libs.cli.pools import pools_of
from libs.cli.team_pause import go_on, pause, suspended
from libs.client import Baton
from libs.client.errors import Busy, Failed, TimedOut
from libs.client.where import Place
from schemas import subjects
from schemas.ledger import TeamResumed, TeamSuspended
from schemas.subjects import OPERATOR
from services.admission.app import make_app as make_admission
from services.admission.settings import AdmissionSettings
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from tests.admission.running import running
from tests.cli.test_command import baton
from tests.services.pool import Pool


class Two:
    """Two pools, of which services are started as a test needs them."""

    def __init__(self, nats: BusConnection, url: str, redis_url: str, here: str, there: str) -> None:
        self.operator = Baton(nats, Place(Address(url), OPERATOR, user="olga", pool=here))
        self.here, self.there = Pool(nats, here), Pool(nats, there)
        self._common: dict[str, Any] = {"nats_url": url}
        self._redis_url = redis_url

    def placement(self, pool: Pool) -> AsgiFastStream:
        settings = PlacementSettings(**self._common, pool=pool.name, redis_url=self._redis_url)
        return make_placement(settings, writer_id="w1")

    def queries(self, pool: Pool) -> AsgiFastStream:
        return make_queries(QueriesSettings(**self._common, pool=pool.name, redis_url=self._redis_url))

    def admission(self, *pools: Pool) -> AsgiFastStream:
        names = tuple(pool.name for pool in pools)
        return make_admission(AdmissionSettings(**self._common, pool=names[0], pools=names))


@asynccontextmanager
async def all_of(*apps: AsgiFastStream) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(running(app))
        yield


@pytest.fixture
async def two(nats: BusConnection, nats_url: str, redis_url: str, pool: str, other_pool: str) -> Two:
    js = nats.jetstream()
    for info in await js.streams_info():
        if (name := str(info.config.name)).startswith("INBOX-"):  # another test's closed pool may be full
            await js.purge_stream(name)
    return Two(nats, nats_url, redis_url, pool, other_pool)


async def test_a_pool_that_does_not_decide_is_told_beside_those_that_have(
    two: Two, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_commands, "_DECIDED_S", 1.0)
    here, there = two.here, two.there
    async with all_of(two.admission(here, there), two.placement(here), two.queries(here), two.queries(there)):
        told = await pause(two.operator, team, "unpaid")
        assert isinstance(await here.events_of(told.decided[here.name] or 0), tuple)
        assert (list(told.decided), list(told.errors)) == ([here.name], [there.name])
        assert isinstance(told.errors[there.name], TimedOut)
        with pytest.raises(TimedOut, match=there.name):
            told.check()
        lines = {line["pool"]: line for line in told.for_programs()}
        assert (lines[here.name]["decided"], lines[there.name]["decided"]) == (True, False)
        assert f"--pool {there.name}" in lines[there.name]["error"]

    async with all_of(two.placement(there)):  # it was stored, and is decided now
        assert (await there.event(TeamSuspended)).team == team


async def test_a_team_goes_on_in_a_pool_that_answers_no_questions(two: Two, team: str) -> None:
    here, there = two.here, two.there
    deciding = two.placement(here), two.placement(there)
    async with all_of(two.admission(here, there), *deciding, two.queries(here)):
        assert set((await pause(two.operator, team, "unpaid")).decided) >= {here.name, there.name}
        found = await suspended(two.operator)
        silent = found[there.name]
        assert team in found[here.name]
        assert isinstance(silent, Exception), "what one pool does not say is known of the other"

        told = await go_on(two.operator, team, "paid")
        assert set(told.decided) == {here.name, there.name}
        assert (await there.event(TeamResumed)).team == team
        with pytest.raises(Failed, match="is not suspended"):
            await go_on(two.operator, team, "again")


async def test_a_closed_pool_is_not_waited_for_and_decides_when_it_is_opened(
    two: Two, team: str, nats_url: str
) -> None:
    here, there = two.here, two.there
    async with all_of(two.admission(here), two.placement(here), two.queries(here)):
        pools = await pools_of(two.operator)
        assert here.name in pools.in_use
        assert there.name in pools.closed
        told = await baton("team", "suspend", team, "--reason", "unpaid", "-o", "json", url=nats_url)
        assert told.code == 0, told.err
        of = {line["pool"]: line for line in json.loads(told.out)["pools"]}
        assert (of[here.name]["decided"], of[there.name]["decided"]) == (True, False)
        assert f"pool {there.name}: it is closed" in told.err

    async with all_of(two.placement(there)):
        assert (await there.event(TeamSuspended)).team == team


async def test_a_closed_pool_that_is_full_is_told_beside_those_that_have_decided(
    two: Two, team: str, nats: BusConnection
) -> None:
    """Seen: the error of the full one was all that was told, of a team that was suspended elsewhere."""
    js = nats.jetstream()
    config = (await js.stream_info(subjects.inbox_stream(two.there.name))).config
    config.max_bytes = 1
    await js.update_stream(config)
    async with all_of(two.admission(two.here), two.placement(two.here), two.queries(two.here)):
        told = await pause(two.operator, team, "unpaid")
        assert list(told.decided) == [two.here.name]
        assert isinstance(told.errors[two.there.name], Busy)
        assert "the pool's inbox is full" in str(told.errors[two.there.name])
        assert two.there.name not in told.stored


async def test_a_pool_that_is_down_is_not_closed(two: Two) -> None:
    async with all_of(two.admission(two.here, two.there)):
        assert {two.here.name, two.there.name} <= set((await pools_of(two.operator)).in_use)
