"""Two placement processes on one pool, always: whatever becomes of either, one ledger, and nothing is granted twice."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.cli.launch import LocalStack
from tests.faults.books import auditor, books_agree
from tests.faults.cluster import back, clients, running
from tests.faults.load import crowd, mixed, submit
from tests.kit.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PAIR = ("placement", "placement-2")
JOBS = 150
FROZEN_S = 3.0
"""Long enough for the other one to take over."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with running(tmp_path_factory.mktemp("pair"), copies={"placement": 2}) as launched:
        yield launched


async def leader(cluster: LocalStack) -> str:
    """The process that wrote the newest record; its writer id ends with its pid."""
    async with auditor(cluster) as audit:
        pids = {str(cluster.supervisor.pid(name)): name for name in PAIR}

        async def newest() -> str | None:
            return pids.get((await audit.newest_writer()).rpartition("-")[2])

        found: str = await until(newest, 60)
        return found


async def test_the_other_goes_on_when_the_leading_one_is_killed(cluster: LocalStack) -> None:
    jobs = [*crowd("killed"), *mixed("killed", JOBS)]
    half = len(jobs) // 2
    async with clients(cluster) as teams:
        await submit(teams, jobs[:half])
        first = await leader(cluster)
        killed = cluster.supervisor.pid(first)
        os.kill(killed, signal.SIGKILL)
        await submit(teams, jobs[half:])
        await back(cluster, first, killed)

    books = await books_agree(cluster, {job.job_id: job.end for job in jobs})

    assert len(books.writers) >= 2, f"only one process ever wrote: {books.writers}"


async def test_a_leader_that_was_frozen_grants_nothing_from_its_old_view(cluster: LocalStack) -> None:
    jobs = [*crowd("frozen"), *mixed("frozen", JOBS)]
    third = len(jobs) // 3
    async with clients(cluster) as teams:
        for part in (jobs[:third], jobs[third : 2 * third], jobs[2 * third :]):
            await submit(teams, part)
            frozen = cluster.supervisor.pid(await leader(cluster))
            os.kill(frozen, signal.SIGSTOP)
            try:
                await asyncio.sleep(FROZEN_S)
            finally:
                os.kill(frozen, signal.SIGCONT)

    books = await books_agree(cluster, {job.job_id: job.end for job in jobs})

    now = {str(cluster.supervisor.pid(name)) for name in PAIR}
    wrote = {writer for writer in books.writers if writer.rpartition("-")[2] in now}
    assert len(wrote) == 2, f"both processes live, and only {wrote} wrote: nothing was proved"
    assert books.changes >= 3, "the lead never changed hands while one was frozen"
