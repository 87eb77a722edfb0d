"""What compose.yaml and the image promise about rights: held here, because nobody notices when one is lost."""

import json
import os
import re
import runpy
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis
import yaml
from redis.exceptions import NoPermissionError, RedisError

from libs.cli.stores import MONGO_SERVICES, REDIS_RIGHTS, rules
from libs.embedded import binaries
from libs.embedded.ports import lease_port
from libs.service.probe import ready
from tests.kit.waiting import until

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text().splitlines()
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "baton:local"}


CALLS = "seccomp=deploy/agent-calls.json"
"""tests/walls/test_agent_calls.py says what is in it."""
APPARMOR = "apparmor=${AGENT_APPARMOR:-unconfined}"
OF_WALLS = [CALLS, APPARMOR, "systempaths=unconfined"]
"""What an agent needs beyond other containers so that its jobs run behind walls."""


class MergedLoader(yaml.SafeLoader):
    """Of a file beside compose's: `!override` says that a list takes the place of compose's."""


MergedLoader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def beside(name: str) -> dict[str, Any]:
    """A file that is merged into compose's."""
    loaded: dict[str, Any] = yaml.load((ROOT / "deploy" / name).read_text(), MergedLoader)
    return loaded


def environ(name: str) -> dict[str, str]:
    return dict(SERVICES[name].get("environment") or {})


def networks(name: str) -> set[str]:
    return set(SERVICES[name].get("networks", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True, "its root is read-only; what it writes goes to volumes and /tmp"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true", *(OF_WALLS if name == "agent" else [])]
    assert not {"privileged", "cap_add", "pid", "ipc", "cgroup", "devices"} & service.keys()
    assert service["ulimits"] == {"core": 1 if name == "agent" else 0}, "who has none cannot give its jobs one byte"
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys(), "seen: its log grew for ever"
    assert networks(name) or service["network_mode"] == "none", "no container is in the default network"
    asked = service["healthcheck"]
    assert asked.get("disable") or {"start_period", "start_interval"} <= asked.keys(), (
        "seldom: it starts a process each time. Seen: half a processor of an idle host. And often while all start"
    )
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), f"{port} is open to other hosts"
    for mount in filter(lambda mount: isinstance(mount, str), service.get("volumes", [])):
        assert "docker.sock" not in mount
        assert not mount.startswith("./") or mount.endswith(":ro"), f"{mount}: of this folder nothing is written"


def test_an_agent_puts_walls_around_its_jobs_without_a_right_more_than_others() -> None:
    """Seen: it could not, and jobs read its credential."""
    assert environ("agent")["BATON_AGENT_WALLS"] == "${BATON_AGENT_WALLS:-auto}"
    assert (ROOT / CALLS.removeprefix("seccomp=")).exists()
    assert "user" not in SERVICES["agent"], "it is the image's, who is not root"


def test_an_agent_with_gpus_has_a_proc_in_a_folder_that_only_root_may_enter() -> None:
    known = beside("compose.gpus.yaml")
    assert known["services"].keys() == {"agent"}
    assert known["services"]["agent"].keys() == {"gpus", "volumes"}
    (volume,) = known["services"]["agent"]["volumes"]
    folder = str(Path(volume["target"]).parent)
    assert known["volumes"][volume["source"]]["driver_opts"] == {"type": "proc", "device": "proc", "o": "hidepid=2"}
    made = "\n".join(DOCKERFILE[: DOCKERFILE.index("USER baton")])
    assert f"install --directory --mode 700 {folder}\n" in made, "it is root's"


def test_an_agent_that_is_root_has_the_rights_that_walls_need_and_no_other() -> None:
    """tests/walls/test_agent_calls.py takes each away."""
    known = beside("compose.full.yaml")
    assert known.keys() == {"services"}
    assert known["services"].keys() == {"agent"}
    agent = known["services"]["agent"]
    assert agent.keys() == {"user", "cap_add", "security_opt", "cgroup", "volumes"}
    assert set(agent["cap_add"]) == {
        *("SYS_ADMIN", "SYS_CHROOT", "SETUID", "SETGID", "SETPCAP", "CHOWN", "FOWNER", "DAC_OVERRIDE", "KILL"),
        *("NET_ADMIN", "SYS_PTRACE"),
    }
    assert agent["security_opt"] == ["no-new-privileges:true", CALLS, APPARMOR]
    assert agent["volumes"] == ["/sys/fs/cgroup:/sys/fs/cgroup"]


def test_an_agent_has_as_long_to_let_its_jobs_save_as_by_systemd() -> None:
    """Seen: 30 s, and then it was killed, and its jobs with it. And with 15 min: it waited for 5 s, and killed them itself."""
    unit = (ROOT / "deploy/systemd/baton-agent.service").read_text()
    (limit,), (drain,) = (re.findall(line, unit, re.M) for line in (r"^TimeoutStopSec=(\d+)min$", r"DRAIN_S=(\d+)$"))
    assert SERVICES["agent"]["stop_grace_period"] == f"{limit}m"
    assert environ("agent")["BATON_AGENT_DRAIN_S"] == drain
    classes = yaml.safe_load((ROOT / "deploy/classes.yaml").read_text())
    assert max(known["longest_grace_s"] for known in classes["classes"]) < int(drain) < 60 * int(limit)


def test_leases_are_renewed_while_the_jobs_of_an_agent_that_stops_save() -> None:
    """Compose stops who depends before whom he depends on. Seen: an agent's jobs were killed, since leases had gone first."""
    assert {"placement", "leases"} <= SERVICES["agent"]["depends_on"].keys()


def test_a_nodes_name_outlives_its_container() -> None:
    """Seen: after each `down`, and each new image, the node was another one. The one before stayed, as lost, and nobody could
    read any more what its jobs had written, though it lay in the same volume."""
    assert environ("agent")["BATON_AGENT_NODE"] == "${BATON_AGENT_NODE:-host}"


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_written_into_memory_is_written_into_a_folder_that_everybody_may_write(name: str) -> None:
    """Some releases of runc give a tmpfs the mode of the folder below it, which they have made for root alone: before 1.1.8 at
    the second start, whatever mode is asked for. Seen: Redis did not come back from a restart. Every image has a /tmp that
    is open to all."""
    unwritten = {"redis": ["/data"], "mongo": ["/data/configdb"]}
    others = [mount for mount in SERVICES[name].get("tmpfs", []) if mount != "/tmp"]
    assert [mount for mount in others if "uid=" not in mount] == unwritten.get(name, [])


IMAGES_VOLUMES = {"redis": {"/data"}, "mongo": {"/data/db", "/data/configdb"}, "prometheus": {"/prometheus"}}
"""What the images themselves declare (`VOLUME`)."""


@pytest.mark.parametrize("name", IMAGES_VOLUMES)
def test_no_volume_is_without_a_name(name: str) -> None:
    """Seen: a new one after each `down`, and `down` leaves them all."""
    mounts = [mount.split(":")[1] for mount in SERVICES[name].get("volumes", [])] + SERVICES[name]["tmpfs"]
    assert set(mounts) >= IMAGES_VOLUMES[name]


def test_the_image_runs_as_nobody_in_particular() -> None:
    users = [line.split()[1] for line in DOCKERFILE if line.startswith("USER ")]
    assert users == ["baton"], "and not root"
    assert any("useradd" in line and "--uid 10001" in line for line in DOCKERFILE)
    assert DOCKERFILE.index("USER baton") < DOCKERFILE.index('ENTRYPOINT ["baton"]')
    assert any(line.startswith("HEALTHCHECK") for line in DOCKERFILE)
    installs = [line for line in DOCKERFILE if re.search(r"pip install", line) and "/tmp/wheels" not in line]
    assert installs
    assert all("--require-hashes" in line for line in installs), "what is installed is pinned by hash"
    assert not any(re.search(r"^(ADD|COPY) .*(\.env|\.baton)", line) for line in DOCKERFILE)
    assert ".env" not in (ROOT / ".dockerignore").read_text(), "everything is left out but what is named"
    assert (ROOT / ".dockerignore").read_text().startswith("*\n")


def test_what_the_image_copies_reaches_its_build() -> None:
    copied = [line.split()[1:-1] for line in DOCKERFILE if line.startswith("COPY ")]
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied
    for name in (name for line in copied for name in line):
        assert (ROOT / name).exists(), name
        assert any(fnmatch(name, pattern) for pattern in let_in), f"{name}: .dockerignore keeps it out"


def test_the_broker_can_read_its_key_and_write_its_streams() -> None:
    """Its key is for its owner alone, and no container has the right to read what is another's."""
    (uid,) = re.findall(r"useradd .*--uid (\d+)", "\n".join(DOCKERFILE))
    assert SERVICES["nats"]["user"] == uid
    volume, folder = next(mount.split(":") for mount in SERVICES["keys"]["volumes"] if mount.startswith("nats:"))
    assert f"{volume}:{folder}" in SERVICES["nats"]["volumes"]
    assert any(f"--directory --owner baton --mode 700 {folder} " in line for line in DOCKERFILE), (
        "a new volume is its own"
    )


@pytest.mark.parametrize(
    "name", [name for name, service in SERVICES.items() if service.get("command", [""])[0] == "provision"]
)
def test_what_an_operator_does_is_written_into_a_volume(name: str) -> None:
    """The root may not be written, and a line in the operator's book comes before what it tells of."""
    service = SERVICES[name]
    kept = [mount.split(":")[1] for mount in service["volumes"] if isinstance(mount, str) and mount.startswith("book:")]
    assert [service["environment"]["XDG_STATE_HOME"]] == kept
    assert any(f"--directory --owner baton --mode 700 {kept[0]}" in line for line in DOCKERFILE), (
        "a new volume is baton's"
    )


def test_who_runs_jobs_reaches_no_store_and_no_metrics() -> None:
    assert networks("agent") == {"bus", "jobs"}
    for name in ("redis", "mongo", "prometheus", "grafana"):
        assert not networks(name) & networks("agent"), name
    for name in ("bus", "watch", "stores"):
        assert COMPOSE["networks"][name] == {"internal": True}
    assert networks("redis") == networks("mongo") == {"stores"}
    assert {name for name in OURS if "stores" in networks(name)} == {*REDIS_RIGHTS, *MONGO_SERVICES}


def test_who_has_all_keys() -> None:
    """Without `teams` nobody answers admins of teams, cuts off a node that floods, or keeps out a team that does."""
    assert {name for name in SERVICES if "keys:/keys" in SERVICES[name].get("volumes", [])} == {
        "keys",
        "admin",
        "teams",
    }
    assert SERVICES["teams"]["command"] == ["team", "serve"]
    assert networks("teams") == {"bus"}
    assert not SERVICES["teams"].get("ports")


def test_each_service_has_the_passwords_that_it_needs() -> None:
    own = {
        "placement": {"REDIS_PLACEMENT_PASSWORD"},
        "telemetry": {"REDIS_TELEMETRY_PASSWORD"},
        "history": {"MONGO_HISTORY_PASSWORD"},
        "quota_billing": {"MONGO_BILLS_PASSWORD"},
    }
    for name in OURS:
        found = environ(name)
        assert ("BATON_REDIS_URL" in found) == (name in REDIS_RIGHTS), name
        assert ("BATON_MONGO_URL" in found) == (name in MONGO_SERVICES), name
        assert set(re.findall(r"\w+_PASSWORD", json.dumps(found))) == own.get(name, set()), name
        if "BATON_HTTP_PORT" not in found:
            continue
        token = "BATON_AGENT_HTTP_TOKEN" if name == "agent" else "BATON_HTTP_TOKEN"
        assert found["BATON_HTTP_TOKEN"].startswith(f"${{{token}:?"), "jobs can read the agent's"
    words = re.sub(r"\$\{[^}]*\}", "", (ROOT / "compose.yaml").read_text())
    assert not re.search(r"://[^@\s\"]*:[^@/\s\"]+@", words.replace(":@", "@")), "a password is written out"


def test_passwords_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    script = tmp_path / "deploy/passwords.py"
    script.write_text((ROOT / "deploy/passwords.py").read_text())
    file = tmp_path / ".env"
    file.write_text("MONGO_ROOT_PASSWORD=mine")
    for _ in range(2):
        subprocess.run([sys.executable, str(script)], check=True, capture_output=True)
    known = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert known["MONGO_ROOT_PASSWORD"] == "mine"
    assert len({value for name, value in known.items()}) == len(known)
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for name, value in known.items() if name != "MONGO_ROOT_PASSWORD")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    asked = set(re.findall(r"(?<!\$)\$\{(\w+):\?", (ROOT / "compose.yaml").read_text()))
    assert asked == known.keys(), "compose asks for these, and for no other"
    (tmp_path / ".env").write_text("REDIS_PLACEMENT_PASSWORD='se,cret/'\nGRAFANA_PASSWORD=se/cret\n")
    with pytest.raises(SystemExit, match=r"REDIS_PLACEMENT_PASSWORD in .*\.env: use letters, digits") as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert "cret" not in str(ended.value)
    assert "deploy/passwords.py" in (ROOT / "justfile").read_text()
    assert ".env" in (ROOT / ".gitignore").read_text().split()


@dataclass(frozen=True)
class ComposesRedis:
    """Compose's own command on a real server: only the image's program and its folder are exchanged."""

    port: int
    folder: Path
    script: str

    def user(self, name: str, password: str) -> Any:
        return redis.Redis(port=self.port, username=name, password=password)

    def answers(self) -> bool:
        try:
            return bool(self.user("health", "none").ping())
        except RedisError:
            return False


@pytest.fixture
def composes_redis(tmp_path: Path) -> Iterator[ComposesRedis]:
    lease = lease_port()
    program = f"{binaries.valkey_server()} --port {lease.port} --bind 127.0.0.1 --dir {tmp_path}"
    (tmp_path / "redis-server").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    (tmp_path / "redis-server").chmod(0o700)
    (script,) = SERVICES["redis"]["command"]
    script = script.replace("$$", "$").replace("/tmp/", f"{tmp_path}/")
    server = subprocess.Popen(
        [*SERVICES["redis"]["entrypoint"], script],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "BATON_POOL": "main",
            "REDIS_PLACEMENT_PASSWORD": "p" * 48,
            "REDIS_TELEMETRY_PASSWORD": "t" * 48,
        },
        stdout=subprocess.DEVNULL,
    )
    try:
        yield ComposesRedis(lease.port, tmp_path, script)
    finally:
        server.kill()
        server.wait()
        lease.release()


async def test_composes_redis_has_the_users_that_services_need(composes_redis: ComposesRedis) -> None:
    await until(composes_redis.answers)
    user = composes_redis.user
    placement, telemetry, health = user("placement", "p" * 48), user("telemetry", "t" * 48), user("health", "none")
    placement.hset("baton:{main}:meta", "seq", "1")
    assert telemetry.hmget("baton:{main}:meta", ["seq"]) == [b"1"]
    for refused in (
        lambda: telemetry.hset("baton:{main}:meta", "seq", "2"),
        lambda: placement.hset("baton:{west}:meta", "seq", "2"),
        lambda: placement.flushall(),
        lambda: health.keys("*"),
    ):
        with pytest.raises(NoPermissionError):
            refused()
    for wrong in (redis.Redis(port=composes_redis.port), user("placement", "x"), user("default", "")):
        with pytest.raises(RedisError):
            wrong.get("baton:{main}:meta")
    lines = [line.split() for line in composes_redis.script.splitlines()]
    for name in REDIS_RIGHTS:
        (words,) = [words[4:] for words in lines if words[:2] == ["user", name]]
        assert set(words) == {*(rule.replace("main", "$BATON_POOL") for rule in rules(name, "main")), "-@all"}
    assert stat.S_IMODE((composes_redis.folder / "users.acl").stat().st_mode) == 0o600


def test_prometheus_shows_the_token_that_services_ask_for() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    (script,) = SERVICES["prometheus"]["command"]
    for job in config["scrape_configs"]:
        file = job["authorization"]["credentials_file"]
        assert f'printf %s "$$BATON_HTTP_TOKEN" > {file}' in script
        asked = {name for group in job["dns_sd_configs"] for name in group["names"]}
        assert asked == set(OURS) - {"provision", "streams", "agent", "keys", "admin", "teams"}


def test_an_alert_tells_of_each_service_that_prometheus_knows_no_address_of() -> None:
    """Seen: of placement alone. Compose gives a container that has ended no address, so `up` is not 0 but absent."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    (absent,) = (rule["expr"] for rule in alerts["groups"][0]["rules"] if rule["alert"] == "BatonServiceAbsent")
    asked = [n for job in config["scrape_configs"] for group in job["dns_sd_configs"] for n in group["names"]]
    assert absent.split(" or\n") == [f'absent(up{{job="baton", service="{name}"}})' for name in asked]


def test_the_brokers_monitor_is_for_its_own_container() -> None:
    assert "http: 127.0.0.1:8222" in (ROOT / "deploy/nats.conf").read_text()
    assert not [port for port in SERVICES["nats"]["ports"] if "8222" in port]


def test_the_broker_slows_nobody_for_who_does_not_read() -> None:
    assert "no_fast_producer_stall: true" in (ROOT / "deploy/nats.conf").read_text()


def test_a_broker_without_a_container_has_no_monitor(tmp_path: Path) -> None:
    """Whoever has a login there would read who is connected, and may hold all its files open by connections that never end."""
    (edit,) = [line for line in (ROOT / "docs/systemd.md").read_text().splitlines() if line.startswith("sed -i")]
    copy = tmp_path / "nats.conf"
    copy.write_text((ROOT / "deploy/nats.conf").read_text())
    subprocess.run(edit.replace("/etc/nats/nats.conf", str(copy)), shell=True, check=True)
    assert "http" not in copy.read_text()
    assert "port: 4222" in copy.read_text()
    assert "store_dir: /var/lib/nats" in copy.read_text()


def test_a_containers_health_is_asked_with_its_token() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = self.path == "/readyz" and self.headers["Authorization"] == "Bearer right"
            self.send_response(200 if good else 401)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Tests are quiet."""

    server = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        port = {"BATON_HTTP_PORT": str(server.server_port)}
        assert ready(port | {"BATON_HTTP_TOKEN": "right"})
        assert not ready(port | {"BATON_HTTP_TOKEN": "wrong"})
        assert not ready(port)
    finally:
        server.shutdown()
        server.server_close()
    assert not ready(port | {"BATON_HTTP_TOKEN": "right"}), "nobody is there"
    assert ready({}), "the image runs the command line"
