"""A service's own connection is closed however its block is left."""

import asyncio

import pytest

from libs.bus.connect import BusConnection
from libs.bus.streams import StreamsMissing
from libs.service import connection
from libs.service.connection import connected
from libs.service.settings import ServiceSettings


@pytest.fixture
def settings(nats_url: str, pool: str) -> ServiceSettings:
    return ServiceSettings(nats_url=nats_url, pool=pool)


@pytest.mark.parametrize("how", ["returns", "raises", "is cancelled"])
async def test_it_is_closed(settings: ServiceSettings, how: str) -> None:
    made: list[BusConnection] = []

    async def uses() -> None:
        async with connected(settings, "test") as nats:
            made.append(nats)
            if how == "raises":
                raise KeyError
            await asyncio.sleep(0 if how == "returns" else 60)

    task = asyncio.create_task(uses())
    async with asyncio.timeout(60):
        while not made:
            await asyncio.sleep(0.01)
        if how == "is cancelled":
            task.cancel()
        await asyncio.wait([task])
    assert made[0].is_closed
    assert task.cancelled() is (how == "is cancelled")


async def test_it_is_closed_when_the_streams_are_missing(
    settings: ServiceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[BusConnection] = []

    async def missing(js: object, pools: object) -> None:
        raise StreamsMissing

    async def noted(*args: object, connect=connection.connect, **kwargs: object) -> BusConnection:  # type: ignore[no-untyped-def]
        made.append(await connect(*args, **kwargs))
        return made[0]

    monkeypatch.setattr(connection, "bind", missing)
    monkeypatch.setattr(connection, "connect", noted)
    with pytest.raises(StreamsMissing):
        async with connected(settings, "test"):
            pytest.fail("there is no pool")
    assert made[0].is_closed
