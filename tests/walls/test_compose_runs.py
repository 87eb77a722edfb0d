"""Compose without its containers: each service by its own command and environment, with compose's nats.conf (TLS, accounts),
its Redis users and its credentials, one for each. A team's job runs through all of them.

What is exchanged: names of hosts and folders, ports, and MongoDB for the embedded one, which knows no users. The agent runs as
a plain user, with its container's rights and system calls (`tests.walls.contained`), and puts up walls.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml

from libs.bus.connect import Address, BusUnavailable, connect
from libs.bus.endings import DAY_S
from libs.client import NotFound
from libs.client import connect as connect_client
from libs.embedded.ports import PortLease, lease_port
from libs.service.probe import ready
from libs.walls.keyring import Keyring
from libs.walls.wire import Wire
from schemas.jobs import JobSpec, JobState
from schemas.resources import Resources
from services.agent.keeper.walls import NAMESPACES
from tests.architecture.test_compose import ComposesRedis, composes_redis
from tests.cli.test_command import baton
from tests.kit.nats_process import nats_process
from tests.kit.waiting import until
from tests.walls import contained

__all__ = ["composes_redis"]

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
PYTHON = ("admission", "placement", "preemption", "quota_billing", "leases", "telemetry", "history", "queries", "vault")
PASSWORDS = {
    "REDIS_PLACEMENT_PASSWORD": "p" * 48,
    "REDIS_TELEMETRY_PASSWORD": "t" * 48,
    "BATON_TEAMS": "research,vision",
}
READY_S = 300.0
OTHERS = """
import os, sys
found = [path for path in sys.argv[1:] if os.path.exists(path)]
jobs = [name for name in os.listdir(os.path.dirname(os.getcwd())) if not os.getcwd().endswith(name)]
environs = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        environs += [pid for words in [open(f"/proc/{pid}/environ").read()] if "BATON_NATS_CREDS" in words]
    except OSError:
        pass
sys.exit(str((found, jobs, environs)) if found or jobs or environs else 0)
"""
"""Looks for what another team, and the agent, have in its container."""


class Compose:
    """Compose's services as processes of this machine."""

    def __init__(self, home: Path, redis_port: int, mongo_url: str) -> None:
        self.home, self.redis_port, self.mongo_url = home, redis_port, mongo_url
        home.mkdir()
        self.nats_port = 0
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environ: dict[str, dict[str, str]] = {}
        self.leases: list[PortLease] = []
        self.agents: tuple[str, ...] = ()
        """What the agent alone has, in its view."""
        self.homeless = home / "homeless"
        """A file: as in a container, whose root is read-only, nothing can be written at home."""
        self.homeless.touch()

    def here(self, text: str, service: str) -> str:
        """A word of compose's file, as it is on this machine."""
        text = re.sub(r"\$\{(\w+):?[?-]([^}]*)\}", lambda m: PASSWORDS.get(m[1], m[2].split(" ")[0]), text)
        text = re.sub(r"\$\{(\w+)\}", lambda m: PASSWORDS.get(m[1], "x"), text)
        for mount in SERVICES[service].get("volumes", []):
            if mount == "keys:/keys":
                text = re.sub("^/keys", f"{self.home}/keys", text)
            if isinstance(mount, dict) and mount.get("target") == "/creds":
                text = text.replace("/creds/", f"{self.home}/keys/{self.here(mount['volume']['subpath'], 'nats')}/")
        for there, here in (
            ("/home/baton/deploy", str(ROOT / "deploy")),
            ("/var/lib/", f"{self.home}/{service}/"),
            ("tls://nats:4222", f"tls://127.0.0.1:{self.nats_port}"),
            ("@redis:6379", f"@127.0.0.1:{self.redis_port}"),
            ("mongodb://history:x@mongo:27017/baton", self.mongo_url),
            ("0.0.0.0", "127.0.0.1"),
        ):
            text = text.replace(there, here)
        return text

    def command(self, service: str) -> tuple[list[str], dict[str, str]]:
        known = SERVICES[service]
        environ = {name: self.here(value, service) for name, value in known.get("environment", {}).items()}
        if "BATON_HTTP_PORT" in environ:
            self.leases.append(lease_port())
            environ["BATON_HTTP_PORT"] = str(self.leases[-1].port)
        program = ["-m", "libs.cli"] if known.get("entrypoint", ["baton"]) == ["baton"] else []
        words = [self.here(word, service) for word in known["command"]]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
        more = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HOME": str(self.homeless)}
        return [sys.executable, *program, *words], plain | more | environ

    def once(self, service: str) -> None:
        """A service that does one thing and ends."""
        words, environ = self.command(service)
        done = subprocess.run(words, env=environ, cwd=self.home, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{service}: {done.stderr}"

    def start(self, service: str, **more: str) -> None:
        for number in range(SERVICES[service].get("deploy", {}).get("replicas", 1)):
            words, environ = self.command(service)
            name = f"{service}-{number}"
            if not SERVICES[service].get("healthcheck", {}).get("disable"):
                self.environ[name] = environ | more
            (self.home / service).mkdir(exist_ok=True)
            with (self.home / f"{name}.log").open("wb") as log:
                self.running[name] = subprocess.Popen(words, env=environ | more, cwd=self.home, stdout=log, stderr=log)

    def start_agent(self) -> None:
        """As in its container, where it has a folder of its own and the node's credential."""
        words, environ = self.command("agent")
        kept, shown = self.home / "agent/lib", self.home / "agent/creds"
        shutil.copytree(Path(environ["BATON_NATS_CREDS"]).parent, shown)
        kept.mkdir()
        before: list[str] = []
        if os.geteuid() == 0:
            for path in (kept, shown, *shown.iterdir()):
                os.chown(path, contained.USER, contained.USER)
            before = [
                "--perms",
                "0755",
                "--tmpfs",
                "/mnt",
                "--bind",
                str(kept),
                "/mnt/lib",
                "--bind",
                str(shown),
                "/mnt/creds",
            ]
            kept, shown = Path("/mnt/lib"), Path("/mnt/creds")
        with socket.socket() as free:  # a container has no ports that are root's
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.leases.append(lease_port(port))
        environ["BATON_HTTP_PORT"] = str(port)
        self.agents = (str(kept / "agent"), str(shown))
        environ |= {
            "BATON_STATE_DIR": str(kept),
            "BATON_NATS_CREDS": str(shown / "nats.creds"),
            "BATON_AGENT_DEVICES": "cpu",
        }
        self.environ["agent-0"] = environ
        with (self.home / "agent-0.log").open("wb") as log:
            self.running["agent-0"] = subprocess.Popen(
                contained.command(words, before=before), env=environ, cwd=ROOT, stdout=log, stderr=log
            )

    def healthy(self) -> bool:
        """As the health check of each container asks."""
        for name, process in self.running.items():
            assert process.poll() is None, f"{name} ended: {(self.home / f'{name}.log').read_text()[-3000:]}"
        return all(ready(environ) for environ in self.environ.values())

    def keeper(self) -> list[psutil.Process]:
        """The agent's, if it has not ended with it."""
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            found = psutil.Process(int((self.home / "agent/lib/agent/keeper.lock").read_text()))
            if "services.agent.keeper" in found.cmdline():
                return [found]
        return []

    def stop(self) -> None:
        agent = self.running.get("agent-0")
        # bubblewrap passes no signal on, and who has become another user does not end with it.
        inner = psutil.Process(agent.pid).children() if agent is not None and agent.poll() is None else []
        for process in (*inner, *(one for one in self.running.values() if one is not agent or not inner)):
            process.terminate()
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        for one in (*inner, *self.keeper()):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        for lease in self.leases:
            lease.release()


@pytest.fixture
def keys(tmp_path: Path, composes_redis: ComposesRedis, mongo_url: str) -> Compose:
    """What compose's `keys` makes."""
    made = Compose(tmp_path / "compose", composes_redis.port, mongo_url)
    words = [sys.executable, "-m", "libs.cli"]
    for word in SERVICES["keys"]["command"]:
        word = made.here(word, "keys")
        for there, here in (("=/keys", "keys"), ("=/data/accounts", "told"), ("=/etc/nats/accounts", "accounts"),
                            ("=/accounts/", "accounts/")):  # fmt: skip
            word = word.replace(there, f"={made.home}/{here}")
        words.append(word)
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def broker(keys: Compose) -> Iterator[Compose]:
    """With compose's own nats.conf."""
    text = (ROOT / "deploy/nats.conf").read_text().replace("/data", "{folder}")
    with nats_process(f'{text}\npid_file: "{keys.home}/nats.pid"\n', keys.home) as url:
        keys.nats_port = int(url.rsplit(":", 1)[1])
        yield keys


@pytest.fixture
async def compose(broker: Compose) -> AsyncIterator[Compose]:
    try:
        await asyncio.to_thread(broker.once, "provision")
        for service in (*PYTHON, "streams", "teams"):
            broker.start(service)
        broker.start_agent()
        async with asyncio.timeout(READY_S):
            while not await asyncio.to_thread(broker.healthy):
                await asyncio.sleep(0.2)
        yield broker
    finally:
        await asyncio.to_thread(broker.stop)


@pytest.mark.timeout(500)
async def test_a_job_runs_through_composes_services(compose: Compose) -> None:
    assert {name.rsplit("-", 1)[0] for name in compose.running} == {
        name for name, known in SERVICES.items() if known.get("image") == "baton:local"
    } - {"keys", "admin", "provision"}, "every service of ours was started"
    creds, url = compose.home / "keys" / "creds", f"tls://127.0.0.1:{compose.nats_port}"
    with pytest.raises(BusUnavailable):
        await connect(Address(url, ca=creds / "ca.pem"), name="nobody", wait_s=3)
    async with await connect_client(Address(url, creds / "research.creds"), "research") as team:

        async def offered() -> bool:
            return (await team.status()).nodes_up == 1

        await until(offered, 120)
        spec = JobSpec(command=("true",), resources=Resources(types=("CPU",)))
        job = (await team.submit(spec, give_up_s=120)).job_id
        assert (await team.wait(job, timeout_s=120)).what == "succeeded"

        async def written() -> bool:
            with suppress(NotFound):  # history is a moment behind
                return (await team.get(job)).state is JobState.SUCCEEDED
            return False

        async def billed() -> bool:  # so are bills
            return bool((await team.bill()).rows)

        await until(written)
        await until(billed)
        (node,) = (await team.nodes()).nodes
        assert (node.node, node.walls.tier if node.walls else "") == ("host", NAMESPACES)
    await another_teams_job_is_served_and_kept_apart(compose)
    await until(lambda: "answering admins of teams" in (compose.home / "teams-0.log").read_text())
    for name in ("placement-0", "history-0"):
        foreign = json.dumps(compose.environ[name])
        assert "keys.json" not in foreign
        assert compose.environ[name]["BATON_NATS_CREDS"].endswith(f"services/{name[:-2]}/nats.creds")
    await tells_when_the_certificate_ends(compose)
    for name in ("streams-0", "teams-0"):
        compose.running[name].terminate()
        await until(lambda name=name: compose.running[name].poll() is not None)
        assert compose.running[name].returncode == 0, (
            "no signal ends a container's first process that says nothing of it"
        )


async def another_teams_job_is_served_and_kept_apart(compose: Compose) -> None:
    """Seen: it was refused, since a job read what the agent reads."""
    creds, url = compose.home / "keys" / "creds", f"tls://127.0.0.1:{compose.nats_port}"
    async with await connect_client(Address(url, creds / "vision.creds"), "vision") as team:
        command = (sys.executable, "-c", OTHERS, *compose.agents)
        spec = JobSpec(command=command, resources=Resources(types=("CPU",)))
        job = (await team.submit(spec, give_up_s=120)).job_id
        assert (await team.wait(job, timeout_s=120)).what == "succeeded"


async def tells_when_the_certificate_ends(compose: Compose) -> None:
    """Seen: nothing did, until nobody could connect any more."""
    ring, server = Keyring(compose.home / "keys"), f"127.0.0.1:{compose.nats_port}"
    operator = Address(f"tls://{server}", ring.operator())
    assert "certificate" not in (await baton("status", url=operator)).err
    telemetry = compose.environ["telemetry-0"]
    page = Request(f"http://127.0.0.1:{telemetry['BATON_HTTP_PORT']}/metrics")
    page.add_header("Authorization", f"Bearer {telemetry['BATON_HTTP_TOKEN']}")
    metrics = (await asyncio.to_thread(lambda: urlopen(page).read())).decode()
    for name, days in ((server, 397), ("authority", 3650)):
        (ends,) = re.findall(rf'^baton_certificate_end_timestamp_seconds{{of="{name}"}} (.+)$', metrics, re.MULTILINE)
        assert float(ends) == pytest.approx(time.time() + days * DAY_S, abs=DAY_S)

    old = Wire(ring, lambda: time.time() - 380 * DAY_S)
    old.make(old.names, renew=True)
    old.give(compose.home / "accounts", compose.home / "accounts")
    os.kill(int((compose.home / "nats.pid").read_text()), signal.SIGHUP)

    async def told() -> bool:
        said = (await baton("status", url=operator)).err
        return all(part in said for part in (f"{server} ends on ", "in 16 days", "`baton credentials --renew`"))

    await until(told)
    assert "certificate" not in (await baton("status", url=Address(operator.url, ring.team("research")))).err
