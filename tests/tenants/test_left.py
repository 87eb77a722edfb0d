"""A team leaves, and its files go from the nodes: real services, a real agent, jobs that save. Files of another team stay, and
what the team saves after it has come back, too."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from libs.bus.connect import Address
from libs.cli.launch import LocalStack
from libs.cli.launch_options import LaunchOptions
from libs.cli.team_offboard import Leaving, offboard
from libs.cli.team_pause import go_on
from libs.client import Baton, connect
from libs.walls.resolver import tell
from schemas.jobs import JobSpec, JobState
from schemas.resources import Resources
from schemas.subjects import OPERATOR
from tests.history.written import Service
from tests.kit.waiting import until
from tests.tenants.test_drill import FLEET, SERVICES, reaches

SAVES = "import os, pathlib; pathlib.Path(os.environ['BATON_CHECKPOINT_DIR'], 'step-3').write_text('weights')"
JOB = JobSpec(command=(sys.executable, "-c", SAVES), resources=Resources(devices=1))


def lies(agent: Path, *job_ids: str) -> list[str]:
    """What an agent has of these jobs: checkpoints, homes, output, and, sooner or later, whose the checkpoints are."""
    found = [
        Path(folder, name) for folder, folders, files in os.walk(agent) for name in (*folders, *files)
    ]  # may go meanwhile
    return sorted(path.relative_to(agent).as_posix() for path in found if path.name.partition(".")[0] in job_ids)


async def test_files_of_a_team_that_leaves_go_and_no_others(tmp_path: Path) -> None:
    fleet, home, keys = tmp_path / "fleet.yaml", tmp_path / "agent", tmp_path / "keys"
    fleet.write_text(FLEET)
    options = LaunchOptions(
        state_dir=tmp_path / "instance", teams=("red", "blue"), services=(*SERVICES, "telemetry"), sync_always=False, scale=0.1,
        log_level="WARNING", env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip
    async with LocalStack(options) as cluster, AsyncExitStack() as stack:
        creds = cluster.nodes_address("main").creds
        assert creds is not None
        shutil.copytree(creds.parent, keys)

        @asynccontextmanager
        async def agent() -> AsyncIterator[None]:
            service = Service(
                "agent", BATON_NATS_URL=cluster.nats_url, BATON_NATS_CREDS=str(keys / creds.name), BATON_POOL="main",
                BATON_AGENT_FLEET=str(fleet), BATON_AGENT_DEVICES="none", BATON_STATE_DIR=str(home),
                BATON_AGENT_LEFT_S="0.5", BATON_AGENT_SAMPLE_S="0.5", BATON_AGENT_ON_STOP="drain",
                BATON_AGENT_TEAMS_WITHOUT_WALLS="true",
            )  # fmt: skip
            async with service:
                yield

        operator = await stack.enter_async_context(await connect(cluster.address(OPERATOR), OPERATOR))
        blue = await stack.enter_async_context(await connect(cluster.address("blue")))
        async with agent():
            async with await connect(cluster.address("red")) as red:
                theirs = await saved(red)
            others = await saved(blue)
        assert min(len(lies(home, theirs)), len(lies(home, others))) >= 3, "the agent is off"

        told = await leaves(cluster, operator, tmp_path / "export")
        async with agent():
            await until(lambda: gone(home, theirs))
            await until(lambda: cleared(operator, told))
            assert len(lies(home, others)) >= 3

            assert list((await go_on(operator, "red", "it is back")).decided) == ["main"]
            ring = cluster.keyring
            again = Address(cluster.nats_url, ring.team("red"))
            await tell(cluster.nats_url, ring, ["red"])
            async with await connect(again) as red:
                new = await saved(red)
            await saved(blue)
            kept = lies(home, new)
            assert len(kept) >= 3

            await leaves(cluster, operator, tmp_path / "export-again")
            await until(lambda: gone(home, new))
            assert len(lies(home, others)) >= 3


async def saved(team: Baton) -> str:
    job = await team.submit(JOB)
    await reaches(team, job.job_id, JobState.SUCCEEDED)
    return job.job_id


async def leaves(cluster: LocalStack, operator: Baton, export: Path) -> int:
    """Which ledger record tells it."""
    steps: dict[str, str] = {}
    asked = Leaving("red", export, "its contract ends", False, 60)
    told = await offboard(operator, cluster.keyring, asked, steps.__setitem__)
    record = told.decided["main"]
    assert record is not None
    assert steps["nodes"] == f"are told by main from record {record} on that its files go"
    return record


async def cleared(operator: Baton, record: int) -> bool:
    """Whether all nodes say that they have done it."""
    return all((node.cleared_seq or 0) >= record for node in (await operator.nodes()).nodes)


async def gone(agent: Path, job_id: str) -> bool:
    return not await asyncio.to_thread(lies, agent, job_id)
