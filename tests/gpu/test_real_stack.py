"""All of Baton on a machine with an NVIDIA GPU: real servers, every service, and jobs that work on the GPU behind full walls.

They run where NVML finds a device, and are skipped elsewhere (`python -m tests.gpu.pack` makes what they need).
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from libs.cli.launch import REAL, LaunchOptions, LocalStack
from libs.client import Baton, NotFound
from schemas.billing import BillQuery
from schemas.jobs import CheckpointPolicy, JobSpec, JobState
from schemas.pool_status import DeviceView
from schemas.resources import DeviceKind, Resources
from tests.faults.books import books_agree
from tests.faults.cluster import clients, kill9
from tests.gpu.test_real_gpu import LOAD, there
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not there(), reason="NVML finds no device"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the tier full needs root"),
]
GIB_MIB = 1024
TRAIN = LOAD.with_name("train.py")


@asynccontextmanager
async def stack(folder: Path) -> AsyncIterator[tuple[LocalStack, Mapping[str, Baton]]]:
    options = LaunchOptions(
        state_dir=folder,
        teams=("red", "blue"),
        real_node="nvml",
        scale=0.1,
        env={REAL: {"BATON_AGENT_READABLE": json.dumps([str(LOAD.parent)]), "BATON_AGENT_SAMPLE_S": "1"}},
    )
    async with LocalStack(options) as cluster, clients(cluster) as teams:
        assert cluster.walls()[0] == "full"
        yield cluster, teams


async def gpu(team: Baton) -> DeviceView:
    """The machine's GPU as the team sees it; this machine's processors are a device beside it."""
    (found,) = [device for device in (await team.devices()).devices if device.kind == DeviceKind.GPU]
    return found


async def says(team: Baton, job_id: str, attempt: int = 0) -> list[dict[str, int]]:
    """What `load.py` or `train.py` has said so far."""
    try:
        text = "".join([piece.text async for piece in team.logs(job_id, attempt=attempt)])
    except NotFound:  # not yet
        return []
    return [json.loads(line) for line in text.splitlines()]


async def said(team: Baton, job_id: str, word: str, attempt: int = 0) -> int | None:
    """The value that it said for `word`."""
    return next((line[word] for line in await says(team, job_id, attempt) if word in line), None)


async def test_a_training_gives_its_gpu_to_serving_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    async with stack(tmp_path) as (cluster, teams):
        red, blue = teams["red"], teams["blue"]
        device = await gpu(red)
        training = JobSpec(
            command=(sys.executable, str(TRAIN), "3000", str(4 * GIB_MIB)),
            resources=Resources(types=(device.model,), memory_mib=8 * GIB_MIB),
            priority_class="experiment",
            checkpoint=CheckpointPolicy(grace_s=60),
        )
        first = (await red.submit(training, "training")).job_id

        async def busy() -> bool:
            seen = await gpu(red)
            works = (seen.utilization_pct or 0) > 80 and (seen.memory_used_mib or 0) > 4 * GIB_MIB
            return works and seen.jobs == (first,)

        await until(busy)
        hidden = await gpu(blue)
        assert (hidden.jobs, hidden.utilization_pct) == ((), None), "another team's work is nobody's to see"
        serving = JobSpec(
            command=(sys.executable, str(LOAD), "3", "1024"),
            resources=Resources(types=(device.model,)),
            priority_class="serving",
        )
        second = (await blue.submit(serving, "serving")).job_id
        assert (await blue.wait(second, timeout_s=90)).state is JobState.SUCCEEDED
        assert (await red.wait(first, timeout_s=120)).state is JobState.SUCCEEDED

        attempts = (await red.get(first)).attempts
        assert [attempt.outcome for attempt in attempts] == ["preempted", "succeeded"]
        saved = await said(red, first, "saved", 1)
        assert saved
        assert await said(red, first, "begins", 2) == saved, "it goes on where it had saved"
        books = await books_agree(cluster, {first: JobState.SUCCEEDED, second: JobState.SUCCEEDED})
        bill = await red.bill(BillQuery())
        print("\ndevice:", device, "\nattempts:", attempts, "\nbill:", bill, "\nrecords:", books.seq)


async def test_a_job_on_the_gpu_does_not_notice_that_its_agent_is_killed(tmp_path: Path) -> None:
    async with stack(tmp_path) as (cluster, teams):
        red = teams["red"]
        spec = JobSpec(command=(sys.executable, str(LOAD), "15", "1024"), resources=Resources())
        job_id = (await red.submit(spec, "stays")).job_id
        await until(partial(said, red, job_id, "works"))
        killed = kill9(cluster, REAL)
        await cluster.supervisor.wait_ready(REAL, replaced_pid=killed, timeout_s=60)
        assert (await red.wait(job_id, timeout_s=90)).state is JobState.SUCCEEDED
        assert [a.outcome for a in (await red.get(job_id)).attempts] == ["succeeded"]
        await books_agree(cluster, {job_id: JobState.SUCCEEDED})


async def test_shares_of_one_gpu_work_beside_each_other(tmp_path: Path) -> None:
    """And what asks for more memory than is left waits."""
    async with stack(tmp_path) as (cluster, teams):
        red, blue = teams["red"], teams["blue"]
        device = await gpu(red)
        share = Resources(share_milli=400, memory_mib=4 * GIB_MIB)
        spec = JobSpec(command=(sys.executable, str(LOAD), "600", "1024"), resources=share)
        ours, theirs = (await red.submit(spec, "ours")).job_id, (await blue.submit(spec, "theirs")).job_id
        await until(partial(said, red, ours, "works"))
        await until(partial(said, blue, theirs, "works"))
        large = JobSpec(
            command=(sys.executable, str(LOAD), "1", "256"),
            resources=Resources(share_milli=100, memory_mib=device.memory_mib - 4 * GIB_MIB),
        )
        waits = (await red.submit(large, "waits")).job_id
        await until(partial(_waits, red, waits))
        await red.cancel(ours)
        await blue.cancel(theirs)
        assert (await red.wait(waits, timeout_s=60)).state is JobState.SUCCEEDED
        ends = {ours: JobState.CANCELLED, theirs: JobState.CANCELLED, waits: JobState.SUCCEEDED}
        await books_agree(cluster, ends)


async def _waits(team: Baton, job_id: str) -> bool:
    with suppress(NotFound):  # not yet
        return (await team.get(job_id)).state is JobState.QUEUED and (await team.explain(job_id)).reason == "busy"
    return False
