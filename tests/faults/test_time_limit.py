"""Placement is frozen while jobs reach their time limits: nodes end them, and the books say what placement would have said."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from libs.cli.launch import REAL, SIMULATED, LaunchOptions, LocalStack
from libs.client import connect
from libs.embedded.servers import NATS
from libs.ports import clock
from schemas import subjects
from schemas.jobs import JobSpec, JobState, RetryPolicy, Simulation
from schemas.nodes import NodeChanged
from schemas.resources import Resources
from tests.faults.books import auditor, books_agree, processes_of_jobs
from tests.faults.chaos.brokers import frozen
from tests.faults.cluster import FLEET, PROCESSES, QUOTAS
from tests.kit.waiting import stored, until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

LIMIT_S = 2.0
GRACE = {"BATON_AGENT_LIMIT_GRACE_S": "2"}
PAUSE_S = 8
"""So long placement stays away after that: what it books later than half of it was billed after its end."""
RETRY = RetryPolicy(on_failure=3)
"""None of them is used: who was over its limit is not tried again."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    options = LaunchOptions(
        state_dir=tmp_path_factory.mktemp("limits"), teams=("a",), fleet=FLEET, real_node="cpu", quotas=QUOTAS, scale=0.1,
        env={REAL: GRACE, SIMULATED: GRACE}, log_level="WARNING",
    )  # fmt: skip
    async with LocalStack(options) as launched:
        yield launched


def process() -> JobSpec:
    """It answers when it is asked to end, and leaves a child behind."""
    code = "trap 'exit 7' TERM; setsid sleep 600 & sleep 600 & wait"
    return JobSpec(
        name="process", command=("sh", "-c", code), resources=Resources(types=("CPU",), share_milli=50), retry=RETRY,
        time_limit_s=LIMIT_S,
    )  # fmt: skip


def gang() -> JobSpec:
    return JobSpec(
        name="gang", resources=Resources(devices=16, types=("V100",)), simulation=Simulation(duration_s=3600), retry=RETRY,
        time_limit_s=LIMIT_S,
    )  # fmt: skip


async def test_nodes_end_what_is_over_its_limit_while_placement_is_frozen(cluster: LocalStack) -> None:
    async with await connect(cluster.address("a"), "a") as team, auditor(cluster) as audit:
        told: set[str] = set()
        """Nodes that have heard that all of the gang runs."""

        async def hears(message: Msg) -> None:
            change = NodeChanged.model_validate_json(message.data)
            told.update([change.node] if change.running else [])

        await audit.nats.subscribe(subjects.changed(audit.pool), cb=hears)
        await audit.nats.flush()
        jobs = [(await team.submit(spec, spec.name)).job_id for spec in (process(), gang())]

        async def all_run() -> bool:
            books = await audit.catch_up()
            found = [books.stories[one].document for one in jobs if one in books.stories]
            run = [one for one in found if one.attempts and one.attempts[-1].running_us]
            return len(run) == 2 and len(told) == 2

        async def over() -> bool:
            """The process, and both parts of the gang."""
            found = await stored(
                audit.js, subjects.inbox_stream(audit.pool), subjects.node_inbox("observed", audit.pool)
            )
            return sum(message.data.count(b'"over_limit":true') for message in found) >= 3

        await until(all_run, 60)
        frozen = cluster.supervisor.pid("placement")
        os.kill(frozen, signal.SIGSTOP)
        try:
            await until(over, 60)
            assert processes_of_jobs(cluster.state_dir) == []
            over_us = clock.wall_us()
            await asyncio.sleep(PAUSE_S)
        finally:
            os.kill(frozen, signal.SIGCONT)
    books = await books_agree(cluster, dict.fromkeys(jobs, JobState.FAILED))
    for one in jobs:
        document = books.stories[one].document
        (attempt,) = document.attempts
        assert (attempt.outcome, attempt.category) == ("time-limit", "time-limit")
        assert document.reason == "it ran for its time limit of 2 s"
        assert attempt.closed_us is not None
        assert attempt.closed_us < over_us + PAUSE_S * 1_000_000 // 2, "it was billed after its end"
        assert attempt.exit_code == (7 if one == jobs[0] else 143)


def timer(seconds: float) -> JobSpec:
    return JobSpec(
        name="timer", resources=Resources(devices=1, types=("V100",)), simulation=Simulation(duration_s=seconds)
    )


async def test_what_ends_while_everything_stands_still_is_billed_for_that_time_and_over_its_limit_as_ever(
    cluster: LocalStack,
) -> None:
    """As when a machine sleeps. It was billed for it, or not, by whether a node's report came before the first tick."""
    async with await connect(cluster.address("a"), "a") as team, auditor(cluster) as audit:
        specs = (timer(PAUSE_S), process().model_copy(update={"time_limit_s": float(PAUSE_S)}))
        jobs = [(await team.submit(spec, f"pause-{spec.name}")).job_id for spec in specs]

        async def all_run() -> bool:
            books = await audit.catch_up()
            return all(
                one in books.stories
                and books.stories[one].document.attempts[-1:]
                and books.stories[one].document.attempts[-1].running_us
                for one in jobs
            )

        await until(all_run, 60)
    everything = [cluster.supervisor.pid(name) for name in PROCESSES]
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(2 * PAUSE_S)
    awake_us = clock.wall_us()
    for pid in reversed(everything):
        os.kill(pid, signal.SIGCONT)
    books = await books_agree(cluster, {jobs[0]: JobState.SUCCEEDED, jobs[1]: JobState.FAILED})
    ends = [books.stories[one].document.attempts[-1] for one in jobs]
    assert [end.outcome for end in ends] == ["succeeded", "time-limit"]
    assert all(end.closed_us is not None and end.closed_us > awake_us for end in ends)


async def test_while_the_broker_is_frozen_time_goes_on(cluster: LocalStack) -> None:
    """What was sent meanwhile is stored at one moment. Of 20 s of a freeze a job was billed for 14."""
    lasts_s = 2.5 * PAUSE_S
    async with await connect(cluster.address("a"), "a") as team, auditor(cluster) as audit:
        job = (await team.submit(timer(lasts_s), "frozen-broker")).job_id

        async def runs() -> bool:
            books = await audit.catch_up()
            return job in books.stories and bool(books.stories[job].document.attempts[-1:])

        await until(runs, 60)
        await asyncio.sleep(1)
    async with frozen(cluster, NATS):
        await asyncio.sleep(1.5 * PAUSE_S)
    books = await books_agree(cluster, {job: JobState.SUCCEEDED})
    (attempt,) = books.stories[job].document.attempts
    assert attempt.closed_us is not None
    assert attempt.running_us is not None
    assert attempt.closed_us - attempt.running_us > (lasts_s - 1) * 1e6
