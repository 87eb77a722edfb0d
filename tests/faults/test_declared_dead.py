"""A node with work that is kept falls silent: nothing succeeds it, until an operator says that the node is dead."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from libs.cli.launch import REAL, ROOT, LaunchOptions, LocalStack
from libs.client import Baton, connect
from libs.core.admission.priority_class import DEFAULT_CLASSES
from schemas.jobs import JobSpec, JobState
from schemas.resources import Resources
from services.agent.keeper import find
from tests.kit.commands import fork
from tests.kit.held import held
from tests.kit.waiting import until

pytestmark = pytest.mark.faults

SERVICES = ("admission", "placement", "telemetry", "leases", "history", "queries")
JOB = 'import time\nopen("begun", "w").close()\ntime.sleep(3600)'


async def test_what_is_kept_is_succeeded_only_once_an_operator_has_said_that_its_node_is_dead(tmp_path: Path) -> None:
    classes = tmp_path / "classes.yaml"
    kept = {"name": "kept", "priority": 50, "preempts": False, "lease": "keep", "description": "no silence ends it"}
    classes.write_text(yaml.safe_dump({"classes": [*(c.model_dump(mode="json") for c in DEFAULT_CLASSES), kept]}))
    options = LaunchOptions(
        state_dir=tmp_path / "state",
        teams=("a",),
        real_node="cpu",
        services=SERVICES,
        env={
            "admission": {"BATON_CLASSES_FILE": str(classes)},
            "leases": {"BATON_LEASES_SILENT_S": "2", "BATON_LEASES_TERM_S": "3", "BATON_LEASES_BROKER_S": "1"},
            REAL: {"BATON_AGENT_LEASE_S": "2"},
        },
        sync_always=False,
    )
    agent = options.state_dir / "services" / REAL / "agent"
    async with LocalStack(options) as stack, await connect(stack.address("a"), "a") as team:
        spec = JobSpec(command=(sys.executable, "-c", JOB), resources=Resources(types=("CPU",)), priority_class="kept")
        job = (await team.submit(spec, "stays")).job_id

        def begun(attempt: int) -> bool:
            return bool(list((agent.parent / "jobs").glob(f"{job}.{attempt}/begun")))

        await until(lambda: begun(1))
        first = held(find.running(agent))
        pid = stack.supervisor.pid(REAL)
        os.kill(pid, signal.SIGSTOP)
        try:
            node = await until(lambda: _silent(team))
            await asyncio.sleep(3.0)  # more than its lease, once more
            document = await team.get(job)
            assert (document.state, len(document.attempts)) == (JobState.RUNNING, 1), "nothing has ended it"
            assert held(find.running(agent)) == first
            await _declare_dead(stack, node)
            await until(lambda: _waits(team, job))
            assert held(find.running(agent)) == first, "the operator's statement was false"
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: begun(2))
        assert not first & held(find.running(agent)), "it killed all that it had before it came back"

        async def outcomes() -> list[str]:
            return [attempt.outcome for attempt in (await team.get(job)).attempts]

        while await outcomes() == ["lost"]:  # history is a moment behind the node
            await asyncio.sleep(0.1)
        assert await outcomes() == ["lost", ""]
        said = await _cli(stack, "audit", "--kind", "node.declare-dead", "-o", "json")
        assert "the power is off" in said


async def _silent(team: Baton) -> str:
    return next((node.node for node in (await team.nodes()).nodes if node.status == "silent"), "")


async def _waits(team: Baton, job: str) -> bool:
    return (await team.get(job)).state is JobState.QUEUED


async def _declare_dead(stack: LocalStack, node: str) -> None:
    await _cli(stack, "node", "declare-dead", node, "--fenced-by", "the power is off")


async def _cli(stack: LocalStack, *words: str) -> str:
    code, out, err = await fork().run(words, {**os.environ, "BATON_STATE_DIR": str(stack.state_dir)}, ROOT)
    assert code == 0, err.decode()
    return (out + err).decode()
