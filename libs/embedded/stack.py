"""The three servers on one state directory, from the lock that makes it ours to the URLs that clients use.

Ports and passwords are remembered in the directory, so that the URLs stay the same from one start to the next.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from libs.embedded import servers
from libs.embedded.events import ProcessEvent
from libs.embedded.ports import lease_port
from libs.embedded.records import kill_leftovers
from libs.embedded.servers import MONGO, MONITOR, NATS, VALKEY, NatsPorts, NatsUser, Server, ServerOptions
from libs.embedded.sockets import check_state_dir
from libs.embedded.spread import make_apart
from libs.embedded.supervisor import Supervisor
from libs.ports.private_files import open_lock, write_private

_MEMORY_FILE = "stack.json"


class StateDirLocked(RuntimeError):
    """Another stack runs on this state directory; the message names its pid."""


class Servers:
    """`async with Servers(state_dir) as servers:` runs nats-server, valkey-server and NX-27017 until the block ends."""

    def __init__(
        self,
        state_dir: Path | str,
        options: ServerOptions | None = None,
        *,
        on_event: Callable[[ProcessEvent], None] | None = None,
    ) -> None:
        self.state_dir = Path(state_dir).absolute()
        self.options = options or ServerOptions()
        self.supervisor = Supervisor(self.state_dir, on_event)
        self._servers: dict[str, Server] = {}
        self._ports: dict[str, int] = {}
        self._resources = AsyncExitStack()

    @property
    def nats_url(self) -> str:
        """The URL of the first NATS user, or of the only one; of a cluster all, separated by commas. RuntimeError if nats is
        not among those that run."""
        self._url(NATS)
        return ",".join(self._url(name) for name in self.options.nats.names)

    @property
    def nats_monitor_url(self) -> str:
        """nats-server's monitoring page, e.g. `/jsz`. RuntimeError if nats is not among those that run, KeyError where it has
        none: in operator mode."""
        return self.nats_monitor_url_of(NATS)

    def nats_monitor_url_of(self, name: str) -> str:
        """The same of one server of a cluster, `nats`, `nats-2`, ..."""
        self._url(name)
        return self._servers[name].more_urls[MONITOR]

    @property
    def redis_url(self) -> str:
        """Valkey's URL, of the user that may do everything. RuntimeError if valkey is not among those that run."""
        return self._url(VALKEY)

    def redis_url_of(self, user_name: str) -> str:
        """The URL of one of the Valkey users given in the options. Raises KeyError when there is no such user."""
        self._url(VALKEY)
        return self._servers[VALKEY].more_urls[user_name]

    @property
    def mongo_url(self) -> str:
        """NX-27017's URL. RuntimeError if mongo is not among those that run."""
        return self._url(MONGO)

    def nats_url_of(self, user_name: str) -> str:
        """The URL of one of the users given in the options; of a cluster all, separated by commas.

        Raises:
            KeyError: there is no such user.
        """
        users: dict[str, NatsUser] = {user.name: user for user in self.options.nats.users}
        if user_name not in users:
            raise KeyError(f"no NATS user {user_name!r}; there are: {', '.join(users) or 'none given'}")
        self._url(NATS)
        return ",".join(servers.nats_url(users[user_name], self._ports[name]) for name in self.options.nats.names)

    async def start(self) -> None:
        """Take the directory, start the servers in parallel, return when all are ready.

        Raises:
            UnfitStateDir: a server cannot use a path like this.
            StateDirLocked: another stack runs on this directory.
            PortInUse: a port given in the options is taken.
            MissingBinary: a server is not installed.
            StartFailed: a server did not become ready; the message shows the end of its log.
        """
        check_state_dir(self.state_dir)
        async with AsyncExitStack() as undo:
            undo.enter_context(_lock(self.state_dir))
            kill_leftovers(self.state_dir)
            memory = _read_memory(self.state_dir)
            self._ports = self._lease_ports(memory, undo)
            passwords = {
                name: memory.get("passwords", {}).get(name) or secrets.token_hex(16) for name in (NATS, VALKEY)
            }
            self._servers = self._describe(passwords)
            write_private(
                self.state_dir / _MEMORY_FILE,
                json.dumps({"ports": {**memory.get("ports", {}), **self._ports}, "passwords": passwords}),
            )
            for name, server in self._servers.items():
                make_apart(server.data_dir)
                if name in self.options.nats.names and self.options.nats.trust is not None:
                    _inherit(server.data_dir, self.options.nats.trust.heir, alone=self.options.nats.servers == 1)
                if server.config_path is not None:
                    write_private(server.config_path, server.config)
            undo.push_async_callback(self.supervisor.stop)
            await self.supervisor.start(*(server.spec for server in self._servers.values()))
            self._resources = undo.pop_all()

    async def stop(self) -> None:
        """Stop everything that the supervisor runs, in reverse order of need, and give the directory back."""
        await self._resources.aclose()
        self._servers = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _lease_ports(self, memory: dict[str, Any], undo: AsyncExitStack) -> dict[str, int]:
        options, remembered = self.options, memory.get("ports", {})
        requests: dict[str, int | None] = {}
        if NATS in options.run:
            names = options.nats.names
            requests |= {name: options.nats.port if name == NATS else None for name in names}
            if options.nats.has_monitor:
                requests |= {_monitor(name): options.nats.monitor_port if name == NATS else None for name in names}
            requests |= {_route(name): None for name in names if len(names) > 1}
        ports = {}
        for name, request in requests.items():
            lease = lease_port(request, preferred=remembered.get(name))
            undo.callback(lease.release)
            ports[name] = lease.port
        return ports

    def _describe(self, passwords: dict[str, str]) -> dict[str, Server]:
        options, here, ports = self.options, self.state_dir, self._ports
        chosen: dict[str, Server] = {}
        if NATS in options.run:
            names = options.nats.names
            own = {n: NatsPorts(ports[n], ports.get(_monitor(n), 0), ports.get(_route(n), 0)) for n in names}
            described = servers.describe_nats(options.nats, here, own, passwords[NATS])
            chosen |= dict(zip(names, described, strict=True))
        if VALKEY in options.run:
            chosen[VALKEY] = servers.describe_valkey(options.valkey, here, passwords[VALKEY])
        if MONGO in options.run:
            chosen[MONGO] = servers.describe_mongo(here)
        return chosen

    def _url(self, name: str) -> str:
        if name not in self._servers:
            raise RuntimeError(f"{name} does not run: start the servers first, with {name} among options.run")
        return self._servers[name].url


def _inherit(data_dir: Path, heir: str, *, alone: bool) -> None:
    """Streams lie in a folder that is called after their account; without accounts that is `$G`."""
    old, new = (data_dir / "jetstream" / account for account in ("$G", heir))
    if not heir or not old.is_dir() or new.exists():
        return
    if not alone:
        raise RuntimeError(
            f"{old} was written by a cluster without accounts, which cannot take its streams along: export the ledger with "
            "the version that wrote it (`baton ledger export`), and start in a new state directory"
        )
    old.rename(new)


def _monitor(name: str) -> str:
    return f"{name}_monitor"


def _route(name: str) -> str:
    return f"{name}_route"


def _lock(state_dir: Path) -> IO[str]:
    """Lock the directory until the returned file is closed. A dead owner's lock is released by the kernel."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(state_dir / "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise StateDirLocked(
            f"{state_dir} is in use by pid {owner}: stop it, or choose another state directory (--state-dir)"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _read_memory(state_dir: Path) -> dict[str, Any]:
    try:
        memory = json.loads((state_dir / _MEMORY_FILE).read_text())
    except FileNotFoundError:
        return {}
    return memory if isinstance(memory, dict) else {}
