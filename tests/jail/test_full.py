"""The tier `full`: as root these tests run or fail."""

import asyncio
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from libs.ports import sockdiag
from schemas.attempts import Category
from schemas.ids import FIRST_TEAM_UID, team_uid
from schemas.inbox import Released, Started
from schemas.jobs import JobLimits, Network
from schemas.resources import WALLS, Resources
from services.agent import processes, shared, tree
from services.agent.jobwalls import keeps_scores, lacks
from services.agent.keeper import proc, walls
from services.agent.keeper.find import NoKeeper
from services.agent.settings import AgentSettings
from services.agent.state import group_name
from services.agent.variables import master_port
from services.agent.view import Exposed, JobView, view_of
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until
from tests.kit.cgroups import groups_below

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="a uid for each team needs root; tests/jail/test_namespaces.py does not"
)

HOSTILE = Path(__file__).parent / "hostile.py"
VICTIM = """
import ctypes, os, time
for path in ("secret", os.environ["BATON_CHECKPOINT_DIR"] + "/secret", "/tmp/of-victim", "/dev/shm/of-victim"):
    with open(path, "w") as file:
        file.write("of blue")
    os.chmod(path, 0o666)
os.chmod(".", 0o777)
ctypes.CDLL(None).shmget(0x0BA70, 4096, 0o1666)
ctypes.CDLL(None).msgget(0x0BA70, 0o1666)
print("up", flush=True)
time.sleep(600)
"""


def of(team, code, device=1, **fields):
    return part(spec(code, **fields), rank(f"n0-gpu{device}"), team=team)


@pytest.fixture
def aims(tmp_path):
    """What the attacker would like to have, readable for all as far as files go."""
    (tmp_path / "creds").mkdir()
    for name in ("keys.json", "creds/nats.creds"):
        (tmp_path / name).write_text("the agent's")
        (tmp_path / name).chmod(0o666)
    tmp_path.chmod(0o777)
    hosts = Path("/tmp") / f"baton-{tmp_path.name}-{os.getpid()}"
    hosts.write_text("the host's")
    name = f"baton-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as plain:
        abstract.bind("\0" + name)
        abstract.listen()
        before = os.getcwd()
        os.chdir(tmp_path)
        plain.bind("mongo.sock")
        os.chdir(before)
        (tmp_path / "mongo.sock").chmod(0o777)
        plain.listen()
        yield {"STATE": str(tmp_path), "ABSTRACT": name, "HOST_FILE": str(hosts)}
    hosts.unlink()


async def attacked(node, aims, tmp_path, only=""):
    """What the hostile job of team red says of each attack, while one of team blue runs; and the process id of that one."""
    victim = of("blue", VICTIM)
    await node.up(victim)
    pid = min(tree.marked(tree.marker_root("n0", node.agent.settings.state_dir)))  # others may have an n0 as well
    attacker = of("red", "pass", device=2)
    about = {
        "VICTIM": str(tmp_path / "jobs" / f"{victim.job_id}.1"),
        "VICTIM_JOB": victim.job_id,
        "VICTIM_PID": str(pid),
        "VICTIM_UID": str(team_uid("blue")),
        "OWN_RECORD": str(tmp_path / "jobs" / ".agent" / f"{attacker.job_id}.1.red" / "rank-0.log"),
        "ONLY": only,
    }
    job = spec(command=(sys.executable, str(HOSTILE)), env=aims | about)
    attacker = attacker.model_copy(update={"spec": job})
    await node.up(victim, attacker, word="")
    await until(lambda: "tried all" in node.says(attacker))
    return dict(reversed(line.split()) for line in node.says(attacker).splitlines() if line != "tried all"), pid


async def warm(node):
    """Returns when jobs take a copy of a view that the keeper holds."""
    for epoch in itertools.count(1):
        job = part(spec("import time; print('up', flush=True); time.sleep(600)"), rank(epoch=epoch), team="blue")
        await node.up(job)
        (kept,) = node.agent.launcher.keeper.attempts.values()
        await node.world.want("n0")
        await node.world.sees(job, Released)
        await until(lambda: not node.agent.launcher.keeper.attempts)
        if kept.prepared:
            return


@pytest.mark.parametrize("prepared", [True, False])
async def test_a_hostile_job_reaches_nothing(start, aims, tmp_path, monkeypatch, prepared):
    """Neither in a copy of the view that was prepared for all, nor in one that bubblewrap has made for it alone."""
    if not prepared:
        monkeypatch.setattr(JobView, "prepared", lambda *_: None)
    async with start(readable=(HOSTILE.parent,)) as node:
        if prepared:
            await warm(node)
        said, pid = await attacked(node, aims, tmp_path)
        assert {kept.prepared for kept in node.agent.launcher.keeper.attempts.values()} == {prepared}
        assert node.agent.launcher.keeper.tier == walls.FULL, node.agent.launcher.keeper.why
        assert (tmp_path / "agent/walls").read_text().startswith(walls.FULL), "for `baton up`"
        lacking = {  # the agent says so: before Linux 6.12; and root that may not do all
            "be_ended_as_late_as_services": not keeps_scores(),
            "abstract_socket": not walls.scopes_known(),
        }
        told = [name for name, lacks_it in lacking.items() if lacks_it]
        assert {name for name, how in said.items() if how == "BROKE"} == set(told)
        assert len(said) >= 80
        assert Path(f"/proc/{pid}").stat().st_uid == team_uid("blue"), "and the other team's job goes on"


async def test_the_attacks_are_real_ones(start, aims, tmp_path):
    """Those that harm nobody, without walls."""
    only = "read_keys read_credentials read_victims_file read_victims_checkpoint read_victims_log read_own_record"
    only += " read_hosts_tmp"
    only += " open_socket_in_state abstract_socket jobs_of_others shared_memory_of_others tmp_of_others become_victim"
    async with start(walls=walls.NONE, teams_without_walls=True) as node:
        said, _ = await attacked(node, aims, tmp_path, only)
        assert node.agent.launcher.keeper.tier == walls.NONE
        assert [name for name, how in said.items() if how == "refused"] == []
        assert len(said) == len(only.split())


async def test_a_job_may_write_to_its_output_by_name(start):
    """As scripts do that send their own log there, and programs that take no other place for it."""
    job = part(
        spec(command=("sh", "-c", "echo one > /dev/stdout; echo two > /dev/stderr; echo three | tee /dev/fd/2")),
        rank("n0-gpu1"),
        team="blue",
    )
    async with start() as node:
        (released,) = await node.ends(job)
        assert sorted(node.says(job).splitlines()) == ["one", "three", "three", "two"]
        assert released.exit_code == 0


async def test_all_ranks_of_a_job_share_their_memory(start):
    """And see each other's processes: what a gang on one node needs."""
    code = """
import os, time
rank = os.environ["RANK"]
open(f"/dev/shm/of-{rank}", "w").close()
while len(os.listdir("/dev/shm")) < 2:
    time.sleep(0.01)
print("met", os.getuid(), flush=True)
"""
    async with start() as node:
        gang = part(spec(code), rank("n0-gpu0"), rank("n0-gpu1", number=1), team="blue")
        (released,) = await node.ends(gang)
        assert released.exit_code == 0
        assert f"met {team_uid('blue')}" in node.says(gang)


async def test_exit_codes_and_signals_are_the_jobs_own(start):
    async with start() as node:
        jobs = {
            "exit code 7": of("blue", "raise SystemExit(7)", 0),
            "exit code 137": of("blue", "raise SystemExit(137)", 1),
            "SIGKILL": of("blue", "import os; os.kill(os.getpid(), 9)", 2),
            "no-such-program": of("blue", "", 3, command=("no-such-program",)),
            "jobs are not shown it": of("blue", "pass", 4, workdir="/srv"),
        }
        ended = await node.ends(*jobs.values())
        assert all(text in released.reason for text, released in zip(jobs, ended, strict=True)), ended
        assert [released.exit_code for released in ended] == [7, 137, 137, 127, 127]


async def test_a_daemon_is_gone_with_its_job(start):
    daemon = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
    async with start() as node:
        await node.ends(of("green", daemon))
        left = [p for p in proc.pids() if (stat := proc.read_stat(p)) is not None and stat.state not in "ZX"]
        assert not [p for p in left if uid_of(p) == team_uid("green")]


STOPS_ALL = "if [ $RANK = 0 ]; then i=0; while [ $i -lt 30000 ]; do kill -STOP -1; i=$((i+1)); done; fi; exec sleep 600"
SLOW_SEARCH = "a:" * 2000 + "/usr/bin:/bin"
"""A PATH in which a command is found late: so long a rank has its job's user, and has not executed its program."""


async def test_a_rank_that_stops_the_next_while_that_is_started_does_not_stop_who_holds_both(start, world):
    """The shim waited for the next rank's program for ever: the job ran without a time limit, what it shared with others was
    not looked at, and neither its team nor an operator could end it."""
    async with start() as node:
        ranks = [rank(f"n0-gpu{n}", number=n) for n in range(8)]
        job = part(
            spec(command=("sh", "-c", STOPS_ALL), env={"PATH": SLOW_SEARCH}, stop_grace_s=0.5), *ranks, team="red"
        )
        await node.world.want("n0", job)
        await world.sees(job, Started)
        assert [kept.shim > 0 for kept in node.agent.launcher.keeper.attempts.values()] == [True]
        await node.world.want("n0")
        assert not (await world.sees(job, Released)).own_exit


async def test_who_starts_without_end_is_stopped(start):
    """Processes and descriptors: in the end the job can start no more, and its neighbour can."""
    bomb = """
import os, resource, time
for n in range(200):
    try:
        if os.fork() == 0:
            time.sleep(600)
    except BlockingIOError:
        print("stopped", n < 64, resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 65536, flush=True)
        break
time.sleep(600)
"""
    async with start(job_processes=64) as node:
        first, second = of("red", bomb), of("blue", "import os; os.fork(); print('up')", 2)
        await node.up(first, word="stopped")
        assert node.says(first) == "stopped True True\n"
        await node.world.want("n0", first, second)
        await until(lambda: "up" in node.says(second))


TERMINALS = """
import os, time
held = []
try:
    while len(held) < 1000:
        held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as e:
    print(len(held), e.strerror, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("prepared", [True, False])
async def test_a_job_has_so_many_terminals_and_leaves_the_others(start, monkeypatch, prepared):
    """Seen: one job had all 3,072 that a machine has for jobs, and no other could open one."""
    if not prepared:
        monkeypatch.setattr(JobView, "prepared", lambda *_: None)
    async with start() as node:
        if prepared:
            await warm(node)
        job = of("red", TERMINALS)
        await node.up(job, word="space")
        assert node.says(job) == "256 No space left on device\n"
        assert {kept.prepared for kept in node.agent.launcher.keeper.attempts.values()} == {prepared}


CORES = """
import os, resource, signal, sys
limits = lambda: resource.getrlimit(resource.RLIMIT_CORE)
found = [limits()]
for new in ((0, 0), (0, 1), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)):
    resource.setrlimit(resource.RLIMIT_CORE, new)
    found.append(limits())
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
print(set(found), resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
"""


@pytest.mark.parametrize("network", Network)
async def test_no_job_has_a_core_dumped_into_a_program_of_roots(start, network):
    """A limit of 0 bytes keeps cores from files alone: 300 MB of a job that had it went to the program of `core_pattern`."""
    async with start() as node:
        job = of("red", CORES).model_copy(update={"network": network})
        end = await ended(node, job)
        assert end.exit_code == 0
        assert node.says(job) == "{(1, 1)} (100, 100)\n"


def test_two_teams_together_cannot_have_all_processes_of_the_machine(tmp_path):
    """Where the kernel has its own 32,768, two with 16,384 each would leave none to the agent and to others."""
    most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    assert view_of([tmp_path], AgentSettings()).processes <= most // 4
    assert view_of([tmp_path], AgentSettings(job_processes=20_000)).processes == 20_000, "who says it means it"


async def test_a_checkpoint_stays_its_teams(start, tmp_path):
    """What an attempt without walls has left is handed over, but nothing that has a second name."""
    async with start() as node:
        job = of("blue", "import os; print(open(os.environ['BATON_CHECKPOINT_DIR'] + '/old/weights').read())")
        saves = tmp_path / "checkpoints" / job.job_id
        (saves / "old").mkdir(parents=True)
        (saves / "old/weights").write_text("of before")
        (saves / "old/weights").chmod(0o600)
        (tmp_path / "keys.json").write_text("the agent's")
        os.link(tmp_path / "keys.json", saves / "keys")
        (released,) = await node.ends(job)
        assert (released.exit_code, node.says(job)) == (0, "of before\n")
        assert (saves / "old/weights").stat().st_uid == team_uid("blue")
        assert (saves / "keys").stat().st_uid == 0


async def test_two_teams_of_one_number_are_not_served(start, tmp_path):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/teams.json").write_text(json.dumps({str(team_uid("blue")): "yellow"}))
    async with start() as node:
        (released,) = await node.ends(of("blue", "pass"))
        assert "teams 'blue' and 'yellow' have the same user id" in released.reason
        assert released.category == "hardware"


async def test_without_walls_one_team_is_served(start, tmp_path):
    async with start(walls=walls.NONE) as node:
        first, second = of("blue", "pass"), of("red", "pass", device=2)
        (released,) = await node.ends(first)
        assert released.exit_code == 0
        (released,) = await node.ends(second)
        assert "it serves one team, 'blue'" in released.reason
        assert "BATON_AGENT_TEAMS_WITHOUT_WALLS" in released.reason
    async with start(walls=walls.NONE) as node:
        (released,) = await node.ends(of("red", "pass"))
        assert "it serves one team, 'blue'" in released.reason, "also after a restart: blue's files are there"


async def test_walls_that_cannot_be_had_end_the_start(start, tmp_path):
    with pytest.raises(NoKeeper, match=r"keeper\.log"):
        await start(walls=walls.NAMESPACES).__aenter__()
    assert "walls 'namespaces' cannot be had here, but 'full'" in (tmp_path / "agent/keeper.log").read_text()


async def test_the_pool_is_told_which_walls_there_are_and_what_they_lack(start, world):
    async with start(walls=walls.NONE) as node:
        await node.up(of("blue", VICTIM))
        await node.agent._sample(node.agent.nodes["n0"])
        await until(lambda: world.samples)
        told = world.samples[-1].walls
        assert (told.tier, told.lacks[0]) == (walls.NONE, "none were asked for")
        assert told == node.agent.launcher.walls.found()


@pytest.mark.parametrize("name", ["readable", "writable"])
def test_a_folder_of_the_agents_cannot_be_shown(tmp_path, name):
    with pytest.raises(Exposed, match="is the agent's own"):
        view_of([tmp_path / "state"], AgentSettings(nats_url="nats://x", **{name: (tmp_path,)}))


def test_a_folder_of_the_agents_below_one_that_is_shown_is_hidden(tmp_path):
    settings = AgentSettings(nats_url="nats://x")
    arguments = view_of([Path("/opt/baton/state")], settings).arguments()
    assert arguments[arguments.index("/opt/baton/state") - 1] == "--tmpfs"


def test_numbers_of_teams():
    """They are the same for ever: files on shared storage have them."""
    assert team_uid("blue") == 1917257369
    assert all(FIRST_TEAM_UID <= team_uid(f"team-{n}") < 0x7FFF_0000 for n in range(1000))


def uid_of(pid):
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return -1


HOG = "held = [bytearray(b'x' * 2**20) for _ in range(400)]; print('held'); import time; time.sleep(600)"


async def test_a_job_that_takes_more_memory_than_it_asked_for_harms_itself_alone(start):
    async with start() as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        hog = of("red", HOG, device=2, resources=Resources(devices=1, host_memory_mib=200))
        end = await ended(node, victim, hog)
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.OUT_OF_MEMORY)
        assert "limited to 200 MiB" in end.reason
        filler = of("red", FILL_TMP, device=3, resources=Resources(devices=1, host_memory_mib=200))
        end = await ended(node, victim, filler)
        assert (end.exit_code, "No space left" in node.says(filler)) == (1, True), "half of it is for /tmp"
        await until(lambda: len(memory_groups(node)) == 1)  # the victim's


def memory_groups(node) -> set[Path]:
    """All that this agent has for attempts."""
    root = group_name(tree.marker_root("n0", node.agent.settings.state_dir))
    found = {Path(at) for at, below, _ in os.walk(node.agent.launcher.memory_base) if root in at and not below}
    return found - {at for at in found if at.name == root or at.parent.name == root}  # of version 2: a node's, a life's


async def test_a_job_has_one_group_of_memory_and_leaves_none(start):
    async with start() as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        (group,) = memory_groups(node)
        assert proc.group_members(str(group))
        others = groups_below(Path("/sys/fs/cgroup"), f"*{victim.job_id}*")
        assert others in ([], [group]), "its pid namespace holds it together: it needs no second one for that"
        await node.world.want("n0")  # it is killed
        await until(lambda: not memory_groups(node))


SPENDS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "held = [bytearray(b'x' * 2**20) for _ in range(400)]"])
"""


async def test_jobs_have_a_group_of_memory_one_after_the_other_and_nothing_of_one_another(start):
    """Of version 1, whose groups say nothing of who was in them."""
    epochs = itertools.count(1)

    async def after(team: str, code: str, mib: int = 200) -> Released:
        job = spec(code, resources=Resources(devices=1, host_memory_mib=mib))
        return await ended(node, part(job, rank(epoch=next(epochs)), team=team))

    async with start() as node:
        if node.agent.launcher.memory_base == node.agent.launcher.group_base:
            pytest.skip("of version 2 an attempt has its own, with its name")
        await after("blue", "open('saved', 'wb').write(bytes(2**20))")
        (group,) = memory_groups(node)
        assert int((group / "memory.limit_in_bytes").read_text()) == 200 << 20
        await after("red", "pass")
        assert memory_groups(node) == {group}
        await after("red", "pass", mib=300)
        other = memory_groups(node) - {group}
        assert len(other) == 1, "who has another limit has another group"
        end = await after("red", SPENDS)
        assert (end.exit_code, memory_groups(node)) == (0, other), "something was killed in it"
        end = await after("blue", "raise SystemExit(1)")
        assert (end.exit_code, end.category) == (1, None), "not for what the one before had too much of"
        await after("red", "open('saved', 'wb').write(bytes(50 * 2**20))")
        assert memory_groups(node) == other, "much of its file is cached"


FILL_TMP = "open('/tmp/all', 'wb').write(bytes(150 * 2**20))"
FILL_HOME = """
import os, time
os.makedirs('a/b')
n = 0
while True:
    n += 1
    with open(f'a/b/{n}', 'wb') as file:
        file.write(bytes(2**20))
    time.sleep(0.002)
"""


async def ended(node, *parts):
    """The end of the last of them, while the others go on."""
    await node.world.want("n0", *parts)
    return await node.world.sees(parts[-1], Released)


async def test_a_job_that_fills_its_folder_is_ended_with_the_figures(start):
    async with start(job_disk_mib=64, limits_s=0.2) as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        filler = of("red", FILL_HOME, device=2)
        end = await ended(node, victim, filler)
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert end.reason.startswith("disk limit: its folders hold"), end.reason
        assert "(limits.disk_mib)" in end.reason
        assert "may hold 64 MiB" in end.reason
        assert "up" in node.says(victim)


GREEDY = """
import errno, os, subprocess, sys
files, started = [], []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError as e:
    print("files", len(files), errno.errorcode[e.errno], flush=True)
for fd in files:
    os.close(fd)
try:
    while True:
        started.append(subprocess.Popen(["sleep", "600"]))
except OSError as e:
    print("processes", len(started), errno.errorcode[e.errno], flush=True)
for one in started:
    one.kill()
for at in ("/tmp", "/dev/shm"):
    try:
        open(at + "/all", "wb").write(bytes(64 * 2**20))
    except OSError as e:
        print(at, errno.errorcode[e.errno], flush=True)
"""
ASKED = JobLimits(processes=24, open_files=128, scratch_mib=32, disk_mib=48)


async def test_a_job_is_held_to_the_limits_that_it_asked_for(start):
    """And another job of the same team, whose user id it shares, is not."""
    async with start() as node:
        other = of("red", "import subprocess as s; [s.Popen(['sleep', '600']) for _ in range(60)]; print('up', flush=True); "
                   "import time; time.sleep(600)", device=3)  # fmt: skip
        await node.up(other)
        greedy = of("red", GREEDY, device=2, limits=ASKED)
        end = await ended(node, other, greedy)
        said = node.says(greedy)
        assert end.exit_code == 0, said
        found = dict(re.findall(r"(files|processes) (\d+) ", said))
        assert 100 <= int(found["files"]) < 128, said
        assert int(found["processes"]) == 24 - 1, said  # and who starts them
        assert "processes" in said
        assert "EAGAIN" in said
        assert "/tmp ENOSPC" in said
        assert "/dev/shm ENOSPC" in said
        base = node.agent.launcher.process_base
        assert base is not None
        await until(lambda: not list(base.glob("*" + greedy.job_id + "*")))


async def test_a_job_that_fills_the_disk_that_it_asked_for_is_ended(start):
    async with start(limits_s=0.2) as node:
        end = await ended(node, of("red", FILL_HOME, limits=ASKED))
        assert (end.exit_code, end.own_exit, end.category, end.over) == (137, True, Category.USER_ERROR, "disk")
        assert "may hold 48 MiB" in end.reason


HIDING = {
    "in folders deeper than any path": """
import os, time
at = os.open(".", os.O_RDONLY)
for _ in range(1500):
    os.mkdir("down", dir_fd=at)
    below = os.open("down", os.O_RDONLY, dir_fd=at)
    os.close(at)
    at = below
with open(os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=at), "wb") as file:
    file.write(bytes(80 * 2**20))
time.sleep(600)
""",
    "in a file without a name": """
import os, time
file = open("big", "wb")
os.unlink("big")
file.write(bytes(80 * 2**20))
file.flush()
time.sleep(600)
""",
    "beside its acknowledgement": """
import os, time
with open(os.path.dirname(os.environ["BATON_PROGRESS_FILE"]) + "/big", "wb") as file:
    file.write(bytes(80 * 2**20))
time.sleep(600)
""",
}


async def test_a_job_that_hides_what_it_fills_is_ended(start, tmp_path):
    try:
        async with start(limits_s=0.2) as node:
            for device, (how, code) in enumerate(HIDING.items(), start=1):
                end = await ended(node, of("red", code, device=device, limits=ASKED))
                assert end.reason.startswith("disk limit:"), (how, end)
                assert end.category == Category.USER_ERROR, how
    finally:
        await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(tmp_path / "jobs")], check=False)  # pytest cannot


async def test_processes_are_counted_where_no_group_holds_them(start):
    async with start(cgroups=False, limits_s=0.2) as node:
        many = "import subprocess as s, time; [s.Popen(['sleep', '600']) for _ in range(60)]; time.sleep(600)"
        end = await ended(node, of("red", many, limits=ASKED))
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert "process limit: it had" in end.reason
        assert "processes and threads, and may have 24" in end.reason


TAKING_PORTS = """
import os, socket, time
taken = []
for _ in range(4):
    if os.fork() == 0:
        for _ in range(200):
            taken.append(socket.socket(*KIND))
            taken[-1].bind(("::1" if KIND else "127.0.0.1", 0))
        time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["", "socket.AF_INET6, socket.SOCK_DGRAM"], ids=["tcp", "udp-of-ipv6"])
async def test_a_job_that_takes_the_ports_of_all_is_ended(start, kind):
    async with start(limits_s=0.2, job_sockets=600) as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        end = await ended(node, victim, of("red", TAKING_PORTS.replace("KIND", f"({kind})"), device=2))
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert "sockets open, and may have 600" in end.reason


OPENING_FILES = """
import os, time
taken = []
for _ in range(4):
    if os.fork() == 0:
        taken += [open("/dev/null") for _ in range(8_000)]
        time.sleep(600)
time.sleep(600)
"""


async def test_a_job_that_opens_the_files_of_all_is_ended(start, monkeypatch):
    monkeypatch.setattr(shared, "open_files_of_machine", lambda: 4 * 20_000)
    async with start() as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        end = await ended(node, victim, of("red", OPENING_FILES, device=2))
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert end.reason.startswith("file limit: it had ")


LOCKING = """
import fcntl, os, time
for _ in range(2):
    if os.fork() == 0:
        with open(f"locked-{os.getpid()}", "w") as file:
            for at in range(1_000):
                fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
            time.sleep(600)
time.sleep(600)
"""


async def test_a_job_that_locks_very_many_parts_of_files_is_ended(start, monkeypatch):
    """Its memory is 64 MiB and no cgroup counts locks: another had 600 MB of them in five seconds."""
    monkeypatch.setattr(shared, "LOCKS", 4 * 1_500)
    async with start() as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        end = await ended(node, victim, of("red", LOCKING, device=2))
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert (
            end.reason
            == "lock limit: it held 2,000 locks of files, and may hold 1,500: no limit of its memory counts them"
        )


LOCKED_BY_WHO_IS_GONE = """
import ctypes, fcntl, os, time
for _ in range(2):
    if (pid := os.fork()) == 0:
        if ctypes.CDLL(None).syscall(clone, 0x411, 0, 0, 0, 0) == 0:  # CLONE_FILES: the same table of open files
            time.sleep(600)
        file = os.open(os.environ["SHOWN"], os.O_RDONLY)
        for at in range(1_000):
            fcntl.lockf(file, fcntl.LOCK_SH, 1, 2 * at)
        os._exit(0)
    os.waitpid(pid, 0)
time.sleep(600)
""".replace("clone", "56" if os.uname().machine == "x86_64" else "220")


async def test_a_job_whose_locks_are_of_processes_that_are_gone_is_ended(start, monkeypatch):
    """The list of all locks names who locked; who shares the open files keeps them. A job had 335,836, and nobody was ended.
    Who has that file open besides is not meant."""
    monkeypatch.setattr(shared, "LOCKS", 4 * 1_500)
    async with start(readable=(HOSTILE.parent,)) as node:
        victim = of("blue", f"kept = open({str(HOSTILE)!r})\n{VICTIM}")
        await node.up(victim)
        end = await ended(node, victim, of("red", LOCKED_BY_WHO_IS_GONE, device=2, env={"SHOWN": str(HOSTILE)}))
        assert {seen.job_id for _, _, seen in node.world.seen if isinstance(seen, Released)} == {end.job_id}
        assert end.reason.startswith("lock limit: it held 2,000 locks of files, and may hold 1,500: ")


LEAVING_UNREAD = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
held = []
for _ in range(40):
    one = socket.create_connection(server.getsockname())
    held += [one, server.accept()[0]]
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(1 << 20))
    except BlockingIOError:
        pass
time.sleep(600)
"""


@pytest.mark.parametrize("network", Network)
async def test_a_job_that_leaves_very_much_unread_in_sockets_is_ended(start, monkeypatch, network):
    monkeypatch.setattr(shared, "memory_for_sockets", lambda name: 64 << 20)
    async with start() as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        leaving = of("red", LEAVING_UNREAD, device=2).model_copy(update={"network": network})
        end = await ended(node, victim, leaving)
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert end.reason.startswith("memory of sockets: its TCP had ")


ASKING = """
import socket, struct, time
held = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) for _ in range(100)]
for one in held:
    one.bind((0, 0))
    for _ in range(200):
        one.send(struct.pack("=IHHIIBxHiII", 32, 18, 1, 1, 0, 0, 0, 1, 0, 0))
time.sleep(600)
"""


@pytest.mark.parametrize("network", Network)
async def test_a_job_that_leaves_answers_of_netlink_unread_is_ended(start, monkeypatch, network):
    monkeypatch.setattr(shared, "memory_for_sockets", lambda name: 16 << 20)
    async with start() as node:
        victim = of("blue", VICTIM)
        await node.up(victim)
        end = await ended(node, victim, of("red", ASKING, device=2).model_copy(update={"network": network}))
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert end.reason.startswith("memory of sockets: its netlink had ")


LISTENING = """
import os, socket, sys, time
how, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
server = socket.create_server(("127.0.0.1", 0))
held = []
for port in range(first, last):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, how == "listens")
    try:
        one.bind(("0.0.0.0", port))
    except OSError:
        continue
    if how == "listens":
        one.listen()
    if how == "connects":
        one.connect(server.getsockname())
        held.append(server.accept()[0])
        one = one.dup()  # the last that was opened closes first, and what closes first is remembered
    held.append(one)
if how == "hides":
    here, there = socket.socketpair()
    for at in range(0, len(held), 200):
        socket.send_fds(here, [b"x"], [one.fileno() for one in held[at : at + 200]])
    held.clear()
    one = None
print("up", len(held), flush=True)
time.sleep(600)
"""
MEETING = """
import os, socket, time
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server(where) as server:
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            one, _ = server.accept()
            one.sendall(b"of the gang")
    print("met", flush=True)
else:
    for _ in range(600):
        try:
            with socket.create_connection(where) as one:
                assert one.recv(100) == b"of the gang", "a stranger"
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""
OWN_PORT = """
import os, socket, time
with socket.create_server(("", int(os.environ["MASTER_PORT"]))):
    time.sleep(1)
    os._exit(3)
"""


def listening(team, how, first, last, device=1, **fields):
    command = (sys.executable, "-c", LISTENING, how, str(first), str(last))
    return part(spec(command=command), rank(f"n0-gpu{device}"), team=team, **fields)


def gang(team, devices=(2, 3), **fields):
    return part(spec(MEETING), *(rank(f"n0-gpu{d}", number=n) for n, d in enumerate(devices)), team=team, **fields)


@pytest.fixture
def forgotten():
    """Ports whose connections are not remembered after the test: for a minute nobody else could have them."""
    ports = set()
    yield ports
    for port in ports:
        sockdiag.end_what_is_left(port)


@pytest.mark.parametrize("how", ["listens", "binds", "connects", "hides"])
async def test_a_job_that_holds_many_ports_at_which_gangs_meet_is_ended(start, forgotten, how):
    if how in ("binds", "hides") and not sockdiag.tells(sockdiag.BOUND):
        assert any("only bound" in lack for lack in lacks())
        return
    ports = range(20_000, 30_000) if how in ("listens", "binds") else range(29_600, 29_800)
    forgotten.update(ports if how == "connects" else ())
    async with start() as node:
        (end,) = await node.ends(listening("red", how, ports.start, ports.stop))
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.USER_ERROR)
        assert end.reason.startswith("port limit: it has had ")
        assert end.reason.endswith(" of the ports 20000 to 29999, at which gangs meet, and may have 64")


@pytest.mark.parametrize("how", ["listens", "connects"])
async def test_a_gang_begins_as_ever_while_a_job_holds_all_ports_at_which_it_could_meet(
    start, forgotten, monkeypatch, how
):
    """One of 10,000 that listen; and among connections, which are remembered for a minute after the end of their process."""
    monkeypatch.setattr(
        processes, "PORT_TRIES", 1000
    )  # on a slow machine it takes some seconds until who holds them is ended
    async with start() as node:
        meets = gang("blue")
        port = master_port(meets.job_id, meets.attempt)
        ports = range(20_000, 30_000) if how == "listens" else range(port - 50, port + 50)
        forgotten.update(ports if how == "connects" else ())
        attacker = listening("red", how, ports.start, ports.stop)
        await node.world.want("n0", attacker)
        await until(lambda: "up" in node.says(attacker) or node.world.of(attacker, Released))
        await node.world.want("n0", attacker, meets)
        end = await node.world.sees(meets, Released)
        assert end.exit_code == 0, (end, node.says(meets))


async def test_a_gang_waits_for_its_port_while_others_hold_it(start, monkeypatch):
    monkeypatch.setattr(processes, "PORT_TRIES", 1000)
    async with start(ask_s=0.1) as node:
        meets = gang("blue")
        port = master_port(meets.job_id, meets.attempt)
        holder = listening("red", "listens", port, port + 1)
        await node.up(holder)
        asked = []
        real = sockdiag.is_free
        monkeypatch.setattr(sockdiag, "is_free", lambda port: asked.append(port) or real(port))
        await node.world.want("n0", holder, meets)
        await until(lambda: len(asked) > 2)
        assert not node.says(meets)
        await node.world.want("n0", meets)
        end = await node.world.sees(meets, Released)
        assert end.exit_code == 0, (end, node.says(meets))


async def test_who_finds_its_port_held_by_others_runs_again_at_nobodys_expense(start, monkeypatch):
    """By one who may: it has few of these ports."""
    monkeypatch.setattr(processes, "PORT_TRIES", 2)
    async with start(limits_s=0.2) as node:
        meets, alone = gang("blue"), gang("blue", devices=(4,))
        ports = [master_port(one.job_id, one.attempt) for one in (meets, alone)]
        holders = [listening("red", "listens", port, port + 1, device) for device, port in enumerate(ports, start=5)]
        await node.up(*holders)
        await node.world.want("n0", *holders, meets, alone)
        for one, port, what in (
            (meets, ports[0], "could not start"),
            (alone, ports[1], "rank 0 ended with exit code 1"),
        ):
            end = await node.world.sees(one, Released)
            assert (end.own_exit, end.category, end.port_held) == (True, Category.HARDWARE, True), end
            assert end.unproven is (one is alone), (
                "two teams together could bring that about, and have their time given back"
            )
            assert end.reason.startswith(what)
            assert f"port {port}" in end.reason
        assert not any(node.world.of(one, Released) for one in holders)
        failing = of("blue", OWN_PORT, device=7)
        await node.world.want("n0", *holders, failing)
        end = await node.world.sees(failing, Released)
        assert (end.exit_code, end.category, end.port_held) == (3, None, False), "nobody but itself held its port"


async def test_a_team_that_holds_the_port_of_its_own_gang_is_given_back_nothing(start):
    async with start(limits_s=0.2) as node:
        alone = gang("blue", devices=(4,))
        port = master_port(alone.job_id, alone.attempt)
        holder = listening("blue", "listens", port, port + 1, 5)
        await node.up(holder)
        await node.world.want("n0", holder, alone)
        end = await node.world.sees(alone, Released)
        assert (end.own_exit, end.category) == (True, None), end


async def test_memory_is_watched_where_no_group_holds_it(start):
    async with start(cgroups=False, limits_s=0.2) as node:
        end = await ended(node, of("red", HOG, resources=Resources(devices=1, host_memory_mib=200)))
        assert (end.exit_code, end.own_exit, end.category) == (137, True, Category.OUT_OF_MEMORY)
        assert "of memory, and may use 200 MiB" in end.reason


LONELY = """
import os, socket
port = int(os.environ["PORT"])
for host, port in (("127.0.0.1", port), ("10.0.0.1", 4222), ("::1", port)):
    try:
        socket.create_connection((host, port), timeout=2)
        print("REACHED", host, port)
    except OSError as e:
        print("refused", e.errno)
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname(), timeout=5)
    print("own loopback")
print(sorted(name for _, name in socket.if_nameindex()))
"""


@pytest.mark.parametrize("network", Network)
async def test_a_class_without_network_has_nothing_but_a_loopback_of_its_own(start, network):
    with socket.create_server(("127.0.0.1", 0)) as hosts:
        port = hosts.getsockname()[1]
        async with start() as node:
            job = of("red", LONELY, env={"PORT": str(port)}).model_copy(update={"network": network})
            assert node.agent.nodes["n0"].inventory.labels == {WALLS: walls.FULL}, "as the pool was told"
            end = await ended(node, job)
            assert end.exit_code == 0, node.says(job)
            said = node.says(job)
            assert ("REACHED" in said) is (network is Network.HOST), said
            assert "own loopback" in said
            assert ("['lo']" in said) is (network is Network.NONE)


async def test_without_walls_no_class_without_network_is_served(start):
    async with start(walls=walls.NONE) as node:
        assert node.agent.nodes["n0"].inventory.labels == {WALLS: walls.NONE}, "so nothing of it should come here"
        job = of("red", "pass").model_copy(update={"network": Network.NONE})
        end = await ended(node, job)
        assert (end.own_exit, end.category) == (True, Category.HARDWARE)
        assert "its class has no network" in end.reason
