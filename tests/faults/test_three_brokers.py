"""Three NATS servers, each with a copy of every stream, and the one that leads the ledger is killed under load."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
import pytest_asyncio

from libs.bus import listing
from libs.bus.connect import close, connect
from libs.bus.retry import UNAVAILABLE
from libs.cli.launch import LocalStack
from schemas import subjects
from tests.faults.books import books_agree
from tests.faults.chaos.brokers import brokers, frozen, jetstream, leader_of, whole
from tests.faults.cluster import back, clients, kill9, running
from tests.faults.load import mixed, submit

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

JOBS = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with running(tmp_path_factory.mktemp("three"), brokers=3) as launched:
        yield launched


async def test_nothing_is_lost_or_done_twice_when_the_ledgers_leader_is_killed(cluster: LocalStack) -> None:
    jobs = mixed("leader-killed", JOBS)
    async with clients(cluster) as teams, jetstream(cluster) as js:
        await submit(teams, jobs[: JOBS // 2])
        leader = await leader_of(js, subjects.ledger_stream(cluster.options.pool))
        killed = kill9(cluster, leader)
        await submit(teams, jobs[JOBS // 2 :])
        await back(cluster, leader, killed)
    books = await books_agree(cluster, {job.job_id: job.end for job in jobs})
    losses = [a.outcome for s in books.stories.values() for a in s.document.attempts if a.outcome == "lost"]
    assert not losses, "leases did not outlast the election"
    await whole(cluster)


async def test_streams_without_a_leader_are_no_streams_that_are_gone(cluster: LocalStack) -> None:
    """A reader that took such a list for the whole ledger ended: "the broker lost its tail"."""
    async with jetstream(cluster) as js:
        there = {info["config"]["name"] for info in await listing.streams(js)}
    urls, names, unheard = cluster.servers.nats_url.split(","), brokers(cluster), 0
    for number, name in enumerate(names):
        nats = await connect(replace(cluster.address(), url=urls[number - 1]), name="lists")
        try:
            async with frozen(cluster, name):
                try:
                    listed = await listing.streams(nats.jetstream())
                    assert {info["config"]["name"] for info in listed} == there
                except listing.NotAllListed:
                    unheard += 1
                except UNAVAILABLE:  # it was the one that answers for all
                    pass
            await whole(cluster)
        finally:
            with suppress(*UNAVAILABLE):
                await close(nats)
    assert unheard, "no server that was frozen led a stream"
