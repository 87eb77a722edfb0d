"""A real agent process that is frozen or killed: its jobs end all the same. Watched from outside, through /proc."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request

import psutil
import pytest

from libs.bus.queries import NoAnswer, ask
from schemas.catalog import BY_TYPE
from schemas.inbox import Released, Started
from schemas.queries import LogQuery
from services.agent import tree
from services.agent.guard import Watched, read_line
from services.agent.guarding import Guard
from services.agent.state import group_name
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until
from tests.agent.test_processes import FOREVER, STUBBORN_DAEMON
from tests.agent.world import World

pytestmark = pytest.mark.faults

FLEET = "groups: [{name: 'n{i}', count: 1, devices: {model: H100, count: 4, memory_gib: 80}}]"
JOB = STUBBORN_DAEMON + FOREVER


class AgentProcess:
    """`python -m services.agent`, as it runs on a node."""

    def __init__(self, nats_url: str, pool: str, root, cgroups: bool) -> None:
        (root / "fleet.yaml").write_text(FLEET)
        self.environment = {
            "PATH": os.environ["PATH"],
            "BATON_NATS_URL": nats_url,
            "BATON_POOL": pool,
            "BATON_STATE_DIR": str(root),
            "BATON_AGENT_FLEET": str(root / "fleet.yaml"),
            "BATON_AGENT_LEASE_S": "4",
            "BATON_AGENT_ASK_S": "0.2",
            "BATON_AGENT_CGROUPS": str(cgroups).lower(),
        }
        self.log = (root / "agent.log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "services.agent"]
        self.process = subprocess.Popen(command, env=self.environment, stdout=self.log, stderr=self.log)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def guard(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        living = [child for child in children if tree.alive(child.pid)]
        return next(child for child in living if "services.agent.guard" in child.cmdline())

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


@pytest.fixture
async def world(nats, pool):
    return await World(nats, pool).open()


@pytest.fixture(params=[True, False], ids=["cgroup", "marker"])
def agent(request, nats_url, world, tmp_path):
    one = AgentProcess(nats_url, world.pool, tmp_path, request.param)
    one.start()
    yield one
    one.end()


async def run_job(world: World, root) -> tuple[set[int], object]:
    """Starts a job with a detached daemon; returns the processes that belong to it and what was wanted."""
    await world.joined("n0")
    wanted = part(spec(JOB), rank("n0-gpu0"))
    await world.want("n0", wanted)
    await world.sees(wanted, Started)
    prefix = tree.marker_root("n0", root) + "/"
    await until(lambda: len(tree.marked(prefix)) == 2)
    return tree.marked(prefix), wanted


async def test_a_frozen_agents_jobs_end_with_its_lease(agent, world, tmp_path):
    pids, wanted = await run_job(world, tmp_path)
    agent.signal(signal.SIGSTOP)
    await until(lambda: not any(tree.alive(pid) for pid in pids))
    assert psutil.Process(agent.process.pid).status() == psutil.STATUS_STOPPED, "not the agent did it"
    agent.signal(signal.SIGCONT)
    await world.joined("n0", lives=2)
    assert world.of(wanted, Released) == [], "killed by the guard is no exit of its own"


async def test_a_killed_agents_jobs_end_at_once(agent, world, tmp_path):
    pids, _ = await run_job(world, tmp_path)
    agent.signal(signal.SIGKILL)
    await until(lambda: not any(tree.alive(pid) for pid in pids))


async def test_what_agent_and_guard_left_when_both_were_killed_is_gone_before_the_node_registers(
    agent, world, tmp_path
):
    pids, _ = await run_job(world, tmp_path)
    agent.guard().kill()
    agent.signal(signal.SIGKILL)
    agent.process.wait()
    assert all(tree.alive(pid) for pid in pids), "nobody was left to end them"
    alive_at_registration = []

    async def registered(_):
        alive_at_registration.append([pid for pid in pids if tree.alive(pid)])

    await world.nats.subscribe(f"baton.in.node.v1.registered.{world.pool}.*", cb=registered)
    agent.start()
    await world.joined("n0", lives=2)
    await until(lambda: alive_at_registration)
    assert alive_at_registration[0] == []


async def test_it_answers_probes_metrics_and_questions_about_output(agent, world, tmp_path):
    _, wanted = await run_job(world, tmp_path)
    await until((tmp_path / "agent.http").exists)
    base = f"http://127.0.0.1:{(tmp_path / 'agent.http').read_text().strip()}"

    def get(path: str) -> str:
        with urllib.request.urlopen(base + path) as answer:
            return answer.read().decode()

    ready = json.loads(await asyncio.to_thread(get, "/readyz"))
    assert ready["checks"] == {"nats": "ok", "nodes": "ok", "leases": "ok", "guard": "ok"}
    metrics = await asyncio.to_thread(get, "/metrics")
    assert "baton_agent_parts 1.0" in metrics
    assert "baton_agent_started_total 1.0" in metrics
    log_read = BY_TYPE["io.baton.log.read.query.v1"]
    piece = await ask(world.nats, log_read, LogQuery(job_id=wanted.job_id), team="blue", user="ana")
    assert "up" in piece.text
    assert not piece.ended
    with pytest.raises(NoAnswer):
        await ask(world.nats, log_read, LogQuery(job_id=wanted.job_id), team="green", user="ana", timeout_s=0.5)


async def test_a_guard_that_was_killed_is_replaced(agent, world, tmp_path):
    pids, _ = await run_job(world, tmp_path)
    first = agent.guard()
    first.kill()

    def replaced() -> bool:
        try:
            return agent.guard().pid != first.pid
        except (StopIteration, psutil.Error):
            return False

    await until(replaced)
    agent.signal(signal.SIGSTOP)
    await until(lambda: not any(tree.alive(pid) for pid in pids))


async def test_a_new_guard_knows_what_to_watch_before_it_lives(tmp_path, monkeypatch):
    """An agent that is frozen or killed right after it has started the next guard has no chance to tell it anything."""
    marker = tree.marker_root("n0", tmp_path)
    job = await asyncio.create_subprocess_exec(
        "sleep", "600", env={tree.MARKER: f"{marker}/job-1.1"}, start_new_session=True
    )
    guard = Guard()
    guard.watch("n0", marker, None)
    guard._process.kill()
    guard._process.wait()
    monkeypatch.setattr(guard, "_tell", lambda text: None)
    guard.ensure()
    await guard.close()
    assert await job.wait() == -signal.SIGKILL


async def test_an_agent_that_is_asked_to_end_leaves_nothing(agent, world, tmp_path):
    pids, _ = await run_job(world, tmp_path)
    guard = agent.guard()
    agent.signal(signal.SIGTERM)
    await until(lambda: agent.process.poll() is not None)
    assert agent.process.returncode == 0
    assert not any(tree.alive(pid) for pid in pids)
    await until(lambda: not guard.is_running())
    base = tree.cgroup_base()
    root = group_name(tree.marker_root("n0", tmp_path))
    assert base is None or not (base / root).exists(), "no empty cgroup is left either"


def test_the_guard_reads_its_protocol_and_nothing_else():
    watched: dict[str, Watched] = {}
    for line in ("node n0 n0@x/3 -", "until n0 12.5", "until n9 1.0", "nonsense", ""):
        read_line(watched, line)
    assert watched == {"n0": Watched("n0@x/3", None, 12.5)}
    read_line(watched, "node n0 n0@x/4 /sys/fs/cgroup/x")
    assert watched["n0"].until == 0.0, "a new life is not judged by the old one's deadline"
