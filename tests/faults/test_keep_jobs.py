"""`baton up --keep-jobs`: the whole control plane is stopped and started again, and a job does not notice."""

import asyncio
from pathlib import Path

import pytest

from libs.cli.launch import REAL, LaunchOptions, LocalStack
from libs.client import connect
from libs.ports import clock
from schemas.jobs import JobSpec, JobState
from schemas.resources import Resources
from services.agent.keeper import find
from tests.kit.held import held, shims
from tests.kit.waiting import until

pytestmark = pytest.mark.faults

NEEDED = ("admission", "placement", "telemetry", "leases", "history")
JOB = 'import os, time\nopen("begun", "w").close()\nwhile not os.path.exists("end"): time.sleep(0.02)'


async def test_a_job_runs_on_while_everything_else_is_stopped(tmp_path: Path) -> None:
    options = LaunchOptions(
        state_dir=tmp_path, teams=("a",), real_node="cpu", keep_jobs=True, scale=0.05, services=NEEDED
    )
    agent = tmp_path / "services" / REAL / "agent"

    def processes() -> set[int]:
        return held(find.running(agent))

    try:
        async with LocalStack(options) as first, await connect(first.address("a"), "a") as team:
            spec = JobSpec(command=("python3", "-c", JOB), resources=Resources(types=("CPU",)))
            job_id = (await team.submit(spec, "stays")).job_id
            jobs = agent.parent / "jobs"
            await until(lambda: list(jobs.glob(f"{job_id}.1/begun")), 60)
            await until(lambda: len(processes() - shims(find.running(agent))) == 1, 60)
            running = processes()
        assert processes() == running
        assert find.running(agent)
        async with LocalStack(options) as second, await connect(second.address("a"), "a") as team:
            assert processes() == running
            next(jobs.glob(f"{job_id}.1")).joinpath("end").touch()
            assert (await team.wait(job_id, timeout_s=60)).state is JobState.SUCCEEDED
            attempts = (await team.get(job_id)).attempts
            assert [attempt.outcome for attempt in attempts] == ["succeeded"], "one attempt, the first"
    finally:
        find.kill(agent)


PAUSE_S = 12.0
"""More than ledger time goes on by an input's word alone."""


async def test_what_ends_while_everything_is_stopped_is_billed_until_its_node_can_say_so(tmp_path: Path) -> None:
    """Nobody else could be granted its devices until then. It was billed for the pause, or not, by whether the first tick
    came before the report."""
    options = LaunchOptions(
        state_dir=tmp_path, teams=("a",), real_node="cpu", keep_jobs=True, scale=0.05, services=NEEDED
    )
    agent = tmp_path / "services" / REAL / "agent"
    try:
        async with LocalStack(options) as first, await connect(first.address("a"), "a") as team:
            spec = JobSpec(command=("python3", "-c", JOB), resources=Resources(types=("CPU",)))
            job_id = (await team.submit(spec, "ends")).job_id
            jobs = agent.parent / "jobs"
            await until(lambda: list(jobs.glob(f"{job_id}.1/begun")), 60)
        next(jobs.glob(f"{job_id}.1")).joinpath("end").touch()
        await until(lambda: not held(find.running(agent)), 60)
        await asyncio.sleep(PAUSE_S)
        back_us = clock.wall_us()
        async with LocalStack(options) as second, await connect(second.address("a"), "a") as team:
            assert (await team.wait(job_id, timeout_s=60)).state is JobState.SUCCEEDED
            (attempt,) = (await team.get(job_id)).attempts
            assert attempt.closed_us is not None
            assert attempt.closed_us > back_us
            assert attempt.closed_us < clock.wall_us() + 1_000_000
    finally:
        find.kill(agent)
