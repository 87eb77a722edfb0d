"""What to start on this machine: pools, nodes, teams and servers (`libs.cli.launch` starts them)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libs.walls import roles
from libs.walls.names import check_numbers, check_teams, check_users
from schemas.subjects import token

SERVICES = roles.SERVICES
MOST_REPLICAS = 9
REAL_NODE = ("none", "auto", "nvml", "cpu")


@dataclass(frozen=True, kw_only=True)
class External:
    """Servers that already run; Baton is started beside them."""

    nats_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    mongo_url: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What to run.

    `pool` is the first pool. `more_pools`: further pools, each with a file of simulated nodes. Each pool has its own
    services (e.g. `placement.west`); admission is one for all. `users`, as `<team>.<user>`, get their own credential
    beside their team's.

    `fleet`: a file of simulated nodes. `real_node`: offers this machine's own devices (auto: its GPUs, else its
    processors). `env`: process or service name ("*": all) -> further variables. `replicas`: copies of every service in
    every pool; `copies`: of the named ones (`placement`, `placement-2`, `placement.west-2`). `keep_jobs`: jobs on this
    machine continue while everything is stopped, until the next start. `brokers`: number of NATS servers (1, 3 or 5),
    each with a copy of every stream. `scale`: factor for the streams' storage limits. `insecure`: `external` may be a
    broker that anybody may use. `sync_always`: waits for the disk before each acknowledgement.
    """

    state_dir: Path = Path(".baton")
    pool: str = "main"
    more_pools: Mapping[str, Path] = field(default_factory=dict)
    teams: Sequence[str] = ("research",)
    users: Sequence[str] = ()
    fleet: Path | None = None
    real_node: str = "none"
    prices: Path | None = None
    quotas: Path | None = None
    services: Sequence[str] = SERVICES
    replicas: int = 1
    copies: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    external: External | None = None
    nats_port: int | None = None
    brokers: int = 1
    sync_always: bool = True
    keep_jobs: bool = False
    insecure: bool = False
    scale: float = 1.0
    log_level: str = "INFO"
    ready_timeout_s: float = 90.0

    def __post_init__(self) -> None:
        if unknown := set(self.services) - set(SERVICES):
            raise ValueError(f"unknown services: {', '.join(sorted(unknown))}; there are {', '.join(SERVICES)}")
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise ValueError(
                f"replicas is {self.replicas}: use 1 to {MOST_REPLICAS}, 2 so that each service has a standby"
            )
        check_teams(self.teams)
        check_numbers(self.teams)
        check_users(self.users, self.teams)
        for pool in self.pools:
            token(pool)
        if self.pool in self.more_pools:
            raise ValueError(f"pool {self.pool!r} is named twice: each pool has a name of its own")
        if self.real_node not in REAL_NODE:
            raise ValueError(f"real_node is {self.real_node!r}: use one of {', '.join(REAL_NODE)}")
        for path in (self.fleet, self.prices, self.quotas, *self.more_pools.values()):
            if path is not None and not path.is_file():
                raise FileNotFoundError(2, "No such file", str(path))
        for pool, path in ((self.pool, self.fleet), *self.more_pools.items()):
            if path is not None:
                from libs.simulation.fleets import check_fleet

                check_fleet(path, pool)  # its agent would report the same, later
        if self.prices is not None or self.quotas is not None:
            from libs.simulation.start_files import check_prices, check_quotas

            if self.prices is not None:
                check_prices(self.prices, "--prices")
            if self.quotas is not None:
                check_quotas(self.quotas, "--quotas")

    @property
    def pools(self) -> tuple[str, ...]:
        """All pools, the first one first."""
        return (self.pool, *self.more_pools)
