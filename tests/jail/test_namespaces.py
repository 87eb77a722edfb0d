"""The tier `namespaces`: an agent without root, as a plain user of this machine. Root makes that user's surroundings here."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from schemas.inbox import Released
from services.agent.keeper import find
from services.agent.view import launcher
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until
from tests.agent.world import World
from tests.jail.plain import ROOT, readable_to_all
from tests.jail.test_full import HOSTILE, VICTIM

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a plain user")

USER = 42_424
FLEET = "groups: [{name: 'n{i}', count: 1, devices: {model: H100, count: 4, memory_gib: 80}}]"
HARMLESS = {"write_keys", "kill_shim", "be_ended_as_late_as_services"}
"""The folders of the view are the job's own user's here: what it writes beside its own is in its own memory. And the kernel
drops the signal that it may send to the first process of its namespace. And who is not root keeps nobody from having a lower
score, as its agent says."""


class PlainAgent:
    """`python -m services.agent` of a user who is nobody. It sees the machine as it is, and may read the interpreter."""

    def __init__(self, folder: Path, nats_url: str, pool: str) -> None:
        self.folder = folder
        (folder / "fleet.yaml").write_text(FLEET)
        self.output = (folder / "agent.log").open("wb")
        self.process = subprocess.Popen(
            [
                launcher(),
                *readable_to_all(),
                *("--die-with-parent", "--", "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
                *(sys.executable, "-m", "services.agent"),
            ],
            env={
                "PATH": "/usr/bin:/bin",
                "BATON_NATS_URL": nats_url,
                "BATON_POOL": pool,
                "BATON_STATE_DIR": str(folder),
                "BATON_AGENT_FLEET": str(folder / "fleet.yaml"),
                "BATON_AGENT_ASK_S": "0.2",
                "BATON_AGENT_READABLE": f'["{HOSTILE.parent}"]',
                "BATON_AGENT_WALLS": "namespaces",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd=ROOT,
            stdout=self.output,
            stderr=self.output,
        )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        find.kill(self.folder / "agent")
        for process in psutil.process_iter():  # who becomes another user is not killed with its parent any more
            with suppress(psutil.NoSuchProcess):
                if process.uids().real == USER:
                    process.kill()

    def says(self, job_id: str) -> str:
        logs = (self.folder / "jobs" / ".agent").glob(f"{job_id}.1.*/rank-0.log")
        return "".join(log.read_text() for log in logs)


@pytest.fixture
def agent(nats_url: str, pool: str) -> Iterator[PlainAgent]:
    folder = Path(tempfile.mkdtemp(prefix="baton-plain-"))
    (folder / "creds").mkdir()
    for name in ("keys.json", "creds/nats.creds"):
        (folder / name).write_text("the agent's")
    made = PlainAgent(folder, nats_url, pool)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    yield made
    made.end()
    shutil.rmtree(folder)


async def test_a_hostile_job_reaches_nothing_of_an_agent_without_root(agent, nats, pool):
    world = await World(nats, pool).open()
    await world.joined("n0")
    victim = part(spec(VICTIM), rank("n0-gpu0"), team="blue")
    await world.want("n0", victim)
    await until(lambda: "up" in agent.says(victim.job_id))
    attacker = part(spec("pass"), rank("n0-gpu1"), team="red")
    aims = {
        "STATE": str(agent.folder),
        "ABSTRACT": "none",
        "HOST_FILE": str(agent.folder / "agent.log"),
        "VICTIM": str(agent.folder / "jobs" / victim.job_id / "1"),
        "VICTIM_JOB": victim.job_id,
        "VICTIM_PID": str(agent.process.pid),
        "OWN_RECORD": str(agent.folder / "jobs" / ".agent" / f"{attacker.job_id}.1.red" / "rank-0.log"),
    }
    attacker = attacker.model_copy(update={"spec": spec(command=(sys.executable, str(HOSTILE)), env=aims)})
    await world.want("n0", victim, attacker)
    await until(lambda: "tried all" in agent.says(attacker.job_id))
    said = dict(reversed(line.split()) for line in agent.says(attacker.job_id).splitlines() if line != "tried all")
    assert [name for name, how in said.items() if how == "BROKE" and name not in HARMLESS] == []
    assert len(said) >= 60
    assert (agent.folder / "keys.json").read_text() == "the agent's"
    kept = (agent.folder / "jobs" / ".agent").glob(f"{attacker.job_id}.*")
    assert [folder.name for folder in kept] == [f"{attacker.job_id}.1.red"], "it is still said to be red's"


SENDING = """
import os, socket, time
file, kept = os.open("/dev/null", os.O_RDONLY), []
try:
    while True:
        kept.append(socket.socketpair())
        kept[-1][0].setblocking(False)
        try:
            while True:
                socket.send_fds(kept[-1][0], [b"x"], [file] * 250)
        except BlockingIOError:
            pass
except OSError as e:
    print("up", e.errno, flush=True)
time.sleep(600)
"""


async def test_a_job_that_sends_all_files_that_its_user_may_keeps_no_other_from_starting(agent, nats, pool):
    """What is sent and not received counts for the user whom all jobs share with the keeper, which sends some for each start:
    others' could not be started, as if that was their own fault."""
    world = await World(nats, pool).open()
    await world.joined("n0")
    attacker = part(spec(SENDING), rank("n0-gpu0"), team="red")
    await world.want("n0", attacker)
    await until(lambda: agent.says(attacker.job_id) == f"up {errno.ETOOMANYREFS}\n")
    other = part(spec("print('up', flush=True)"), rank("n0-gpu1"), team="blue")
    await world.want("n0", attacker, other)
    assert (await world.sees(other, Released)).exit_code == 0


async def test_an_agent_whose_jobs_have_its_user_watches_no_file_by_what_one_of_them_may_use_up(agent, nats, pool):
    """A job had all 5,491,489 watches (`epoll`) of its user after seven seconds: the next connection ended the agent, by
    SIGABRT, and no job of others was started."""
    world = await World(nats, pool).open()
    await world.joined("n0")
    running = part(spec("import time; print('up', flush=True); time.sleep(600)"), rank("n0-gpu0"), team="blue")
    await world.want("n0", running)
    await until(lambda: "up" in agent.says(running.job_id))
    watching = [
        os.readlink(f"/proc/{process.pid}/fd/{fd}")
        for process in psutil.process_iter()
        if process.uids().real == USER
        for fd in os.listdir(f"/proc/{process.pid}/fd")
    ]
    assert str(agent.folder / "agent" / "keeper.lock") in watching, "the keeper is among them"
    assert "anon_inode:[eventpoll]" not in watching
