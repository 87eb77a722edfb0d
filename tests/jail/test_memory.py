"""Memory that jobs have together: a cgroup plays the machine that has no more."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.inbox import Released
from schemas.resources import Resources
from services.agent.keeper import find
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until
from tests.agent.world import World
from tests.jail.plain import ROOT
from tests.kit.cgroups import groups_below

GROUPS = Path("/sys/fs/cgroup/memory")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (GROUPS / "memory.limit_in_bytes").exists(), reason="needs root, and cgroups of version 1"
)

FLEET = "groups: [{name: 'n{i}', count: 1, devices: {model: H100, count: 4, memory_gib: 80}}]"
HOLDS = "import time; kept = bytearray(%d); kept[::4096] = b'x' * len(kept[::4096]); print('up', flush=True); time.sleep(600)"
MANY = """
import os, signal
waits, ends = os.pipe()
pids = []
for _ in range(200):
    if (pid := os.fork()) == 0:
        os.close(ends)
        kept = os.urandom(4096) * 2000  # 8 MB
        os.read(waits, 1)
        os._exit(0)
    pids.append(pid)
os.close(ends)
print("ended", sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL for pid in pids), flush=True)
"""
"""1.6 GB, and no process has much."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    group = GROUPS / f"baton-{tmp_path.name}-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(900 * 2**20))
    yield group
    for one in (*sorted(groups_below(group, "*"), reverse=True), group):
        os.rmdir(one)


async def test_when_memory_is_short_who_asked_for_none_goes_first_however_many_processes_have_it(
    nats_url, nats, pool, tmp_path, machine
):
    """The kernel ends whoever has most. A job that had 8 MB in each of 200 processes ended the agent, what else ran on the
    machine, and another team's job within the memory that it had asked for."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    surroundings = {
        "PATH": "/usr/bin:/bin",
        "BATON_NATS_URL": nats_url,
        "BATON_POOL": pool,
        "BATON_STATE_DIR": str(tmp_path),
        "BATON_AGENT_FLEET": str(tmp_path / "fleet.yaml"),
        "BATON_AGENT_ASK_S": "0.2",
        "BATON_AGENT_WALLS": "full",
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def begun(*command: str) -> subprocess.Popen[bytes]:
        entered = ["sh", "-c", f'echo $$ > {machine}/cgroup.procs; exec "$@"', "sh", sys.executable, *command]
        return subprocess.Popen(
            entered, env=surroundings, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def says(job_id: str) -> str:
        return "".join(log.read_text() for log in (tmp_path / "jobs/.agent").glob(f"{job_id}.1.*/rank-0.log"))

    agent, service = begun("-m", "services.agent"), begun("-c", HOLDS % 120_000_000)
    try:
        world = await World(nats, pool).open()
        await world.joined("n0")
        asked = spec(HOLDS % 200_000_000, resources=Resources(host_memory_mib=300))
        modest = part(asked, rank("n0-gpu0"), team="blue")
        await world.want("n0", modest)
        await until(lambda: "up" in says(modest.job_id))
        greedy = part(spec(MANY), rank("n0-gpu1"), team="red")
        await world.want("n0", modest, greedy)
        await world.sees(greedy, Released)
        assert int(says(greedy.job_id).removeprefix("ended ")) > 0
        assert (agent.poll(), service.poll()) == (None, None)
        assert {seen.job_id for _, _, seen in world.seen if isinstance(seen, Released)} == {greedy.job_id}
    finally:
        for process in (agent, service):
            process.kill()
            process.wait()
        find.kill(tmp_path / "agent")
        find.wait(tmp_path / "agent")
        await until(
            lambda: not any((group / "cgroup.procs").read_text() for group in (machine, *groups_below(machine, "*")))
        )
