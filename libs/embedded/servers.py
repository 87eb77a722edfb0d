"""What each server is run with: command line, configuration file, data directory, health probe. Starts nothing.

Secrets go into files that only their owner can read, never onto a command line, which every local user can see.
"""

import hmac
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from libs.embedded import binaries
from libs.embedded.ports import LOOPBACK
from libs.embedded.probes import health_by_request, health_page, healthy, mongo_pong, nats_stuck, valkey_pong
from libs.embedded.process import LOG_LIMIT_BYTES, ProcessSpec
from libs.embedded.sockets import private_socket

NATS, VALKEY, MONGO = "nats", "valkey", "mongo"
_MIB = 1024 * 1024
_URL_SAFE = re.compile(r"[A-Za-z0-9._~-]+")
DEFAULT_USER = "baton"


@dataclass(frozen=True)
class NatsUser:
    """A NATS user. `publish` and `subscribe` list the allowed subjects; None allows all, an empty list none. `responds`
    allows one answer, wherever it goes, to each request that the user may hear.

    Name and password must be fit for a URL as they are: nats-py does not decode `%40` and the like.
    """

    name: str
    password: str = field(repr=False)
    publish: Sequence[str] | None = None
    subscribe: Sequence[str] | None = None
    responds: bool = False

    def __post_init__(self) -> None:
        if not _URL_SAFE.fullmatch(self.name) or not _URL_SAFE.fullmatch(self.password):
            raise ValueError(
                f"name and password of NATS user {self.name!r} must consist of letters, digits, '-', '.', '_' and '~'"
            )


SYNC_INTERVAL = "1s"
"""How often servers of a cluster compare what they were told of accounts. One that was away begins with what it knew then, and
until it has compared it lets in who was revoked meanwhile."""


BATCHES = {"batch": {"max_inflight_per_stream": 16, "max_inflight_total": 64, "max_msgs": 256, "timeout": "2s"}}
"""Atomic batches that are open: their messages lie in files beside the stream, outside of its limit, and a node may begin some
in its pool's inbox. Of 50 with 1,000 messages each they would take 12 GiB, for ten seconds. One that is refused is sent as
single messages (`libs.bus.batches`)."""


@dataclass(frozen=True)
class Trust:
    """Operator mode: nobody has a password, and the server believes what the operator has signed.

    The operator's claim, the public key of the system account, and the claims of accounts by their public keys.
    """

    operator: str = field(repr=False)
    system: str
    accounts: Mapping[str, str] = field(repr=False)
    heir: str = ""
    """The account (its public key) that takes over what a single server without accounts has stored."""
    login: Callable[[str], str] = field(default=lambda nonce: "{}", repr=False, compare=False)
    """The first message to a server of who may ask for its health, of the nonce that it gave."""

    def config(self, folder: Path | str) -> dict[str, Any]:
        """As nats-server's configuration has it. `folder` is where it keeps what it is told later; of a claim there and one
        that is given here, the newer wins."""
        return {
            "operator": self.operator,
            "system_account": self.system,
            "resolver": {"type": "full", "dir": str(folder), "allow_delete": False, "interval": SYNC_INTERVAL},
            "resolver_preload": dict(self.accounts),
        }


@dataclass(frozen=True, kw_only=True)
class NatsOptions:
    """`sync_always` waits for the disk before each acknowledgement: what is acknowledged survives a power failure.

    The store limits bound what streams may *reserve* (the sum of their max_bytes), not what the disk must have now.
    """

    port: int | None = None
    monitor_port: int | None = None
    """Without `trust` alone."""
    servers: int = 1
    """Of one cluster; three or five bear the loss of one or two. `port` and `monitor_port` are the first one's."""
    advertise: bool = False
    """Servers of a cluster tell clients of each other; our URLs name them all anyway."""
    sync_always: bool = True
    users: Sequence[NatsUser] = ()  # none: one user "baton" with a random password
    trust: Trust | None = None
    """In place of users: credentials are signed claims, and URLs have no password."""
    max_payload_bytes: int = 4 * _MIB
    """A grant of a whole TPU pod is one record: 9,216 claims take 1.2 MiB, and 3 MiB with the longest names."""
    max_file_store_bytes: int = 64 * 1024 * _MIB
    max_memory_store_bytes: int = 1024 * _MIB

    def __post_init__(self) -> None:
        names = [user.name for user in self.users]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"NATS users named twice: {', '.join(sorted(repeated))}")
        if self.users and self.trust is not None:
            raise ValueError("users and trust exclude each other: a server in operator mode knows no passwords")
        if self.servers not in (1, 3, 5):
            raise ValueError(f"servers is {self.servers}: use 1, 3 or 5; an even number bears no more losses")

    @property
    def has_monitor(self) -> bool:
        """Whether there is a monitoring page. nats-server keeps connections to it for as long as who made them likes, and jobs
        could hold all files that it may have open; so where the system account may ask there is none."""
        return self.trust is None

    @property
    def names(self) -> tuple[str, ...]:
        """What its processes are called: `nats`, `nats-2`, `nats-3`."""
        return (NATS, *(f"{NATS}-{number}" for number in range(2, self.servers + 1)))


@dataclass(frozen=True)
class ValkeyUser:
    """A Valkey user beside the one that may do everything. `rules` are ACL rules: keys (`~`, `%R~`) and commands (`+`)."""

    name: str
    rules: Sequence[str]

    def __post_init__(self) -> None:
        if not _URL_SAFE.fullmatch(self.name) or self.name in (DEFAULT_USER, "default"):
            raise ValueError(f"{self.name!r} cannot be the name of a Valkey user here: choose another")
        if wrong := [rule for rule in self.rules if not rule or set(rule) & set(" \n\r\"'")]:
            raise ValueError(f"{wrong[0]!r} is no ACL rule of Valkey user {self.name!r}")


@dataclass(frozen=True, kw_only=True)
class ValkeyOptions:
    """How often Valkey's append-only file reaches the disk ("everysec" or "always"), and its users."""

    append_fsync: str = "everysec"
    users: Sequence[ValkeyUser] = ()

    def __post_init__(self) -> None:
        if self.append_fsync not in ("everysec", "always"):
            raise ValueError(f"append_fsync is {self.append_fsync!r}: use 'everysec' or 'always'")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which servers to run, and how. Ports are free ones unless given."""

    run: Sequence[str] = (NATS, VALKEY, MONGO)
    nats: NatsOptions = NatsOptions()
    valkey: ValkeyOptions = ValkeyOptions()

    def __post_init__(self) -> None:
        if unknown := set(self.run) - {NATS, VALKEY, MONGO}:
            raise ValueError(f"unknown servers in run: {', '.join(sorted(unknown))}; there are nats, valkey and mongo")


@dataclass(frozen=True)
class Server:
    """A server ready to be run: make `data_dir`, write `config` to `config_path` (mode 0600), start `spec`."""

    spec: ProcessSpec
    url: str = field(repr=False)
    data_dir: Path
    config_path: Path | None = None
    config: str = field(default="", repr=False)
    more_urls: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of a Valkey user by its name; of a NATS server's monitoring page, by `MONITOR`."""


_NATS_MEMORY = "256MiB"
"""From so much on it collects its garbage sooner, which otherwise doubles what it holds. No bound: it takes what it needs."""
MONITOR = "monitor"


@dataclass(frozen=True)
class NatsPorts:
    """Of one server: for clients, for its monitoring page (0: it has none), and for the other servers of its cluster."""

    client: int
    monitor: int
    route: int = 0


def describe_nats(options: NatsOptions, state_dir: Path, ports: Mapping[str, NatsPorts], password: str) -> list[Server]:
    """The nats-servers of `options.names`, with JetStream on disk. `password` is used when `options` names no users, and
    between the servers of a cluster.

    Raises:
        MissingBinary: nats-server is not installed.
    """
    return [_one_nats(name, options, state_dir, ports, password) for name in options.names]


def _one_nats(
    name: str, options: NatsOptions, state_dir: Path, all_ports: Mapping[str, NatsPorts], password: str
) -> Server:
    users, ports = list(options.users) or [NatsUser(DEFAULT_USER, password)], all_ports[name]
    monitor = f"/{derived(password, MONITOR)}"  # it knows no users: who does not know the path finds nothing
    data_dir, config_path = state_dir / name, state_dir / "config" / f"{name}.json"
    log_path = state_dir / "logs" / f"{name}.log"
    config = {
        "server_name": "baton-embedded" if options.servers == 1 else name,
        "listen": f"{LOOPBACK}:{ports.client}",
        **({"http": f"{LOOPBACK}:{ports.monitor}", "http_base_path": monitor} if options.has_monitor else {}),
        "max_payload": options.max_payload_bytes,
        # It writes a line for each word that it refuses: 80 MB a second. Whoever supervises it looks every ten seconds.
        "log_file": str(log_path),
        "logfile_size_limit": LOG_LIMIT_BYTES,
        "logfile_max_num": 2,
        "no_fast_producer_stall": True,  # or who does not read slows whoever answers it, and so all others (decision 0165)
        "jetstream": {
            "store_dir": str(data_dir),
            "max_file_store": options.max_file_store_bytes,
            "max_memory_store": options.max_memory_store_bytes,
            **({"sync_interval": "always"} if options.sync_always else {}),
            "limits": BATCHES,
        },
        **(
            {"authorization": {"users": [user_entry(user) for user in users]}}
            if options.trust is None
            else options.trust.config(state_dir / f"{name}-accounts")
        ),
    }
    asks: dict[str, bool] = {}
    patience_s = 30.0  # ok only once JetStream has recovered its streams
    if options.servers > 1:
        config["cluster"] = {
            **_routes(ports.route, [other.route for other in all_ports.values()], password),
            "no_advertise": not options.advertise,
        }
        # Whether every stream has its majority is the others' affair, too: a server is not started anew for that.
        asks, patience_s = {"js-server-only": True}, 300.0
    if options.trust is None:
        page = "&".join(f"{name}={str(value).lower()}" for name, value in asks.items())
        health = health_page(ports.monitor, f"{monitor}/healthz?{page}")
    else:
        health = health_by_request(ports.client, options.trust.login, asks)
    return Server(
        spec=ProcessSpec(
            name=name,
            argv=[str(binaries.nats_server()), "-c", str(config_path)],
            env={"GOMEMLIMIT": os.environ.get("GOMEMLIMIT", _NATS_MEMORY)},
            log_path=log_path,
            ready=healthy(health),
            ready_timeout_s=patience_s,
            ill=nats_stuck(health, data_dir) if options.servers == 1 else None,
            port=ports.client,
        ),
        url=nats_url(users[0] if options.trust is None else None, ports.client),
        data_dir=data_dir,
        config_path=config_path,
        # nats-server's own format takes JSON, which saves us its quoting rules, but no character by its number (\u00e9)
        config=json.dumps(config, indent=1, ensure_ascii=False),
        more_urls={MONITOR: f"http://{LOOPBACK}:{ports.monitor}{monitor}"} if options.has_monitor else {},
    )


def _routes(own: int, everyone: Sequence[int], password: str) -> dict[str, Any]:
    """How a server of a cluster finds the others."""
    return {
        "name": "baton",
        "listen": f"{LOOPBACK}:{own}",
        "authorization": {"user": "route", "password": password, "timeout": 5},
        "routes": [f"nats-route://route:{password}@{LOOPBACK}:{port}" for port in everyone if port != own],
    }


def describe_valkey(options: ValkeyOptions, state_dir: Path, password: str) -> Server:
    """valkey-server with an append-only file. Whoever names no user may do nothing; `DEFAULT_USER` may do everything, with
    `password`, and each of the options' users what its rules say, with a password that is derived from it.

    It listens on a Unix socket alone, in a folder that only our user may enter: whoever can connect takes up one of a few
    thousand connections for as long as he likes, before he has said who he is.

    Raises:
        MissingBinary: valkey-server is not installed.
        SocketTaken: the folder for its socket cannot be ours alone.
    """
    data_dir, config_path = state_dir / VALKEY, state_dir / "config" / "valkey.conf"
    socket = private_socket(state_dir, VALKEY)
    passwords = {DEFAULT_USER: password, **{user.name: derived(password, user.name) for user in options.users}}
    urls = {name: f"unix://{name}:{known}@{quote(str(socket))}?db=0" for name, known in passwords.items()}
    config = "\n".join(
        [
            "port 0",
            f"unixsocket {_quoted(socket)}",
            "unixsocketperm 600",
            "user default off -@all",
            f"user {DEFAULT_USER} on #{_digest(password)} ~* &* +@all",
            *(f"user {user.name} on #{_digest(passwords[user.name])} {' '.join(user.rules)}" for user in options.users),
            f"dir {_quoted(data_dir)}",
            'save ""',
            "appendonly yes",
            f"appendfsync {options.append_fsync}",
            "hz 2",  # not ten times a second: nothing expires here
            "daemonize no",
            "",
        ]
    )
    return Server(
        spec=ProcessSpec(
            name=VALKEY,
            argv=[str(binaries.valkey_server()), str(config_path)],
            log_path=state_dir / "logs" / "valkey.log",
            ready=valkey_pong(socket, DEFAULT_USER, password),
        ),
        url=urls[DEFAULT_USER],
        data_dir=data_dir,
        config_path=config_path,
        config=config,
        more_urls=urls,
    )


def _quoted(path: Path) -> str:
    """As valkey-server reads it: it takes a character by its number (\\u00e9) for letters."""
    return json.dumps(str(path), ensure_ascii=False)


def derived(password: str, name: str) -> str:
    """A password of `name` that follows from `password` and does not betray it."""
    return hmac.new(password.encode(), name.encode(), sha256).hexdigest()[:32]


def _digest(password: str) -> str:
    """As ACL rules name a password."""
    return sha256(password.encode()).hexdigest()


def describe_mongo(state_dir: Path) -> Server:
    """NX-27017: the MongoDB wire protocol over SQLite, one file per database. It knows no users, so it listens on a Unix
    socket alone, in a folder that only our user may enter.

    Raises:
        MissingBinary: nx-27017 is not installed.
        SocketTaken: the folder for its socket cannot be ours alone.
    """
    data_dir = state_dir / MONGO
    socket = private_socket(state_dir, MONGO)
    arguments = ["--data-dir", str(data_dir), "--socket", str(socket)]
    # Both have defaults in /tmp that clash. The log file would only repeat what goes to stderr, which is our log.
    files = ["--pid-file", str(state_dir / "mongo.pid"), "--log-file", "/dev/null"]
    return Server(
        spec=ProcessSpec(
            name=MONGO,
            argv=[*binaries.nx_27017(), *arguments, *files],
            log_path=state_dir / "logs" / "mongo.log",
            ready=mongo_pong(socket),
        ),
        url=f"mongodb://{quote(str(socket), safe='')}",
        data_dir=data_dir,
    )


def nats_url(user: NatsUser | None, port: int) -> str:
    """The URL with which a user connects; None: whoever has a credential."""
    return f"nats://{user.name}:{user.password}@{LOOPBACK}:{port}" if user else f"nats://{LOOPBACK}:{port}"


def user_entry(user: NatsUser) -> dict[str, Any]:
    """A user as nats-server's configuration has it."""
    entry: dict[str, Any] = {"user": user.name, "password": user.password}
    permissions: dict[str, Any] = {
        verb: {"allow": list(subjects)} if subjects else {"deny": [">"]}  # an empty allow list would allow everything
        for verb, subjects in (("publish", user.publish), ("subscribe", user.subscribe))
        if subjects is not None
    }
    if user.responds:
        permissions["allow_responses"] = True
    return {**entry, "permissions": permissions} if permissions else entry
