"""Three NATS servers, each with a copy of every stream, and the one that leads the ledger is killed under load."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.cli.launch import LocalStack
from schemas import subjects
from tests.faults.books import books_agree
from tests.faults.chaos.brokers import jetstream, leader_of, whole
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
