"""Of the processors each attempt has its share, with cgroups of the machine at hand. As root these tests run or fail."""

import asyncio
import os
import runpy
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from schemas.inbox import Released
from schemas.nodes import DesiredPart
from schemas.resources import Resources
from services.agent import tree
from services.agent.keeper import proc
from services.agent.state import group_name
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until
from tests.jail.conftest import Walled
from tests.kit.cgroups import groups_below
from tests.kit.commands import AGENT, fork

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes cgroups on every machine")

COMPUTE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for _ in range(%d):
    if os.fork() == 0:
        os.setsid()
        print('up', flush=True)
        while True:
            pass
os.wait()
"""
"""So many processes, each with a session of its own, all of them on one processor."""
ENOUGH_S = 2.0
ROOT = Path(__file__).resolve().parents[2]


def computing(team: str, processes: int, *devices: int, **resources: int) -> DesiredPart:
    made = spec(COMPUTE % processes, resources=Resources(devices=len(devices), **resources))
    return part(made, *(rank(f"n0-gpu{device}", number=number) for number, device in enumerate(devices)), team=team)


async def up(node: Walled, *jobs: DesiredPart) -> None:
    """What a job says may be there before its agent has heard that it was started, and by which shim."""
    await node.up(*jobs)
    await until(lambda: all(shim(node, job) for job in jobs))


def shim(node: Walled, job: DesiredPart) -> int:
    (found,) = (kept.shim for id, kept in node.agent.launcher.keeper.attempts.items() if job.job_id in id)
    return found


def used_s(node: Walled, job: DesiredPart) -> float:
    """Of a processor, by all processes of the job."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in proc.descendants([shim(node, job)]))


def group_of(node: Walled, job: DesiredPart) -> Path:
    """By which the kernel shares the processors."""
    base = node.agent.launcher.cpu_base
    assert base is not None
    told = tree.own_groups(Path(f"/proc/{shim(node, job)}/cgroup").read_text())
    (found,) = groups_below(base, Path(told.get("cpu") or told[""]).name)
    return found


async def share(node: Walled, first: DesiredPart, second: DesiredPart) -> float:
    """What the second has of what both have together, from now on."""
    began = used_s(node, first), used_s(node, second)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        await asyncio.sleep(0.1)
        one, other = used_s(node, first) - began[0], used_s(node, second) - began[1]
        if one + other > ENOUGH_S:
            break
    return other / (one + other)


async def test_a_job_that_computes_in_many_processes_leaves_others_their_share(start):
    """With each process a share of its own, as without cgroups, the second has a seventeenth."""
    async with start() as node:
        many, one = computing("red", 16, 1), computing("blue", 1, 2)
        await up(node, many, one)
        assert await share(node, many, one) > 0.25


async def test_a_share_is_as_large_as_what_its_attempt_holds(start):
    async with start() as node:
        few, more = computing("red", 12, 1), computing("blue", 4, 2, 3, 4)
        asks = computing("green", 1, 5, cpu_milli=7_500)
        await up(node, few, more)
        assert 0.6 < await share(node, few, more) < 0.9, "three devices of four, and as many processes"
        await up(node, asks)
        group = group_of(node, asks)
        told = {name: (group / name).read_text() for name in ("cpu.shares", "cpu.weight") if (group / name).exists()}
        assert told in ({"cpu.shares": "7680\n"}, {"cpu.weight": "750\n"})


async def test_a_shim_has_its_turn_before_its_job(start):
    """What a job is told goes through its shim, and so does its end: a thousand processes in the same group took a second."""
    code = "import os\nprint('up', os.nice(0), flush=True)\nos.nice(-1)"
    async with start() as node:
        job = part(spec(code), rank("n0-gpu1"), team="red")
        await node.ends(job)
        assert "up 0\n" in node.says(job)
        assert "PermissionError" in node.says(job), "none of that is left to what it starts"
        job = computing("red", 1, 2)
        await up(node, job)
        assert os.getpriority(os.PRIO_PROCESS, shim(node, job)) == -20


async def test_no_group_is_left_of_an_agent_that_ends_or_was_killed(start, tmp_path):
    base, memory = (tree.limit_base(controller, tree.cgroup_base()) for controller in ("cpu", "memory"))
    assert base is not None
    assert memory is not None
    root = group_name(tree.marker_root("n0", tmp_path))
    left = [one / f"{root}-4711-1" for one in {base, memory}]
    for group in left:
        group.mkdir()

    def groups(like: str) -> list[Path]:
        return [group for one in (base, memory) for group in groups_below(one, like)]

    async with start() as node:
        assert not any(group.exists() for group in left)
        job = computing("red", 1, 1)
        await up(node, job)
        group = group_of(node, job)
        assert shim(node, job) in proc.group_members(str(group))
        await node.world.want("n0")
        await until(lambda: not proc.group_members(str(group)))
        await node.ends(part(spec("pass"), rank("n0-gpu3"), team="red"))  # its groups are kept
        await up(node, computing("red", 1, 2))
        before = node.agent.launcher.keeper.pid
        both = {"cpu": base, "memory": memory}
        assert {one for one in both if any(both[one].glob(f"{root}-{before}-*"))} == {
            one for one in both if both[one] != node.agent.launcher.group_base
        }, "of version 1"
        os.kill(before, signal.SIGKILL)
        await until(lambda: node.agent.launcher.keeper.connected() and node.agent.launcher.keeper.pid != before)
        assert groups(f"*{root}-{before}-*") == [], "by the agent that goes on"
        await node.world.joined("n0", lives=2)
        await node.ends(part(spec("pass"), rank("n0-gpu0"), team="red"))
    await until(lambda: not groups(f"*{root}*"))


async def test_of_version_1_a_group_is_used_again_by_who_has_the_same_share(start):
    async with start() as node:
        if node.agent.launcher.cpu_base == node.agent.launcher.group_base:
            pytest.skip("of version 2 an attempt has its own, with its name")
        first, same, larger = computing("red", 1, 1), computing("blue", 1, 2), computing("blue", 1, 3, 4)
        await up(node, first)
        group = group_of(node, first)
        await node.world.want("n0")
        await node.world.sees(first, Released)
        await up(node, same, larger)
        assert group_of(node, same) == group
        assert (group / "cpu.shares").read_text() == "1024\n"
        assert (group_of(node, larger) / "cpu.shares").read_text() == "2048\n"


@pytest.mark.parametrize("missing", ["", "the controller", "cgroups"])
async def test_where_there_are_no_shares_jobs_run_and_the_agent_says_so(start, monkeypatch, missing):
    if missing == "the controller":
        base = tree.limit_base
        monkeypatch.setattr(tree, "limit_base", lambda name, group: None if name == "cpu" else base(name, group))
    async with start(cgroups=missing != "cgroups") as node:
        said = Path(node.agent.launcher.state.path / "walls").read_text()
        assert ("processors are not shared fairly" in said) is bool(missing)
        (released,) = await node.ends(of_red := part(spec("print('done')"), rank("n0-gpu1"), team="red"))
        assert (released.exit_code, node.says(of_red)) == (0, "done\n")


def bound(group: Path) -> str:
    """The quota of the group: `-1` and `max` are none."""
    return next(
        (group / name).read_text().split()[0] for name in ("cpu.cfs_quota_us", "cpu.max") if (group / name).exists()
    )


@pytest.fixture
def common() -> Iterator[Path]:
    """The group of all attempts of this machine, which other tests use as well: it has no bound before and after."""
    group = tree.limit_base("cpu", tree.cgroup_base())
    assert group is not None
    tree.leave_processors(group, 0)
    yield group
    tree.leave_processors(group, 0)


async def test_an_agent_has_jobs_leave_so_many_processors_and_takes_the_bound_away(common, world, nats_url, tmp_path):
    """Unset, what a bound there is stays: it may be another agent's of this machine."""
    none, quota = bound(common), str(round(((os.cpu_count() or 1) - 0.25) * 100_000))
    for lives, (reserved, bounded) in enumerate((("0.25", quota), ("", quota), ("0", none)), start=1):
        environment = {
            "PATH": os.environ["PATH"], "BATON_NATS_URL": nats_url, "BATON_POOL": world.pool, "BATON_STATE_DIR": str(tmp_path),
            "BATON_AGENT_DEVICES": "cpu", "BATON_AGENT_NODE": "n0",
        } | ({"BATON_AGENT_RESERVED_CPUS": reserved} if reserved else {})  # fmt: skip
        with (tmp_path / "agent.log").open("ab") as log:
            agent = fork(AGENT).start(environment, ROOT, log)
        try:
            await world.joined("n0", lives=lives)
            assert bound(common) == bounded
        finally:
            agent.send_signal(signal.SIGTERM)
            await asyncio.to_thread(agent.wait)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"RESERVED_CPUS": "4096"},
            r"BATON_AGENT_RESERVED_CPUS is 4096, and this machine has \d+ processors: say less",
        ),
        (
            {"RESERVED_CPUS": "0.4", "CGROUPS": "false"},
            "BATON_AGENT_RESERVED_CPUS is 0.4, and BATON_AGENT_CGROUPS is false",
        ),
        ({"RESERVED_CPUS": "-1"}, "BATON_AGENT_RESERVED_CPUS: Input should be greater than or equal to 0"),
        ({"RESERVED_CPUS": "nan"}, "BATON_AGENT_RESERVED_CPUS: Input should be a finite number"),
    ],
)
def test_an_agent_that_cannot_reserve_processors_does_not_start(common, monkeypatch, tmp_path, variables, says):
    none = bound(common)
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path))
    for name, value in ({"DEVICES": "cpu"} | variables).items():
        monkeypatch.setenv(f"BATON_AGENT_{name}", value)
    with pytest.raises(SystemExit, match=f"^agent: {says}"):
        runpy.run_module("services.agent", run_name="__main__")
    assert bound(common) == none
