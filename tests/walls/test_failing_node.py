"""A node on which every job fails at once, through the whole stack: it is taken out of use, its operator is told why and puts
it into use again, and the ledger verifies."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.pool_commands import say_to_pool
from libs.client import connect
from libs.core.scheduling.failing import IN_A_ROW
from libs.ledger.verify import verify
from schemas.inbox import UncordonNode
from schemas.jobs import JobSpec, Simulation
from schemas.pool_status import NodeView
from schemas.resources import Resources
from schemas.subjects import OPERATOR, uncordon_node

TEAMS = ("blue", "green", "red")
FLEET = "groups:\n  - {name: 'n-{i:02d}', count: 2, devices: {model: H100, count: 8, memory_gib: 80}}\n"


@pytest.mark.timeout(180)
async def test_a_node_on_which_every_job_fails_is_out_of_use_for_all_to_see(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=TEAMS, fleet=fleet, sync_always=False, scale=0.1, log_level="WARNING",
        services=("placement", "admission", "leases", "history", "queries", "telemetry"),
        env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip
    fails = JobSpec(command=("false",), simulation=Simulation(duration_s=0, exit_code=1), resources=Resources())
    async with LocalStack(options) as cluster, AsyncExitStack() as held:
        operator = await held.enter_async_context(await connect(cluster.address(OPERATOR), operator=True))
        clients = [await held.enter_async_context(await connect(cluster.address(team), team)) for team in TEAMS]

        async def out() -> list[NodeView]:
            return [node for node in (await operator.nodes()).nodes if node.status == "maintenance"]

        found: list[NodeView] = []
        for number in range(4 * IN_A_ROW):  # it may be each node's turn
            job = await clients[number % 3].submit(fails, client_key=f"j{number}", give_up_s=60)
            assert (await clients[number % 3].wait(job.job_id, timeout_s=60)).what == "failed"
            if found := await out():
                break
        (node,) = found
        assert node.out_of_use == "10 jobs of 3 teams in a row failed within a minute: repair it, then uncordon it"
        (seen,) = [one for one in (await clients[0].nodes()).nodes if one.node == node.node]
        assert (seen.status, seen.out_of_use) == ("maintenance", "")
        back = UncordonNode(node=node.node, reason="a new driver", user="operator")
        await say_to_pool(operator, "main", back, uncordon_node("main", "operator"), node.node)
        while await out():
            await asyncio.sleep(0.1)
        report = await verify(operator.nats.jetstream(), "main", states=True)
        assert not report.violations, report.violations[:3]
