"""A whole Baton on this machine: `async with Launch(LaunchOptions(...)) as cluster:`.

Starts servers, then streams, then every service as its own process under the same supervisor, then writes
`client.json`, which gives clients the address. Demo, replay, benchmarks and fault tests use it, so they run what users
run. The supervisor restarts a service that dies; readiness comes from the service's own /readyz.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from libs.bus.cancel import cancel
from libs.bus.connect import Address, connect, refuse_shared
from libs.bus.request_size_limit import RequestSizeLimit
from libs.bus.retry import retry_while_away
from libs.bus.streams import provision
from libs.bus.table import reserved_bytes
from libs.cli import forking
from libs.cli.backup_use import UseAway, take_in_use
from libs.cli.broker_keys import staying
from libs.cli.exits import UsageFault
from libs.cli.health import Checks, NotReady, readiness
from libs.cli.launch_options import SERVICES, LaunchOptions
from libs.cli.stores import MONGO_SERVICES, REDIS_RIGHTS, redis_user, redis_users
from libs.client.where import CLIENT_FILE
from libs.embedded import (
    NatsOptions,
    ProcessEvent,
    ProcessRecord,
    ProcessSpec,
    ServerOptions,
    Servers,
    Supervisor,
    ValkeyOptions,
)
from libs.embedded.ports import LOOPBACK, PortLease, lease_port
from libs.embedded.probes import http_ok
from libs.embedded.servers import MONGO, NATS, VALKEY
from libs.embedded.spread import make_apart
from libs.ports.folders import unwritable
from libs.ports.private_files import write_private
from libs.walls import broker_claims
from libs.walls.accounts import SERVICES as ADMIN
from libs.walls.keyring import Keyring
from libs.walls.resolver import tell
from schemas.subjects import OPERATOR

log = logging.getLogger("baton.launch")

FOR_ALL_POOLS = "admission"
"""The one service that serves every pool; each pool has its own of the others."""
SIMULATED, REAL = "agent-sim", "agent"
ROOT = forking.ROOT

VAULT_FOLDER = "vault"
"""The folder of the master key of secrets, in the state directory."""
RESTORED = "restored.json"
"""A file in a restored state directory with the earliest time to start anything."""

_MOST_LIMITS = 10
"""A start that makes progress may take up to this many times the limit."""


class LocalStack:
    """Starts everything in `async with`, ready on entry; stops it in reverse order at the end."""

    def __init__(
        self, options: LaunchOptions | None = None, on_event: Callable[[ProcessEvent], None] | None = None
    ) -> None:
        self.options = options or LaunchOptions()
        self._on_event = on_event
        self.state_dir = self.options.state_dir.absolute()
        self.keyring = Keyring(self.state_dir)
        self.http: dict[str, str] = {}
        self.http_tokens: dict[str, str] = {}
        """Process -> the token that its state and metrics require."""
        self._servers: Servers | None = None
        self._resources = contextlib.AsyncExitStack()

    # --------------------------------------------------------------------------------------------------- what it offers

    @property
    def supervisor(self) -> Supervisor:
        """Starts, stops and restarts processes by name; `processes.json` in the state directory lists them."""
        return self._running().supervisor

    @property
    def servers(self) -> Servers:
        """The embedded servers; none runs when they are external."""
        return self._running()

    @property
    def nats_url(self) -> str:
        """The broker's URL without a credential; for a cluster all, separated by commas. See `address`."""
        return self.options.external.nats_url if self.options.external else self._running().nats_url

    def address(self, who: str = ADMIN) -> Address:
        """The broker with the credential of `who`: a team or a user `<team>.<user>` of the options, `operator` (every
        team's commands and questions, streams, dead letters; not the ledger), a service, or by default one that may do
        everything.

        Raises KeyError when it is none of these.
        """
        known = (*self.options.teams, *self.options.users, *SERVICES, OPERATOR, ADMIN)
        if who not in known:
            raise KeyError(f"no credential of {who!r}; there are: {', '.join(known)}")
        return self._with(lambda ring: self._credential(ring, who))

    def nodes_address(self, pool: str) -> Address:
        """The same for agents: every node of the pool, and nothing else."""
        return self._with(lambda ring: ring.nodes(pool))

    def _with(self, credential: Callable[[Keyring], Path]) -> Address:
        walled = self.options.external is None or self.keyring.exists
        creds = credential(self.keyring) if walled else None
        return Address(self.nats_url, creds, anonymous=self.options.insecure, plain=self.options.insecure)

    @staticmethod
    def _credential(ring: Keyring, who: str) -> Path:
        if who == OPERATOR:
            return ring.operator()
        return ring.service(who) if who in (*SERVICES, ADMIN) else ring.team(who)

    @property
    def redis_url(self) -> str:
        return self.options.external.redis_url if self.options.external else self._running().redis_url

    @property
    def mongo_url(self) -> str:
        return self.options.external.mongo_url if self.options.external else self._running().mongo_url

    def processes(self) -> dict[str, ProcessRecord]:
        """Every process that runs here, servers among them, by name."""
        return self.supervisor.processes()

    async def readiness(self) -> dict[str, Checks]:
        """Each service's readiness: check -> "ok" or the problem."""
        names = list(self.http)
        answers = await asyncio.gather(*(readiness(self.http[name], self.http_tokens[name]) for name in names))
        return dict(zip(names, answers, strict=True))

    async def wait_ready(self, *names: str, timeout_s: float | None = None) -> None:
        """Waits until the named processes (default: all services and agents) are ready.

        Raises NotReady, naming each failed check, when nothing has changed for `timeout_s` (default: the options'), or
        after ten times as much in all; a service that reads a long ledger reports changes. While one waits for archived
        records, which an operator can restore meanwhile, there is no limit.
        """
        limit_s = self.options.ready_timeout_s if timeout_s is None else timeout_s
        loop, began_s = asyncio.get_running_loop(), time.time()
        deadline, announced, said = loop.time() + limit_s, False, dict[str, str]()
        latest = loop.time() + _MOST_LIMITS * limit_s
        wanted = names or tuple(self.http)
        while True:
            answers = await asyncio.gather(*(readiness(self.http[name], self.http_tokens[name]) for name in wanted))
            waiting = {name: checks for name, checks in zip(wanted, answers, strict=True) if not checks.ready}
            if not waiting:
                return
            if archived := [f"{name} ({checks.problems})" for name, checks in waiting.items() if checks.archived]:
                if not announced:
                    log.warning("waiting until archived records are restored: %s", "; ".join(archived))
                deadline, announced = loop.time() + limit_s, True
            elif said != (now_said := {name: checks.problems for name, checks in waiting.items()}):
                deadline, said = min(loop.time() + limit_s, latest), now_said
            if loop.time() > deadline:
                raise NotReady(waiting, limit_s, self.state_dir / "logs", began_s)
            await asyncio.sleep(0.1)

    def walls(self) -> list[str]:
        """The tier of the isolation of jobs on this machine's node, and what that lacks, from its agent; empty without one."""
        try:
            return (self.state_dir / "services" / REAL / "agent" / "walls").read_text().splitlines()
        except OSError:
            return []

    def fenced_s(self) -> float:
        """How long work of the instance from which this one was restored may still run on unreachable nodes, s. Nothing
        is started before (`libs.cli.fencing`). Raises UsageFault when restoring did not come to its end."""
        try:
            restored = json.loads((self.state_dir / RESTORED).read_text())
        except FileNotFoundError:
            return 0.0
        if restored["not_before_s"] is None:
            raise UsageFault(
                f"{self.state_dir} was restored half-way, or is being restored now: when no `baton restore` runs any more, "
                "remove that folder and restore again"
            )
        return max(0.0, float(restored["not_before_s"]) - time.time())

    # ------------------------------------------------------------------------------------------------- starting, stopping

    async def start(self) -> None:
        """Starts everything; returns when every service is ready.

        Raises what `Servers.start` raises, StartFailed (a process ended before it answered), NotReady.
        """
        options = self.options
        if why := unwritable(self.state_dir):
            raise UsageFault(
                f"the state folder {self.state_dir} cannot be used, {why}, or name another with --state-dir"
            )
        if wait_s := self.fenced_s():
            log.warning("restored: leases of the instance before may last for another %.0f s", wait_s)
            await asyncio.sleep(wait_s)
        self._make_credentials()
        self._servers = Servers(self.state_dir, self._server_options(), on_event=self._on_event)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._servers.supervisor.stop)
            shared = self._shared()
            early = forking.take(shared)
            if shared:
                await self._servers.supervisor.prepare(shared, forking.interpreter(), early)
            await self._servers.start()
            undo.push_async_callback(self._servers.stop)
            if options.external and self.keyring.exists:
                await tell(self.nats_url, self.keyring, self.keyring.accounts)
            undo.push_async_callback(await self._provision())
            await self._take_in_use()
            specs = self._specs(undo)
            self._write_client_file()
            undo.callback((self.state_dir / CLIENT_FILE).unlink, missing_ok=True)
            await self.supervisor.start(*specs)
            await self.wait_ready(timeout_s=options.ready_timeout_s)
            self._resources = undo.pop_all()

    async def stop(self) -> None:
        """Stops agents and services, then the servers. Safe to repeat."""
        await self._resources.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------------------------- internals

    async def _take_in_use(self) -> None:
        """Loads restored hours of use. Nothing waits for it; the next start tries again."""
        try:
            if taken := await take_in_use(self.mongo_url, self.state_dir):
                log.info("restored: %d hours of use are in MongoDB again", taken)
        except UseAway as error:
            log.warning("restored hours of use are not in MongoDB yet, start again for them: %s", error)

    def _running(self) -> Servers:
        if self._servers is None:
            raise RuntimeError("not started: use `async with Launch(...)`")
        return self._servers

    def _server_options(self) -> ServerOptions:
        if self.options.external:
            return ServerOptions(run=())  # it still locks the state directory, so that two instances never share one
        nats = NatsOptions(
            port=self.options.nats_port,
            servers=self.options.brokers,
            trust=broker_claims.trust(self.keyring),
            sync_always=self.options.sync_always,
        )
        needed = 2 * reserved_bytes(
            self.options.pools, scale=self.options.scale
        )  # twice, because limits grow and never shrink
        nats = replace(nats, max_file_store_bytes=max(nats.max_file_store_bytes, needed))
        valkey = ValkeyOptions(users=redis_users(self.options.pools))
        return ServerOptions(run=(NATS, VALKEY, MONGO), nats=nats, valkey=valkey)

    def _make_credentials(self) -> None:
        """Makes the options' credentials, except for teams that have left. Teams added at run time keep theirs."""
        if self.options.external and not self.keyring.exists:
            return
        for who in staying(self.keyring, (*self.options.teams, *self.options.users, OPERATOR)):
            self._credential(self.keyring, who)
        for pool in self.options.pools:
            self.keyring.nodes(pool)

    async def _provision(self) -> Callable[[], Awaitable[None]]:
        """Makes the streams, and reserves room in the stream of requests until the returned function is called."""
        client = await connect(self.address(OPERATOR), name="provision", inbox_prefix=f"_INBOX_{OPERATOR}")
        if not self.options.insecure:
            refuse_shared(self.address(OPERATOR))
        js, options = client.jetstream(), self.options

        async def make() -> None:
            await provision(js, options.pools, replicas=options.brokers, scale=options.scale)

        try:
            async with asyncio.timeout(options.ready_timeout_s):
                await retry_while_away(make, lambda error, _: log.info("streams are not made yet: %r", error))
        except BaseException:
            await client.close()
            raise
        narrowing = asyncio.create_task(RequestSizeLimit(js).run())

        async def end() -> None:
            await cancel(narrowing)
            await client.close()

        return end

    def _specs(self, undo: contextlib.AsyncExitStack) -> list[ProcessSpec]:
        options = self.options
        specs = []
        for service in options.services:
            specs += self._replicas(service, service, undo)
        if options.fleet is not None:
            specs.append(self._spec(SIMULATED, "agent", _simulated(options.fleet), undo))
        if options.real_node != "none":
            specs.append(self._spec(REAL, "agent", {"BATON_AGENT_DEVICES": options.real_node}, undo))
        for pool, fleet in options.more_pools.items():
            for service in options.services:
                if service != FOR_ALL_POOLS:
                    specs += self._replicas(f"{service}.{pool}", service, undo, pool)
            specs.append(self._spec(f"{SIMULATED}.{pool}", "agent", _simulated(fleet), undo, pool))
        return specs

    def _shared(self) -> list[str]:
        options = self.options
        agents = ("agent",) if options.fleet is not None or options.real_node != "none" else ()
        return forking.shared((*options.services, *agents))

    def _replicas(self, name: str, service: str, undo: contextlib.AsyncExitStack, pool: str = "") -> list[ProcessSpec]:
        """The first has the service's name, the others a number."""
        options = self.options
        alone = service == FOR_ALL_POOLS and len(options.pools) > 1  # two could send a job to two pools
        count = options.copies.get(service, 1 if alone else options.replicas)
        return [self._spec(name if n == 1 else f"{name}-{n}", service, {}, undo, pool) for n in range(1, count + 1)]

    def _spec(
        self, name: str, service: str, env: Mapping[str, str], undo: contextlib.AsyncExitStack, pool: str = ""
    ) -> ProcessSpec:
        options = self.options
        pool = pool or options.pool
        address = self.nodes_address(pool) if service == "agent" else self.address(service)
        lease: PortLease = lease_port()
        undo.callback(lease.release)
        self.http[name] = f"http://{LOOPBACK}:{lease.port}"
        self.http_tokens[name] = secrets.token_hex(16)
        home = self.state_dir / "services" / name
        make_apart(home)
        own = {
            "BATON_PRICES_FILE": options.prices,
            "BATON_TEAMS_FILE": options.quotas,
            "BATON_VAULT_KEYS": self.state_dir / VAULT_FOLDER / "keys.json" if service == "vault" else None,
        }
        return ProcessSpec(
            name=name,
            argv=[sys.executable, "-m", f"services.{service}"],
            module=f"services.{service}",
            log_path=self.state_dir / "logs" / f"{name}.log",
            env={
                **forking.interpreter(),
                **address.environ(),
                "BATON_INSECURE": str(int(options.insecure)),
                **self._stores(service, pool),
                "BATON_HTTP_TOKEN": self.http_tokens[name],
                "BATON_POOL": pool,
                "BATON_POOLS": ",".join(options.pools),
                "BATON_STATE_DIR": str(home),
                "BATON_HTTP_HOST": LOOPBACK,
                "BATON_HTTP_PORT": str(lease.port),
                "BATON_LOG_LEVEL": options.log_level,
                **({"BATON_AGENT_ON_STOP": "keep"} if options.keep_jobs and service == "agent" else {}),
                **{name: str(path.absolute()) for name, path in own.items() if path is not None},
                **env,
                **options.env.get("*", {}),
                **(options.env.get(service, {}) if service in SERVICES else {}),
                **options.env.get(name, {}),
            },
            # Alive, not ready: a service whose database is unreachable must not be killed and restarted.
            ready=http_ok(lease.port, "/livez"),
            ready_timeout_s=options.ready_timeout_s,
            stop_timeout_s=20.0,
            depends_on=() if options.external else (*self._running().options.nats.names, VALKEY, MONGO),
            port=lease.port,
        )

    def _stores(self, service: str, pool: str) -> dict[str, str]:
        """The URLs of the stores that the service uses, with its own user on embedded servers. An agent, which runs
        jobs, gets none."""
        external, found = self.options.external, {}
        if service in REDIS_RIGHTS:
            own = external.redis_url if external else self._running().redis_url_of(redis_user(service, pool))
            found["BATON_REDIS_URL"] = own
        if service in MONGO_SERVICES:
            found["BATON_MONGO_URL"] = self.mongo_url
        return found

    def _write_client_file(self) -> None:
        document = {
            "version": 2,
            "pid": os.getpid(),
            "pool": self.options.pool,
            "pools": self.options.pools,
            "url": self.nats_url,
            "creds": str(self.keyring.creds),
            "mongo_url": self.mongo_url,
            "http": self.http,
            "http_tokens": self.http_tokens,
        }
        write_private(self.state_dir / CLIENT_FILE, json.dumps(document, indent=1) + "\n")


def _simulated(fleet: Path) -> dict[str, str]:
    return {"BATON_AGENT_FLEET": str(fleet.absolute()), "BATON_AGENT_DEVICES": "none"}
