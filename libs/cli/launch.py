"""Baton on this machine: embedded servers (or given ones), every service as a process, one supervisor over them all.

    async with Launch(LaunchOptions(state_dir=..., fleet=...)) as cluster:
        cluster.operator_url, cluster.team_url("research"), cluster.supervisor

`baton up`, the demo, replays, benchmarks and fault tests all start Baton this way.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from libs.embedded import NatsOptions, NatsUser, ProcessSpec, ServerOptions, Servers, Supervisor
from libs.embedded.ports import PortLease, lease_port
from libs.embedded.probes import http_ok
from schemas.subjects import OPERATOR, team_may

SERVICES = ("admission", "placement", "preemption", "quota_billing", "telemetry", "history")
CLIENT_FILE = "client.json"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What to start.

    Args:
        state_dir: everything that this instance keeps; made if it is missing.
        teams: each gets a credential that may do what `schemas.subjects.team_may` says.
        fleet: YAML file of simulated nodes, hosted by one agent process; None for none.
        real_node: what this machine offers itself: "auto" (GPUs where there are any, and the CPU), "cpu", "nvml", or
            "none".
        external: use the servers of BATON_NATS_URL, BATON_REDIS_URL and BATON_MONGO_URL instead of embedded ones.
        services: which services to start; agents come on top, as `fleet` and `real_node` say.
        env: more environment for every service.
        sync_always: NATS syncs each write to disk before it acknowledges (embedded servers only).
    """

    state_dir: Path
    teams: tuple[str, ...] = ("default",)
    pool: str = "main"
    fleet: Path | None = None
    real_node: str = "auto"
    external: bool = False
    services: tuple[str, ...] = SERVICES
    env: Mapping[str, str] = field(default_factory=dict)
    sync_always: bool = True
    replicas: int = 1


class Launch:
    """A running Baton. Leaving the block stops everything in reverse order.

    Raises what `libs.embedded` raises: StateDirLocked, PortInUse, MissingBinary, StartFailed; and ValueError, naming
    the variable, when `external` lacks a URL.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self.options = options
        self.state_dir = options.state_dir.resolve()
        self.ports: dict[str, int] = {}
        self._leases: list[PortLease] = []
        self._servers: Servers | None = None
        self._own_supervisor: Supervisor | None = None
        self.nats_url = self.redis_url = self.mongo_url = ""

    async def __aenter__(self) -> "Launch":
        self.state_dir.mkdir(parents=True, exist_ok=True)
        try:
            await (self._use_external() if self.options.external else self._start_embedded())
            await self._provision()
            await self.supervisor.start(*self._specs())
            self._write_client_file()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def supervisor(self) -> Supervisor:
        if self._servers is not None:
            return self._servers.supervisor
        assert self._own_supervisor is not None
        return self._own_supervisor

    @property
    def operator_url(self) -> str:
        """NATS with the operator's credential."""
        return self._url_of(OPERATOR)

    def team_url(self, team: str) -> str:
        """NATS with a team's credential. Raises KeyError for a team that is not in the options."""
        if team not in self.options.teams:
            raise KeyError(team)
        return self._url_of(team)

    def http_url(self, name: str) -> str:
        """Where a process serves /readyz and /metrics."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def _url_of(self, user: str) -> str:
        return self.nats_url if self._servers is None else self._servers.nats_url_of(user)

    async def _start_embedded(self) -> None:
        users = [NatsUser("services", _secret(self.state_dir, "services")), *self._clients()]
        nats = NatsOptions(users=users, sync_always=self.options.sync_always)
        self._servers = Servers(self.state_dir, ServerOptions(nats=nats))
        await self._servers.start()
        self.nats_url = self._servers.nats_url_of("services")
        self.redis_url, self.mongo_url = self._servers.redis_url, self._servers.mongo_url

    def _clients(self) -> list[NatsUser]:
        users = [NatsUser(OPERATOR, _secret(self.state_dir, OPERATOR))]
        for team in self.options.teams:
            publish, subscribe = team_may(team)
            users.append(NatsUser(team, _secret(self.state_dir, team), publish, subscribe))
        return users

    async def _use_external(self) -> None:
        urls = {}
        for name in ("BATON_NATS_URL", "BATON_REDIS_URL", "BATON_MONGO_URL"):
            urls[name] = os.environ.get(name, "")
            if not urls[name]:
                raise ValueError(f"{name} is not set: give the URL of a running server, or leave out --external")
        self.nats_url, self.redis_url, self.mongo_url = urls.values()
        self._own_supervisor = Supervisor(self.state_dir)
        await self._own_supervisor.__aenter__()

    async def _provision(self) -> None:
        from libs.bus.connect import connect
        from libs.bus.streams import provision

        nats = await connect(self.nats_url, name="baton-up")
        try:
            scale = 1.0 if self.options.external else 0.5
            await provision(nats.jetstream(), [self.options.pool], replicas=self.options.replicas, scale=scale)
        finally:
            await nats.close()

    def _specs(self) -> list[ProcessSpec]:
        specs = [self._spec(name, f"services.{name}", {}) for name in self.options.services]
        if self.options.fleet is not None:
            fleet = {"BATON_AGENT_FLEET": str(self.options.fleet.resolve()), "BATON_AGENT_DEVICES": "none"}
            specs.append(self._spec("agent-fleet", "services.agent", fleet))
        if self.options.real_node != "none":
            specs.append(self._spec("agent", "services.agent", {"BATON_AGENT_DEVICES": self.options.real_node}))
        return specs

    def _spec(self, name: str, module: str, more: Mapping[str, str]) -> ProcessSpec:
        lease = lease_port()
        self._leases.append(lease)
        self.ports[name] = lease.port
        state = self.state_dir / "services" / name
        state.mkdir(parents=True, exist_ok=True)
        environment = {
            "BATON_NATS_URL": self.nats_url,
            "BATON_REDIS_URL": self.redis_url,
            "BATON_MONGO_URL": self.mongo_url,
            "BATON_POOL": self.options.pool,
            "BATON_STATE_DIR": str(state),
            "BATON_HTTP_PORT": str(lease.port),
            "BATON_LOG_LEVEL": "WARNING",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return ProcessSpec(
            name=name,
            argv=[sys.executable, "-m", module],
            env=environment | dict(self.options.env) | dict(more),
            cwd=ROOT,
            log_path=self.state_dir / "logs" / f"{name}.log",
            ready=http_ok(lease.port, "/readyz"),
            ready_timeout_s=60.0,
            port=lease.port,
        )

    def _write_client_file(self) -> None:
        """Where clients on this machine find their connection: one URL per team and the operator's; mode 0600."""
        urls = {OPERATOR: self.operator_url} | {team: self.team_url(team) for team in self.options.teams}
        body = {"pool": self.options.pool, "default_team": self.options.teams[0], "urls": urls}
        path = self.state_dir / CLIENT_FILE
        temporary = path.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(body, indent=2))
        temporary.replace(path)

    async def _stop(self) -> None:
        (self.state_dir / CLIENT_FILE).unlink(missing_ok=True)
        if self._servers is not None:
            await self._servers.stop()
        elif self._own_supervisor is not None:
            await self._own_supervisor.stop()
        for lease in self._leases:
            lease.release()


def _secret(state_dir: Path, user: str) -> str:
    """A user's password, made once per state directory and kept in a file of mode 0600."""
    import secrets

    path = state_dir / "secrets" / quote(user, safe="")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(24).replace("-", "a").replace("_", "b"))
    return path.read_text()
