"""Cgroups of either version: everything in one is killed, whatever it does meanwhile."""

import subprocess
from pathlib import Path

import pytest

from services.agent import tree
from services.agent.keeper import contain, proc
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
