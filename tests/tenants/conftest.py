"""What decides, as one thing that is started and stopped: admission, placement, queries, and the events of teams."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from libs.bus.connect import BusConnection
from services.admission.app import make_app as make_admission
from services.admission.settings import AdmissionSettings
from services.history.feed import FeedLoop
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from tests.admission.running import running
from tests.kit.tasks import beside
from tests.services.pool import Pool
from tests.tenants.serving import Serving


@pytest.fixture
def world(nats: BusConnection, pool: str) -> Pool:
    return Pool(nats, pool)


@pytest.fixture
def serving(world: Pool, nats_url: str, redis_url: str) -> Serving:
    @asynccontextmanager
    async def started() -> AsyncIterator[None]:
        common: dict[str, Any] = {"nats_url": nats_url, "pool": world.name}
        feed = FeedLoop(world.js, world.name, CollectorRegistry())
        async with AsyncExitStack() as all_of_them:
            for app in (
                make_admission(AdmissionSettings(**common)),
                make_placement(PlacementSettings(**common, redis_url=redis_url), writer_id="w1"),
                make_queries(QueriesSettings(**common, redis_url=redis_url)),
            ):
                await all_of_them.enter_async_context(running(app))
            await all_of_them.enter_async_context(beside(feed.run()))
            yield

    return started
