"""A real agent and its keeper, killed and frozen in every combination. Watched from outside, through /proc."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import uvloop

from libs.bus.queries import NoAnswer, ask
from libs.service import tasks
from schemas.catalog import BY_TYPE
from schemas.inbox import CheckpointTaken, Released, Started
from schemas.jobs import CheckpointPolicy
from schemas.nodes import Action
from schemas.queries import NodeLogQuery
from services.agent import tree
from services.agent.keeper import client, contain, find, proc, wire
from services.agent.keeper.__main__ import LOCK, SOCKET
from services.agent.keeper.client import KeeperClient
from services.agent.keeper.clock import now
from services.agent.left_groups import kept_agents
from services.agent.state import NotEmpty, group_name
from tests.agent.build import but, part, rank, spec
from tests.agent.conftest import until
from tests.agent.test_processes import FOREVER, STUBBORN_DAEMON
from tests.agent.world import World
from tests.faults.chaos import disks
from tests.kit.commands import AGENT, Forked, fork
from tests.kit.held import held, shims, zygotes

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]
FLEET = "groups: [{name: 'n{i}', count: 1, devices: {model: H100, count: 4, memory_gib: 80}}]"
ESCAPEE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time\\nwhile True: time.sleep(1)"], {})
    os._exit(0)
os.wait()
"""
"""Double fork, a session of its own, an empty environment: nothing tells whose it is but what contains it."""
JOB = STUBBORN_DAEMON + ESCAPEE + FOREVER
PROCESSES = 3
SHORT_S, MIDDLE_S, LONG_S = 3.0, 9.0, 60.0
"""A lease that a test waits for the end of, one that it waits for the renewal of, and one for neither."""


class Node:
    """`python -m services.agent`, as it runs on a node, and what it started."""

    def __init__(self, nats_url: str, pool: str, root: Path, containment: str, lease_s: float) -> None:
        self.root, self.state = root, root / "agent"
        (root / "fleet.yaml").write_text(FLEET)
        self.environment = {
            "PATH": os.environ["PATH"],
            "BATON_NATS_URL": nats_url,
            "BATON_POOL": pool,
            "BATON_STATE_DIR": str(root),
            "BATON_AGENT_FLEET": str(root / "fleet.yaml"),
            "BATON_AGENT_LEASE_S": str(lease_s),
            "BATON_AGENT_ASK_S": "0.2",
            "BATON_AGENT_CONTAINMENT": containment,
            "BATON_AGENT_CGROUPS": str(containment == contain.CGROUP).lower(),
        }
        self.log = (root / "agent.log").open("ab")
        self.process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, code: Path = ROOT) -> None:
        """`code`: the tree that it runs from."""
        if code == ROOT:
            self.process = fork(AGENT).start(self.environment, code, self.log)
            return
        self.process = subprocess.Popen(
            [sys.executable, "-m", AGENT], env=self.environment, cwd=code, stdout=self.log, stderr=self.log
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def output(self, job_id: str) -> str:
        """What rank 0 of the job's first attempt wrote; an agent of before keeps it elsewhere."""
        jobs, before = self.root / "jobs", f"{job_id}/1/logs/rank-0.log"
        found = [*jobs.glob(f".agent/{job_id}.1.*/rank-0.log"), *jobs.glob(f".agent/{before}"), *jobs.glob(before)]
        return found[0].read_text() if found else ""

    def keeper(self) -> int | None:
        return find.running(self.state)

    def processes(self) -> set[int]:
        """Shims, and all that runs below them."""
        return held(self.keeper())

    def jobs(self) -> set[int]:
        """The processes of jobs, without the shims."""
        return self.processes() - shims(self.keeper())

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()
        find.kill(self.state)


@pytest.fixture
async def world(nats, pool):
    return await World(nats, pool).open()


@pytest.fixture
def make_node(nats_url, world, tmp_path):
    made: list[Node] = []

    def make(lease_s: float = LONG_S, containment: str = contain.NAMESPACE, code: Path = ROOT, **more: str) -> Node:
        if containment == contain.NAMESPACE and not contain.works(containment):
            containment = contain.SUBREAPER
        if containment == contain.CGROUP and tree.cgroup_base() is None:
            pytest.skip("no cgroup may be made here")
        one = Node(nats_url, world.pool, tmp_path, containment, lease_s)
        one.environment |= {f"BATON_AGENT_{name.upper()}": value for name, value in more.items()}
        made.append(one)
        one.start(code)
        return one

    yield make
    for one in made:
        one.end()


async def run_job(world: World, node: Node, code: str = JOB) -> tuple[set[int], object]:
    """Starts a job that tries to get away; returns all its processes, and what was wanted."""
    await world.joined("n0")
    wanted = part(spec(code, stop_grace_s=0.2), rank("n0-gpu0"))
    await world.want("n0", wanted)
    await world.sees(wanted, Started)
    await until(lambda: "up" in node.output(wanted.job_id))
    await until(lambda: len(node.jobs()) == PROCESSES)
    return node.jobs(), wanted


def none_of(pids: set[int]) -> bool:
    return not any(proc.alive(pid) for pid in pids)


# ---------------------------------------------------------------------------------------------- the agent comes back


async def test_a_life_that_an_agent_was_ending_is_over_for_the_next_one(make_node, world):
    """It had killed its jobs, and the disk took no number for the next life: to the agent after it they would have ended by
    themselves, and would have failed."""
    node = make_node()
    pids, wanted = await run_job(world, node)
    in_the_way = node.state / "incarnations.json.new"
    in_the_way.mkdir()  # as good as a full disk: it cannot be written to
    world.disowned.add("n0")
    await until(lambda: none_of(pids))
    node.kill()
    in_the_way.rmdir()
    world.disowned.clear()
    node.start()
    await world.joined("n0", lives=2)
    assert world.of(wanted, Released) == []


async def test_an_agent_that_is_killed_and_comes_back_costs_no_attempt(make_node, world):
    node = make_node()
    pids, wanted = await run_job(world, node)
    brief = part(
        spec("import time, os\nwhile not os.path.exists('end'): time.sleep(0.02)\nprint('done')\nraise SystemExit(3)"),
        rank("n0-gpu1"),
    )
    await world.want("n0", wanted, brief)
    await world.sees(brief, Started)
    keeper = node.keeper()
    node.kill()
    (node.root / "jobs" / f"{brief.job_id}.1" / "end").touch()
    await until(lambda: len(node.jobs()) == PROCESSES)
    node.start()
    released = await world.sees(brief, Released)
    assert (released.exit_code, released.own_exit) == (3, True), "it ended while nobody looked"
    assert node.jobs() == pids, "the same processes"
    assert node.keeper() == keeper
    assert len(world.lives["n0"]) == 1, "the same life"
    assert world.of(wanted, Released) == []
    await world.want("n0", but(wanted, Action.STOP))
    await world.sees(wanted, Released)
    assert none_of(pids)


async def test_who_holds_the_port_of_an_agents_metrics_does_not_end_the_work_of_its_node(make_node, world):
    """A job may bind that port while the agent is restarted."""
    node = make_node()
    pids, _ = await run_job(world, node)
    keeper = node.keeper()
    node.kill()
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = node.environment["BATON_HTTP_PORT"] = str(holder.getsockname()[1])
        node.start()
        await until(lambda: node.process.poll() is not None)
        assert node.jobs() == pids, "it said nothing of them"
    assert f"no HTTP at 127.0.0.1:{port}" in (node.root / "agent.log").read_text()
    node.start()
    await until(lambda: (node.root / "agent.http").exists())
    assert (node.jobs(), node.keeper(), len(world.lives["n0"])) == (pids, keeper, 1)


@pytest.mark.skipif(bool(disks.why_not()), reason=disks.why_not())
def test_a_keeper_starts_on_a_full_disk_and_is_found_although_it_could_not_write_who_it_is(tmp_path):
    with disks.small(tmp_path / "state", 1) as folder, disks.full(folder):
        found = find.start(folder, contain.SUBREAPER, "")
        try:
            assert not (folder / "keeper.lock").read_text().strip(), "there was room: this proves nothing"
            assert find.running(folder) == found.process.pid
            os.kill(found.process.pid, signal.SIGSTOP)
            assert find.running(folder) == found.process.pid, "also when it is frozen"
        finally:
            found.sock.close()
            assert find.kill(folder)
            found.process.wait()
        assert find.running(folder) is None


def test_a_keeper_that_cannot_have_a_file_for_its_words_is_started_all_the_same(tmp_path):
    """A file system may have room for bytes and none for another file."""
    with find._open_for_words(tmp_path / "no folder" / "keeper.log") as words:
        words.write(b"lost")


@pytest.mark.skipif(bool(disks.why_not()), reason=disks.why_not())
async def test_an_agent_that_comes_back_to_a_full_disk_costs_no_attempt(make_node, world, tmp_path):
    with disks.small(tmp_path / "agent", 4) as folder:
        node = make_node()
        try:
            pids, wanted = await run_job(world, node)
            keeper = node.keeper()
            node.kill()
            with disks.full(folder):
                node.start()
                await world.want("n0", but(wanted, Action.STOP))
                await world.sees(wanted, Released)
                assert (node.keeper(), len(world.lives["n0"])) == (keeper, 1)
            assert none_of(pids)
        finally:
            node.end()


@pytest.mark.skipif(bool(disks.why_not()), reason=disks.why_not())
async def test_a_node_that_cannot_begin_on_a_full_disk_waits_and_the_others_of_its_agent_go_on(
    make_node, world, tmp_path
):
    with disks.small(tmp_path / "agent", 4) as folder:
        node = make_node()
        try:
            pids, wanted = await run_job(world, node)
            node.kill()
            (node.root / "fleet.yaml").write_text(FLEET.replace("count: 1", "count: 2", 1))
            with disks.full(folder):
                node.start()
                await world.want("n0", but(wanted, Action.STOP))
                await world.sees(wanted, Released)
                assert (len(world.lives["n0"]), "n1" in world.lives) == (1, False)
                assert node.process.poll() is None
            await world.joined("n1")
            assert none_of(pids)
        finally:
            node.end()


async def test_a_job_that_was_asked_to_end_before_its_agent_was_killed_did_not_end_by_itself(make_node, world):
    node = make_node()
    await world.joined("n0")
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: open('asked', 'w').close())\n"
        "print('up', flush=True)\n"
        "while not os.path.exists('end'): time.sleep(0.02)\n"
        "raise SystemExit(1)"
    )
    wanted = part(spec(code, stop_grace_s=60), rank("n0-gpu0"))
    await world.want("n0", wanted)
    home = node.root / "jobs" / f"{wanted.job_id}.1"
    await until(lambda: "up" in node.output(wanted.job_id))
    await world.want("n0", but(wanted, Action.STOP))
    await until((home / "asked").exists)
    node.kill()
    (home / "end").touch()
    await until(lambda: not node.processes())
    node.start()
    assert not (await world.sees(wanted, Released)).own_exit


async def test_what_jobs_say_in_length_ends_nobodys_work_when_an_agent_follows(make_node, world):
    """Ten jobs of a team, as large as a request may be, were more than a keeper could tell an agent: it was ended, with the
    work of all teams."""
    node = make_node()
    env = {f"V{n}": "\u00e9" * 2400 for n in range(64)}
    code = "import time; print('up', flush=True); time.sleep(600)"
    talking = [part(spec(code, env=env), rank(f"n0-gpu{n % 4}", milli=300)) for n in range(10)]
    wanted = part(spec(code), rank("n0-gpu3", milli=300))
    assert len(talking[0].spec.model_dump_json().encode()) < 320 * 1024
    await world.joined("n0")
    await world.want("n0", *talking, wanted)
    await until(lambda: all("up" in node.output(one.job_id) for one in (*talking, wanted)))
    pids = node.jobs()
    node.kill()
    node.start()
    await world.want("n0", *talking, but(wanted, Action.STOP))
    await world.sees(wanted, Released)
    assert len(world.lives["n0"]) == 1
    assert len(node.jobs()) == len(pids) - 1


async def test_an_agent_that_is_stopped_to_keep_jobs_leaves_them_without_a_deadline(make_node, world):
    node = make_node(SHORT_S, on_stop="keep")
    pids, wanted = await run_job(world, node)
    node.signal(signal.SIGTERM)
    await until(lambda: node.process.poll() is not None)
    over = now() + SHORT_S
    await until(lambda: now() > over)
    assert node.jobs() == pids
    assert world.farewells == []
    node.start()
    await world.want("n0", but(wanted, Action.STOP))
    await world.sees(wanted, Released)
    assert len(world.lives["n0"]) == 1
    assert none_of(pids)


ASKED = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit('asked'))\nprint('up', flush=True)\ntime.sleep(600)"


async def test_a_job_that_nobody_stops_at_its_time_limit_is_asked_to_end_by_its_node(make_node, world):
    """Placement was frozen for an hour: a job of a minute ran on, and was billed."""
    node = make_node(limit_grace_s="1")
    await world.joined("n0")
    wanted = part(spec(ASKED, time_limit_s=1, stop_grace_s=60), rank("n0-gpu0"))
    await world.want("n0", wanted)
    end = await world.sees(wanted, Released)
    assert (end.over_limit, end.own_exit, end.exit_code) == (True, False, 1), (
        "its code is that of its answer to SIGTERM"
    )
    assert "asked" in node.output(wanted.job_id)
    assert none_of(node.jobs())


async def test_a_keeper_ends_what_is_over_its_time_limit_while_no_agent_is_there(make_node, world):
    """Where the whole control plane is stopped and jobs are kept, nothing else ends them."""
    node = make_node(on_stop="keep", limit_grace_s="1")
    await world.joined("n0")
    wanted = part(spec(FOREVER, time_limit_s=1, stop_grace_s=0.1), rank("n0-gpu0"))
    endless = part(spec(FOREVER), rank("n0-gpu1"))
    await world.want("n0", wanted, endless)
    await until(lambda: all("up" in node.output(one.job_id) for one in (wanted, endless)))
    await until(lambda: all(world.of(one, Started) for one in (wanted, endless)))
    node.signal(signal.SIGTERM)
    await until(lambda: node.process.poll() is not None)
    pids = node.jobs()
    assert len(pids) == 2
    await until(lambda: len(node.jobs()) == 1)
    node.start()
    end = await world.sees(wanted, Released)
    assert (end.over_limit, end.own_exit, end.exit_code) == (True, False, 137)
    assert end.reason == "its time limit was over, and its agent away"
    assert len(world.lives["n0"]) == 1
    assert len(node.jobs()) == 1, "the other one goes on"


async def test_a_node_with_simulated_work_begins_a_new_life_with_its_next_agent(make_node, world):
    """A timer ends with its agent, so its attempt is lost; and with it the life, processes too."""
    node = make_node()
    await world.joined("n0")
    timer, wanted = part(None, rank("n0-gpu1")), part(spec(JOB), rank("n0-gpu0"))
    await world.want("n0", timer)
    await world.sees(timer, Started)
    await world.want("n0", timer, wanted)
    await until(lambda: len(node.jobs()) == PROCESSES)
    pids = node.jobs()
    node.kill()
    node.start()
    await world.joined("n0", lives=2)
    assert none_of(pids)


async def test_an_agent_that_does_not_come_back_loses_its_work_at_the_end_of_its_lease(make_node, world):
    node = make_node(SHORT_S)
    pids, _ = await run_job(world, node)
    node.kill()
    await until(lambda: none_of(pids))
    await until(lambda: node.keeper() is None)


BEFORE = ROOT / "tests" / "fixtures" / "keeper-before-the-native-shim.zip"
"""The keeper of the last version whose shims were forks of a Python process (decision 0076), without the agent's side."""


def next_version(folder: Path) -> Path:
    """It speaks one more version of the protocol, and adds fields to everything that it says."""
    copy_tree(folder)
    wire = folder / "services" / "agent" / "keeper" / "wire.py"
    text = wire.read_text().replace("OLDEST, NEWEST = 1, 1", "OLDEST, NEWEST = 1, 2")
    wire.write_text(text.replace("json.dumps(message,", 'json.dumps(message | {"later": {"more": [1]}},'))
    return folder


def version_before(folder: Path) -> Path:
    """Its agents start the keeper of the version before this one."""
    copy_tree(folder)
    with zipfile.ZipFile(BEFORE) as keeper:
        keeper.extractall(folder / "before")
    find_py = folder / "services" / "agent" / "keeper" / "find.py"
    text, here = find_py.read_text(), "cwd=Path(__file__).resolve().parents[3]"
    assert here in text
    find_py.write_text(text.replace(here, f'{here} / "before"'))
    app_py = folder / "services" / "agent" / "app.py"
    text, ahead = app_py.read_text(), ", ahead=[()]"
    assert ahead in text
    app_py.write_text(text.replace(ahead, ""))  # they knew nothing of views that are made ahead
    return folder


def copy_tree(folder: Path) -> None:
    for package in ("services", "libs", "schemas"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.parametrize("versions", ["before, this", "this, next", "next, this"])
async def test_an_agent_takes_over_in_place_from_one_of_another_version(make_node, world, tmp_path, versions):
    """What ran goes on, what is started next is started by the keeper of the other version, and both end."""
    made = {
        "this": lambda: ROOT,
        "next": lambda: next_version(tmp_path / "next"),
        "before": lambda: version_before(tmp_path / "was"),
    }
    first, second = (made[version]() for version in versions.split(", "))
    node = make_node(code=first)
    pids, wanted = await run_job(world, node)
    keeper = node.keeper()
    node.kill()
    node.start(second)
    after = part(spec("print('up', flush=True)\nraise SystemExit(3)"), rank("n0-gpu1"))
    await world.want("n0", wanted, after)
    assert (await world.sees(after, Released)).exit_code == 3
    assert "up" in node.output(after.job_id)
    assert (node.keeper(), len(world.lives["n0"]), world.of(wanted, Released)) == (keeper, 1, [])
    assert node.jobs() == pids
    said = [line for line in (node.root / "agent.log").read_text().splitlines() if "walls around jobs" in line]
    assert ["of another release of Baton" in line for line in said] == [versions == "before, this", True]
    await world.want("n0", but(wanted, Action.STOP))
    await world.sees(wanted, Released)
    assert none_of(pids)


OF_0_1_0 = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from services.agent import state, tree
folder = Path(sys.argv[2])
number = state.AgentState(folder).next_incarnations(["n0"])["n0"]
marker = f"{tree.marker_root('n0', folder)}/{number}/job-1.1"
job = subprocess.Popen(["sleep", "600"], env={tree.MARKER: marker}, stdout=-3, start_new_session=True)
print(number, job.pid)
"""


async def test_after_0_1_0_a_node_begins_above_its_life_with_nothing_of_it_left(make_node, world, tmp_path):
    """It has no keeper that could be taken over: agent and guard were killed, and a process of a job is left."""
    wheel = ROOT / "tests" / "fixtures" / "baton-0.1.0-py3-none-any.whl"
    run = partial(subprocess.check_output, [sys.executable, "-c", OF_0_1_0, wheel, tmp_path], cwd=tmp_path, text=True)
    before, pid = map(int, (await asyncio.to_thread(run)).split())
    assert proc.alive(pid)
    make_node()
    await world.joined("n0")
    assert world.lives["n0"][0] > before
    assert not proc.alive(pid)


STARTS_0_1_0 = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from services.agent import state, tree
folder = Path(sys.argv[2])
held = state.AgentState(folder)
held.kill_leftovers([tree.marker_root("n0", folder)], tree.cgroup_base())
print(held.next_incarnations(["n0"])["n0"])
"""
"""What an agent of 0.1.0 does before its node registers."""


async def test_an_agent_of_0_1_0_begins_above_the_present_life_with_nothing_of_it_left(make_node, world, tmp_path):
    """It knows no keeper, and nothing tells it whose a process without an environment is: it ends the keeper by its note."""
    wheel = ROOT / "tests" / "fixtures" / "baton-0.1.0-py3-none-any.whl"
    node = make_node()
    pids, _ = await run_job(world, node)
    node.kill()
    run = partial(
        subprocess.check_output, [sys.executable, "-c", STARTS_0_1_0, wheel, tmp_path], cwd=tmp_path, text=True
    )
    number = int(await asyncio.to_thread(run))
    assert none_of(pids)
    assert node.keeper() is None
    assert number > world.lives["n0"][-1]


async def test_an_older_agent_ends_a_keeper_with_which_it_has_no_version_in_common(make_node, world, tmp_path):
    """The node begins a new life, so that its jobs run again, and the agent says why."""
    later = tmp_path / "later"
    copy_tree(later)
    wire_py = later / "services" / "agent" / "keeper" / "wire.py"
    text = wire_py.read_text()
    assert "OLDEST, NEWEST = 1, 1" in text
    wire_py.write_text(text.replace("OLDEST, NEWEST = 1, 1", "OLDEST, NEWEST = 2, 2"))
    node = make_node(code=later)
    pids, _ = await run_job(world, node)
    node.kill()
    node.start()
    await world.joined("n0", lives=2)
    assert none_of(pids)
    said = (node.root / "agent.log").read_text()
    assert "speaks versions 1 to 1, this one 2 to 2; it is ended, with what it holds" in said


# ---------------------------------------------------------------------------------------------------- the fault model


@pytest.mark.parametrize("containment", [contain.NAMESPACE, contain.CGROUP, contain.SUBREAPER])
async def test_a_frozen_agents_jobs_end_with_its_lease(make_node, world, containment):
    node = make_node(SHORT_S, containment)
    pids, wanted = await run_job(world, node)
    node.signal(signal.SIGSTOP)
    await until(lambda: none_of(pids))
    assert psutil.Process(node.process.pid).status() == psutil.STATUS_STOPPED, "not the agent did it"
    node.signal(signal.SIGCONT)
    await world.joined("n0", lives=2)
    assert world.of(wanted, Released) == [], "killed by the keeper is no exit of its own"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_keeper_that_is_killed_or_frozen_is_replaced_and_what_it_held_is_gone(make_node, world, number):
    node = make_node(MIDDLE_S)
    pids, _ = await run_job(world, node)
    first = node.keeper()
    os.kill(first, number)
    await world.joined("n0", lives=2)
    assert none_of(pids)
    await until(lambda: node.keeper() not in (None, first))
    again = part(spec(JOB), rank("n0-gpu0", epoch=2))
    await world.want("n0", again)
    await world.sees(again, Started)


@pytest.mark.parametrize("how", ["renamed", "emptied"])
async def test_a_frozen_keeper_is_found_although_its_files_are_gone(make_node, world, how):
    """Somebody has tidied up the state folder, or moved it away for a while."""
    node = make_node(MIDDLE_S)
    pids, _ = await run_job(world, node)
    keeper, elsewhere = node.keeper(), node.root / "elsewhere"
    if how == "renamed":
        node.state.rename(elsewhere)
    else:
        for file in (node.state / LOCK, node.state / SOCKET):
            file.unlink()
    os.kill(keeper, signal.SIGSTOP)

    def gone() -> bool:
        lives = len(world.lives["n0"])
        ended = none_of(pids | {keeper})
        assert ended or lives == 1, "its next life has begun"
        return ended

    try:
        await until(gone)
    finally:
        with suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGKILL)
        if how == "renamed":
            with suppress(OSError):  # by now it may have made itself another
                elsewhere.rename(node.state)
    await world.joined("n0", lives=2)


def test_a_folder_that_is_not_there_has_no_keeper(tmp_path):
    assert find.connect(tmp_path / "gone") is None


async def test_a_frozen_keeper_does_not_outlive_the_lease(make_node, world):
    node = make_node(SHORT_S)
    pids, _ = await run_job(world, node)
    world.grants = False
    os.kill(node.keeper(), signal.SIGSTOP)
    await until(lambda: none_of(pids))
    await world.joined("n0", lives=2)


@pytest.mark.parametrize("containment", [contain.NAMESPACE, contain.SUBREAPER])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_zygote_that_is_killed_or_frozen_costs_no_attempt(make_node, world, number, containment):
    node = make_node(LONG_S, containment)
    pids, first = await run_job(world, node)
    (zygote,) = zygotes(node.keeper())
    os.kill(zygote, number)
    second = part(spec(JOB), rank("n0-gpu1"))
    await world.want("n0", first, second)
    await world.sees(second, Started)
    assert zygotes(node.keeper()).isdisjoint([zygote]), "another took its place"
    assert not none_of(pids)
    assert len(world.lives["n0"]) == 1
    await world.want("n0", but(first, Action.STOP), but(second, Action.STOP))
    await world.sees(first, Released)
    await world.sees(second, Released)
    assert node.jobs() == set()


async def test_a_keeper_that_replaces_another_is_not_taken_for_a_silent_one(tmp_path, monkeypatch):
    """Who counts the unanswered pings of the old one slept while it was replaced."""

    async def nothing() -> None: ...

    monkeypatch.setattr(client, "PING_S", 0.02)
    keeper = KeeperClient(tmp_path, contain.SUBREAPER, "", nothing)
    keeper.life("n0", 1, None)
    await keeper.ensure()
    await until(lambda: keeper._pong > 2 * client.SILENT_PINGS)
    monkeypatch.setattr(client, "PING_S", 2.0)
    pong = keeper._pong
    await until(lambda: keeper._pong > pong)  # from here on it sleeps for long
    first = keeper.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: not keeper.connected())
    await until(lambda: not proc.alive(first))
    monkeypatch.setattr(client, "PING_S", 0.1)
    await keeper.ensure()
    second = keeper.pid
    over = now() + 2.5
    await until(lambda: now() > over)
    assert proc.alive(second)
    assert keeper.pid == second
    await keeper.close()


STRANGLER = """
import ctypes, os
held = os.pidfd_open(SHIM)
libc = ctypes.CDLL(None, use_errno=True)
lies = (b"x" + bytes(4) + b"\\x18\\xfc\\xff\\xff", b"nonsense", b"[]", b"x" + bytes(3), b"f", b"g" + bytes(1))
taken = [fd for fd in (libc.syscall(438, held, number, 0) for number in range(3, 64)) if fd >= 0]  # pidfd_getfd
for fd in taken:
    for said in lies:
        try:
            os.write(fd, said)
        except OSError:
            pass
print("taken", len(taken), flush=True)
import time
time.sleep(600)
"""


async def test_a_job_that_speaks_in_its_shims_name_ends_its_own_attempt_alone(make_node, world):
    """It runs as the user of the shim, whose descriptors it may take, unless a user's namespace gives the shim rights that it
    has not."""
    node = make_node(walls="none")
    _, other = await run_job(world, node)
    keeper, pids = node.keeper(), node.jobs()
    inside = "1" if contain.works(contain.NAMESPACE) else "os.getppid()"
    liar = part(spec(STRANGLER.replace("SHIM", inside)), rank("n0-gpu1"))
    await world.want("n0", other, liar)
    if inside == "1" and os.geteuid() != 0:
        await until(lambda: "taken" in node.output(liar.job_id))
        assert "taken 0" in node.output(liar.job_id)
    else:
        await world.sees(liar, Released)
    assert node.keeper() == keeper
    assert not any(not proc.alive(pid) for pid in pids), "another job was ended"
    assert len(world.lives["n0"]) == 1


async def test_what_cannot_be_ended_after_a_keeper_ends_the_agent(tmp_path, monkeypatch):
    """The next one begins no life before it is gone. Seen: the error was in a task that nobody looked at; the agent renewed its
    lease and started nothing any more."""
    ended = []
    monkeypatch.setattr(tasks, "end_process", lambda why, error=None: ended.append((why, error)))

    async def clear():
        raise NotEmpty("process 7 does not die")

    (tmp_path / "keeper").mkdir()
    keeper = KeeperClient(tmp_path / "keeper", contain.SUBREAPER, "", clear)
    await keeper.ensure()
    os.kill(keeper.pid, signal.SIGKILL)
    await until(lambda: ended)
    ((why, error),) = ended
    assert "hearing of the keeper" in why
    assert isinstance(error, NotEmpty)
    await keeper.close()


async def test_what_is_started_while_a_dead_keeper_is_cleared_away_is_lost_and_has_not_failed(make_node, world):
    """The next keeper would start it, and clearing away what the dead one left would kill it: no exit of its own."""
    node = make_node()
    _, first = await run_job(world, node)
    late = [part(spec(FOREVER), rank("n0-gpu1", epoch, milli=250)) for epoch in range(1, 5)]
    os.kill(node.keeper(), signal.SIGKILL)
    for count in range(1, 5):
        await world.want("n0", first, *late[:count])
        await asyncio.sleep(0.05)  # into the midst of it
    await world.joined("n0", lives=2)
    assert [world.of(one, Released) for one in (first, *late)] == [[]] * 5


@pytest.mark.parametrize("containment", [contain.NAMESPACE, contain.CGROUP, contain.SUBREAPER])
async def test_when_agent_and_keeper_are_killed_their_jobs_end_at_once(make_node, world, containment):
    node = make_node(LONG_S, containment)
    pids, _ = await run_job(world, node)
    node.signal(signal.SIGKILL)
    os.kill(node.keeper(), signal.SIGKILL)
    await until(lambda: none_of(pids))


async def test_what_is_left_when_the_shim_is_killed_too_is_gone_before_the_node_registers(make_node, world):
    """Without a namespace nobody was left to end them: the next agent finds them."""
    node = make_node(LONG_S, contain.SUBREAPER)
    job = STUBBORN_DAEMON + FOREVER + "\n#" + "x" * (PROCESSES - 2)
    await world.joined("n0")
    await world.want("n0", part(spec(job), rank("n0-gpu0")))
    await until(lambda: len(node.jobs()) == 2)
    pids, keeper = node.jobs(), node.keeper()
    shims = proc.children(keeper)  # and the zygote
    for pid in (keeper, *shims):
        os.kill(pid, signal.SIGSTOP)
    node.signal(signal.SIGKILL)
    for pid in (*shims, keeper):
        os.kill(pid, signal.SIGKILL)
    node.process.wait()
    alive_at_registration = []

    async def registered(_):
        alive_at_registration.append([pid for pid in pids if proc.alive(pid)])

    await world.nats.subscribe(f"baton.in.node.v1.registered.{world.pool}.*", cb=registered)
    node.start()
    await world.joined("n0", lives=2)
    await until(lambda: alive_at_registration)
    assert alive_at_registration[0] == []


def _sheds_its_marker(pid: int) -> bool:
    """Not the process between the two forks, which may end at any moment."""
    with suppress(OSError):
        return tree.MARKER.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    return False


async def test_a_shim_that_is_frozen_when_its_keeper_dies_is_found_by_its_name(make_node, world):
    """Its job has an empty environment and a session of its own: nothing else tells whose it is."""
    node = make_node(LONG_S, contain.SUBREAPER)
    await world.joined("n0")
    await world.want("n0", part(spec(ESCAPEE + FOREVER), rank("n0-gpu0")))
    await until(lambda: len(node.jobs()) == 2 and any(_sheds_its_marker(pid) for pid in node.jobs()))
    pids, keeper = node.processes(), node.keeper()
    for pid in proc.children(keeper):
        os.kill(pid, signal.SIGSTOP)
    node.kill()
    find.kill(node.state)
    assert not none_of(pids)
    node.start()
    await world.joined("n0", lives=2)
    assert none_of(pids)


async def test_a_node_that_was_frozen_whole_runs_nothing_when_it_wakes(make_node, world):
    node = make_node(SHORT_S)
    pids, wanted = await run_job(world, node)
    keeper = node.keeper()
    frozen = {node.process.pid, keeper, *node.processes()}
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    over = now() + SHORT_S
    await until(lambda: now() > over)
    assert all(proc.alive(pid) for pid in pids)
    for pid in frozen - {node.process.pid}:
        with suppress(ProcessLookupError):  # the keeper, when it wakes first, has ended it
            os.kill(pid, signal.SIGCONT)
    await until(lambda: none_of(pids))
    node.signal(signal.SIGCONT)
    await world.joined("n0", lives=2)
    assert world.of(wanted, Released) == []


@pytest.mark.parametrize("containment", [contain.NAMESPACE, contain.CGROUP, contain.SUBREAPER])
async def test_nothing_gets_away_from_an_attempt_that_is_released(make_node, world, containment):
    node = make_node(LONG_S, containment)
    pids, wanted = await run_job(world, node, STUBBORN_DAEMON + ESCAPEE + FOREVER.replace("600", "0.5"))
    released = await world.sees(wanted, Released)
    assert (released.exit_code, released.own_exit) == (0, True)
    assert none_of(pids)


async def test_a_job_may_not_speak_to_the_keeper(make_node, world):
    """It may run as the agent's user, who may open the socket."""
    node = make_node(walls="none")
    await world.joined("n0")
    code = f"""
import socket, os
at = os.open({str(node.state)!r}, os.O_PATH)
s = socket.socket(socket.AF_UNIX)
s.connect(f"/proc/self/fd/{{at}}/keeper.sock")
hello = b'{{"do":"hello","speaks":[1,1]}}'
try:
    s.sendall(len(hello).to_bytes(4, "big") + hello)
    heard = s.recv(100)
except OSError:
    heard = b""
print("heard", heard, flush=True)
"""
    wanted = part(spec(code), rank("n0-gpu0"))
    await world.want("n0", wanted)
    await world.sees(wanted, Released)
    assert node.output(wanted.job_id) == "heard b''\n"


# ------------------------------------------------------------------------------------------------------- the service


async def test_it_answers_probes_metrics_and_questions_about_output(make_node, world, tmp_path):
    _, wanted = await run_job(world, make_node())
    await until((tmp_path / "agent.http").exists)
    base = f"http://127.0.0.1:{(tmp_path / 'agent.http').read_text().strip()}"

    def get(path: str) -> str:
        with urllib.request.urlopen(base + path) as answer:
            return answer.read().decode()

    ready = json.loads(await asyncio.to_thread(get, "/readyz"))
    assert ready["checks"] == {"nats": "ok", "nodes": "ok", "leases": "ok", "keeper": "ok"}
    metrics = await asyncio.to_thread(get, "/metrics")
    assert "baton_agent_parts 1.0" in metrics
    assert "baton_agent_started_total 1.0" in metrics
    log_piece, place = BY_TYPE["io.baton.log.piece.query.v1"], {"pool": world.pool, "node": "n0"}
    piece = await ask(world.nats, log_piece, NodeLogQuery(job_id=wanted.job_id, team="blue"), **place)
    assert "up" in piece.text
    assert not piece.ended
    with pytest.raises(NoAnswer):
        await ask(world.nats, log_piece, NodeLogQuery(job_id=wanted.job_id, team="green"), timeout_s=0.5, **place)


async def test_an_agent_that_is_asked_to_end_leaves_nothing(make_node, world, tmp_path):
    node = make_node(LONG_S, contain.CGROUP)
    pids, _ = await run_job(world, node)
    node.signal(signal.SIGTERM)
    await until(lambda: node.process.poll() is not None)
    assert node.process.returncode == 0
    assert none_of(pids)
    assert node.keeper() is None
    base = tree.cgroup_base()
    root = group_name(tree.marker_root("n0", tmp_path))
    assert base is None or not (base / root).exists(), "no empty cgroup is left either"


async def test_cgroups_of_a_killed_keeper_go_though_its_agent_never_comes_back(make_node, world):
    """Seen: after days of tests sixty in one tree and fifty in another, of state folders that were gone long before."""
    base = tree.cgroup_base()
    if base is None or kept_agents() is None:
        pytest.skip("no cgroups may be made here, or not all processes are seen")
    left = base / "baton-n0-dead0dead0de"
    left.mkdir()
    make_node(LONG_S, contain.CGROUP)
    await world.joined("n0")
    await until(lambda: not left.exists())


SLOW_TO_SAVE = """
import os, signal, time

def save(*_):
    print("asked", flush=True)
    time.sleep(7)  # an agent that is asked to end waits for 5 s where nothing else is said
    file = os.environ["BATON_CHECKPOINT_FILE"]
    with open(f"{file}.new", "w") as out:
        out.write('{"step": 7, "reference": "saved"}')
    os.rename(f"{file}.new", file)

signal.signal(signal.SIGUSR1, save)
print("up", flush=True)
while True:
    time.sleep(600)
"""


async def test_a_job_has_its_own_grace_to_save_when_its_agent_is_asked_to_end(make_node, world):
    """Compose and systemd gave the agent 15 minutes, and it gave its jobs five seconds."""
    node = make_node(drain_s="600")
    await world.joined("n0")
    wanted = part(spec(SLOW_TO_SAVE, checkpoint=CheckpointPolicy(grace_s=60)), rank("n0-gpu0"))
    await world.want("n0", wanted)
    await until(lambda: "up" in node.output(wanted.job_id))
    await world.sees(wanted, Started)
    node.signal(signal.SIGTERM)
    await until(lambda: node.process.poll() is not None)
    assert "asked" in node.output(wanted.job_id)
    assert [taken.checkpoint.reference for taken in world.of(wanted, CheckpointTaken)] == ["saved"]
    assert [left.planned for left in world.farewells] == [True]
    assert none_of(node.jobs())


def test_what_is_said_to_a_keeper_that_has_just_ended_does_not_end_the_agent(tmp_path):
    """Its connection is closed, and the agent has not been told yet."""

    async def nothing() -> None: ...

    async def say() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        _, writer = await asyncio.open_unix_connection(sock=ours)
        keeper = KeeperClient(tmp_path, "auto", "", nothing)
        keeper._writer = writer
        theirs.close()
        writer.transport.abort()
        await asyncio.sleep(0.05)
        keeper.send({"do": "ping", "n": 1})
        keeper._flush()

    uvloop.run(say())


async def test_what_two_turns_say_to_the_keeper_goes_together_and_what_a_gone_one_was_to_hear_goes_nowhere(tmp_path):
    async def nothing() -> None: ...

    keeper = KeeperClient(tmp_path, "auto", "", nothing)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    _, keeper._writer = await asyncio.open_unix_connection(sock=ours)
    first, second = {"do": "one"}, {"do": "two"}
    keeper.send(first)
    await asyncio.sleep(0)
    with pytest.raises(BlockingIOError):
        theirs.recv(4096, socket.MSG_DONTWAIT)
    keeper.send(second)
    await asyncio.sleep(0)
    assert wire.Reader().feed(theirs.recv(4096)) == [first, second]
    keeper.send(first)
    ours, fresh = socket.socketpair(socket.AF_UNIX)
    await keeper.attach(find.Found(ours, wire.Reader(), {"containment": "none", "pid": 0}))
    keeper.send(second)
    await asyncio.sleep(0)
    told = wire.Reader().feed(await asyncio.to_thread(fresh.recv, 4096))
    assert second in told
    assert first not in told
    for each in (theirs, fresh):
        each.close()
    for task in list(keeper._tasks):
        task.cancel()
