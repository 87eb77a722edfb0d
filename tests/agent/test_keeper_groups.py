"""Cgroups of either version: everything in one is killed, whatever it does meanwhile."""

import logging
import os
import subprocess
from pathlib import Path

import pytest

from services.agent import tree
from services.agent.keeper import contain, moves, proc
from tests.agent.conftest import until_now

FREEZER = Path("/sys/fs/cgroup/freezer")
FORKS_ON = "while true; do sleep 600 & sleep 0.01; done"


@pytest.fixture(params=["version 2", "freezer"])
def group(request, tmp_path):
    base = FREEZER if request.param == "freezer" else tree.cgroup_base()
    made = base and base / f"baton-{tmp_path.name}"
    try:
        made.mkdir()
    except (OSError, AttributeError):
        pytest.skip(f"no cgroup ({request.param}) may be made here")
    yield str(made)
    proc.kill_group(str(made))
    proc.remove_group(str(made))


def test_a_group_that_goes_on_forking_is_killed_whole(group):
    below = f"{group}/below"
    Path(below).mkdir()
    script = f'echo 0 > {below}/cgroup.procs; setsid sh -c "{FORKS_ON}" & echo 0 > {group}/cgroup.procs; {FORKS_ON}'
    one = subprocess.Popen(["sh", "-c", script])
    until_now(lambda: len(proc.group_members(group)) > 6)
    until_now(lambda: not proc.kill_group(group))
    one.wait()
    assert proc.group_members(group) == set()
    proc.remove_group(group)
    assert not Path(group).exists()


def test_the_kind_that_is_asked_for_must_work(tmp_path):
    assert contain.best(None, contain.SUBREAPER) == contain.SUBREAPER
    assert contain.best(None, contain.NONE) == contain.NONE
    with pytest.raises(ValueError, match="'cgroup' does not work on this machine"):
        contain.best(None, contain.CGROUP)
    assert contain.best(str(tmp_path)) in (contain.NAMESPACE, contain.CGROUP)


HYBRID = """\
24 1 0:22 / / rw,relatime - ext4 /dev/vda rw
30 24 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw,nosuid,relatime shared:9 - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/unified rw,nosuid,noexec - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
"""


def test_a_cgroup_mount_keeps_its_options_when_it_is_to_favour_moves():
    of_2 = moves.remount(HYBRID, "/sys/fs/cgroup/unified/baton")
    assert of_2 == [
        "-o", "remount,rw,nosuid,noexec,rw,nsdelegate,memory_recursiveprot,favordynmods", "/sys/fs/cgroup/unified",
    ]  # fmt: skip
    assert moves.remount(HYBRID, "/sys/fs/cgroup/memory")[-1] == "/sys/fs/cgroup/memory"
    assert moves.remount(HYBRID, "/sys/fs/cgroup/unified-not") is None
    assert moves.remount(HYBRID, "/nowhere") is None
    assert moves.remount(HYBRID.replace("nsdelegate", "nsdelegate,favordynmods"), "/sys/fs/cgroup/unified") is None


def test_root_makes_the_machine_favour_moves_or_says_why_not(caplog):
    base = tree.cgroup_base()
    if os.geteuid() != 0 or base is None:
        pytest.skip("only root mounts anything")
    caplog.set_level(logging.INFO, "baton.agent")
    moves.favour_moves(str(base))
    there = moves.remount(proc.read_text("/proc/self/mountinfo"), str(base)) is None
    assert there is ("no favordynmods" not in caplog.text)
