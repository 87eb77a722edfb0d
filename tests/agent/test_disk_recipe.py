"""The recipe of docs/jobs-walls.md by which the kernel bounds what jobs read and write of a disk, as it stands there, with
cgroups of version 1."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.inbox import Released
from services.agent.keeper import contain
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until
from tests.agent.test_keeper_faults import ROOT, Node
from tests.agent.world import World

BLKIO = Path("/sys/fs/cgroup/blkio")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes cgroups on every machine"),
    pytest.mark.skipif(
        not (BLKIO / "blkio.throttle.write_bps_device").exists(), reason="no version 1 of that controller"
    ),
]
(RECIPE,) = re.findall(r"```sh\n([^`]*blkio[^`]*)```", (ROOT / "docs/jobs-walls.md").read_text())
MIB = 1024 * 1024
WRITES = f"""
import mmap, os
file, page = os.open("file", os.O_CREAT | os.O_WRONLY | os.O_DIRECT), mmap.mmap(-1, {MIB})
for _ in range(4):
    os.write(file, page)
"""


def disk_of(folder: Path) -> str:
    """The kernel's number of the whole disk."""
    number = folder.stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not found.exists():
        pytest.skip(f"{folder} is on no disk")
    whole = found.resolve().parent if (found / "partition").exists() else found
    return (whole / "dev").read_text().strip()


def start_by(recipe: str, node: Node) -> None:
    command = ["sh", "-ec", f'{recipe}cd {ROOT}\nexec "$0" -m services.agent', sys.executable]
    node.process = subprocess.Popen(command, env=node.environment, stdout=node.log, stderr=node.log)


async def test_what_jobs_write_of_a_disk_is_bounded_together_by_the_recipe(nats, nats_url, pool, tmp_path):
    world = await World(nats, pool).open()
    disk, group = disk_of(tmp_path), BLKIO / f"baton-test-{os.getpid()}"
    recipe = RECIPE.replace("/sys/fs/cgroup/blkio/baton", str(group)).replace("254:0", disk)
    assert recipe.count(str(group)) == 2
    node = Node(nats_url, world.pool, tmp_path, contain.NAMESPACE, 60.0)
    try:
        start_by(recipe, node)
        await world.joined("n0")
        job = part(spec(WRITES), rank("n0-gpu0"))
        await world.want("n0", job)
        assert (await world.sees(job, Released)).exit_code == 0, node.output(job.job_id)
        told = (group / "blkio.throttle.io_service_bytes").read_text()
        assert int(re.search(rf"{disk} Write (\d+)", told)[1]) >= 4 * MIB, "it counts there, so it is held there"
        assert (group / "blkio.throttle.write_bps_device").read_text() == f"{disk} {50 * MIB}\n"
    finally:
        node.end()
        await until(lambda: not (group / "cgroup.procs").read_text())
        with suppress(OSError):
            group.rmdir()
