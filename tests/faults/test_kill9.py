"""`kill -9` of every process in turn, twice, in the middle of a few hundred jobs: afterwards all books agree."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest
import pytest_asyncio

from libs.cli.launch import SIMULATED, LocalStack
from libs.embedded.servers import NATS
from schemas.jobs import JobState
from schemas.subjects import ledger_stream
from tests.faults.books import Auditor, auditor, books_agree
from tests.faults.cluster import PROCESSES, back, clients, deaths, kill9, running
from tests.faults.load import Planned, cancel, crowd, mixed, submit
from tests.kit.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

JOBS = 90


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with running(tmp_path_factory.mktemp("kill9")) as launched:
        yield launched


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def audit(cluster: LocalStack) -> AsyncIterator[Auditor]:
    """It reads each record once. Whole is the ledger read where the broker was killed, and at the end."""
    async with auditor(cluster) as reading:
        yield reading


@pytest.mark.parametrize("name", PROCESSES)
async def test_nothing_is_lost_or_done_twice_when_a_process_is_killed(
    cluster: LocalStack, audit: Auditor, name: str
) -> None:
    jobs = [*crowd(f"kill-{name}"), *mixed(f"kill-{name}", JOBS)]
    half = len(jobs) // 2
    earlier = len(deaths(cluster))
    async with clients(cluster) as teams:
        await submit(teams, jobs[:half])
        before = await audit.js.stream_info(ledger_stream(audit.pool))

        killed = kill9(cluster, name)
        more = asyncio.create_task(submit(teams, jobs[half:]))
        again = kill9(cluster, name) if await back(cluster, name, killed) else 0  # while it recovers
        await back(cluster, name, again)
        await more

    ends = {job.job_id: job.end for job in jobs}
    books = await books_agree(cluster, ends, audit=None if name == NATS else audit)

    others = [event for event in deaths(cluster)[earlier:] if event.name != name]
    assert not others, f"{name} took others with it: {others}"
    after = [job for job in jobs if books.ended_seq.get(job.job_id, 0) > before.state.last_seq]
    assert len(after) > half, "the kill came too late to prove anything: most jobs had ended"


async def test_a_preemption_in_the_middle_survives_the_death_of_those_who_decide_it(
    cluster: LocalStack, audit: Auditor
) -> None:
    """The victims have hours to go: one that ended by itself before it heard of the preemption would have nothing to resume."""
    *low, high = crowd("preempted", seconds=3600.0)
    low = [replace(job, end=JobState.CANCELLED) for job in low]
    async with clients(cluster) as teams:
        before = (await audit.catch_up()).report.preemptions
        await submit(teams, low)
        await until(partial(_all_run, audit, low), 60)
        await submit(teams, [high])
        await until(partial(_preempted_since, audit, before), 60)
        killed = {name: kill9(cluster, name) for name in ("preemption", "placement")}
        for name, pid in killed.items():
            await back(cluster, name, pid)
        await until(partial(_has_ended, audit, high), 60)
        await until(partial(_all_run, audit, low), 60)
        await cancel(teams, low)

    books = await books_agree(cluster, {job.job_id: job.end for job in (*low, high)}, audit=audit)

    victims = [d for job in low if (d := books.stories[job.job_id].document).preemptions]
    assert victims, "the serving job came in without a preemption"
    for victim in victims:
        first, second = victim.attempts
        assert (first.outcome, second.outcome) == ("preempted", "cancelled")
        assert second.resume is not None, f"{victim.job_id} did not resume from its checkpoint"


async def test_what_ran_on_a_killed_agent_runs_again(cluster: LocalStack, audit: Auditor) -> None:
    low = [replace(job, end=JobState.CANCELLED) for job in crowd("lost", seconds=3600.0)[:-1]]
    async with clients(cluster) as teams:
        await submit(teams, low)
        await until(partial(_all_run, audit, low), 60)
        await back(cluster, SIMULATED, kill9(cluster, SIMULATED))
        await until(partial(_all_run, audit, low, attempt=2), 60)
        await cancel(teams, low)

    books = await books_agree(cluster, {job.job_id: job.end for job in low})

    for job in low:
        outcomes = [attempt.outcome for attempt in books.stories[job.job_id].document.attempts]
        assert outcomes == ["lost", "cancelled"], f"{job.key}: {outcomes}"


async def _all_run(audit: Auditor, jobs: list[Planned], attempt: int = 1) -> bool:
    """By the ledger: every attempt of before it has ended, and one of at least this number runs."""
    stories = (await audit.catch_up()).stories
    known = [stories[job.job_id].document for job in jobs if job.job_id in stories]
    running = [d for d in known if d.state is JobState.RUNNING and len(d.attempts) >= attempt]
    return len(running) == len(jobs)


async def _has_ended(audit: Auditor, job: Planned) -> bool:
    return job.job_id in (await audit.catch_up()).ended


async def _preempted_since(audit: Auditor, before: int) -> bool:
    return (await audit.catch_up()).report.preemptions > before
