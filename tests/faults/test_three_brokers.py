"""Three NATS servers, each with a copy of every stream, and the one that leads the ledger is killed under load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
import pytest_asyncio
from nats.js.api import PubAck
from nats.js.errors import APIError

from libs.bus import listing
from libs.bus.connect import close, connect
from libs.bus.messages import outgoing
from libs.bus.outbox import Outbox, is_undecided
from libs.bus.retry import UNAVAILABLE
from libs.cli.launch import LocalStack
from schemas import subjects
from schemas.inbox import Tick
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


async def test_a_message_that_is_sent_again_before_the_servers_agree_on_it_is_no_refusal(cluster: LocalStack) -> None:
    """The leader says "duplicate message id is in process" then, which ended a team's submit."""
    pool = cluster.options.pool
    tick = outgoing(
        Tick(), subject=subjects.inbox("clock", "tick", pool), type="io.baton.clock.tick.v1", source="/test", cause="twice"
    )  # fmt: skip
    async with jetstream(cluster) as js:
        leader = await leader_of(js, f"INBOX-{pool}")
    urls, names = cluster.servers.nats_url.split(","), brokers(cluster)
    nats = await connect(replace(cluster.address(), url=urls[names.index(leader)]), name="sends twice")

    async def sent(timeout_s: float) -> PubAck:
        return await nats.jetstream().publish(tick.subject, tick.payload, headers=tick.headers, timeout=timeout_s)

    try:
        async with frozen(cluster, *(name for name in names if name != leader)):
            with pytest.raises(TimeoutError):
                await sent(0.5)
            with pytest.raises(APIError, match="in process") as refused:
                await sent(10)
            assert is_undecided(refused.value)
            again = asyncio.create_task(Outbox(nats.jetstream()).publish(tick))
            await asyncio.sleep(0.5)
            assert not again.done(), "it is neither stored nor refused"
        stored, repeated = await again, await Outbox(nats.jetstream()).publish(tick)
        assert (repeated.seq, repeated.duplicate) == (stored.seq, True)
    finally:
        await close(nats)
    await whole(cluster)
