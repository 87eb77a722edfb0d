"""Admission processes of one broker judge for the same pools, or the later one does not start."""

import asyncio

import pytest

from libs.bus.connect import BusConnection
from services.admission.app import make_app
from services.admission.peers import OtherPools, answer, check, watch
from services.admission.settings import AdmissionSettings
from tests.admission.running import running


async def test_one_that_knows_other_pools_does_not_start(nats_url: str, pool: str, other_pool: str) -> None:
    def app(*pools: str) -> object:
        return make_app(AdmissionSettings(nats_url=nats_url, pools=pools))

    async with running(app(pool, other_pool)):
        for pools in ((pool,), (other_pool, pool)):
            with pytest.raises(OtherPools, match=f"judges for {pool}, {other_pool}: .* the same BATON_POOLS"):
                async with running(app(*pools)):
                    pytest.fail("it must not start")
        async with running(app(pool, other_pool)):
            pass  # a second one of the same pools


async def test_those_that_started_at_the_same_time_find_out(nats: BusConnection) -> None:
    await check(nats, ["a"])
    await answer(nats, ["a"])
    await check(nats, ["a"])
    with pytest.raises(OtherPools):
        async with asyncio.timeout(30):
            await watch(nats, ["b"], every_s=0.05)
