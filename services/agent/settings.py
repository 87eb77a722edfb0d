"""The agent's settings, from the environment with the prefix `BATON_AGENT_`."""

import os
import socket
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.bus.creds import LOGS_CREDS, Address
from libs.service.settings import ServiceSettings
from schemas.base import Name, NodeName
from schemas.jobs import DEFAULT_LEASE_S
from services.agent.keeper import contain, walls
from services.agent.overtime import GRACE_S


class DeviceSource(StrEnum):
    """Which devices of this machine are offered."""

    AUTO = "auto"
    NVML = "nvml"
    SCAN = "scan"
    CPU = "cpu"
    NONE = "none"


def _host() -> str:
    return socket.gethostname().replace(".", "-")[:63].strip("-_") or "node"


class OnStop(StrEnum):
    """What an agent does with its work at SIGTERM."""

    DRAIN = "drain"
    """Jobs are asked to save and are ended; the nodes leave the pool."""
    KEEP = "keep"
    """Jobs continue without a lease until the next agent. Only for a control plane that is stopped as well: a running
    one would declare the nodes lost."""


class Containment(StrEnum):
    """What holds an attempt's processes together, see `services.agent.keeper.contain`."""

    AUTO = "auto"
    NAMESPACE = contain.NAMESPACE
    CGROUP = contain.CGROUP
    SUBREAPER = contain.SUBREAPER
    NONE = contain.NONE


class Walls(StrEnum):
    """What isolates teams' jobs, see `services.agent.keeper.walls`."""

    AUTO = "auto"
    FULL = walls.FULL
    NAMESPACES = walls.NAMESPACES
    NONE = walls.NONE


class AgentSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_AGENT_")

    fleet: Path | None = Field(default=None, description="YAML file of simulated nodes (deploy/fleets/)")
    devices: DeviceSource = Field(
        default=DeviceSource.AUTO,
        description="auto: its NVIDIA GPUs, else other accelerators (scan), else its processors; with a fleet none",
    )
    processors: bool = Field(
        default=True, description="offer this machine's processors beside its accelerators, to jobs that name CPU"
    )
    sharing: Literal["any", "none"] = Field(
        default="any",
        description="of this machine's accelerators. any: jobs may ask for shares, to which only an MPS daemon holds them; "
        "none: they go whole, or as MIG instances",
    )
    mig_dynamic: bool = Field(
        default=False, description="Baton may repartition idle MIG instances of this machine; needs the right to do so"
    )
    node: NodeName = Field(default_factory=_host, description="this machine's name in the pool")
    position: str = Field(
        default="leaf-0/spine-0/zone-0", pattern=r"^[^/]+/[^/]+/[^/]+$", description="leaf/spine/zone"
    )
    labels: dict[str, str] = Field(default_factory=dict, description='JSON object, e.g. {"site": "west"}')
    rack_power_w: int = Field(
        default=0,
        ge=0,
        description="power cap of this machine's rack (its leaf), watts, to be said on each of its nodes; 0: none",
    )
    contents: tuple[str, ...] = Field(
        default=(), description='images and datasets on its disk, by content name, a JSON list: ["sha256:9f86..."]'
    )
    fetch_mib_s: int = Field(default=1000, ge=1, description="how fast it fetches what is not on its disk, MiB/s")
    address_template: str = Field(default="{node}", description="how other nodes reach {node}: for MASTER_ADDR")
    lease_s: float = Field(
        default=DEFAULT_LEASE_S,
        ge=0.5,
        le=86_400,
        description="work stops so long after the last renewal, or sooner if its class says so, s",
    )
    heartbeat_s: float = Field(
        default=3.0, gt=0, le=60, description="how often leases are renewed, s; at least thrice in the shortest there"
    )
    ask_s: float = Field(
        default=3.0,
        gt=0,
        le=60,
        description="how often the whole desired state is asked for, s; half as often of a node without work",
    )
    repeat_s: float = Field(default=5.0, gt=0, le=60, description="unheard ends are reported again after this, s")
    limit_grace_s: float = Field(
        default=GRACE_S,
        ge=1,
        le=86_400,
        description="a job that nobody stops at its time limit is ended so long after it, s; 0.2 % of the limit later at most",
    )
    drain_s: float = Field(
        default=5.0,
        gt=0,
        le=7200,
        description="asked to stop, it waits so long for its jobs to save and end, s; no longer than they may take",
    )
    sample_s: float = Field(
        default=15.0, gt=0, le=3600, description="between device samples, s; in what was used one in 10 s counts"
    )
    quarantine_s: float = Field(
        default=5.0, gt=0, le=3600, description="how often a device that something else uses is looked at again, s"
    )
    workdir: Path | None = Field(default=None, description="files of jobs; by default <state dir>/jobs")
    checkpoints: Path | None = Field(default=None, description="shared between nodes; default <state dir>/checkpoints")
    log_limit_mib: int = Field(default=64, ge=1, le=65_536, description="output kept per process, MiB")
    keep_attempts: int = Field(
        default=500,
        ge=1,
        description="ended attempts whose files are kept; of more the oldest of the team that has most go",
    )
    left_s: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="how often it is asked whether a team has left whose files are here, s; and at the start",
    )
    on_stop: OnStop = Field(
        default=OnStop.DRAIN,
        description="keep: jobs run on while agent and control plane are stopped (baton up --keep-jobs)",
    )
    containment: Containment = Field(
        default=Containment.AUTO,
        description="how all processes of an attempt are held together; auto: the strongest way",
    )
    trusted_team: Name | Literal[""] = Field(
        default="", description="the one team that is served where nothing holds jobs together, or keeps them apart"
    )
    walls: Walls = Field(default=Walls.AUTO, description="what keeps jobs apart; auto: the strongest that works here")
    teams_without_walls: bool = Field(
        default=False, description="serve several teams although nothing keeps their jobs apart; without it one team"
    )
    readable: tuple[Path, ...] = Field(
        default=(), description='folders that jobs may read besides the system\'s, a JSON list: ["/data"]'
    )
    writable: tuple[Path, ...] = Field(
        default=(), description="folders that jobs may write to, as far as their team's user may"
    )
    device_files: tuple[Path, ...] = Field(
        default=(Path("/dev/infiniband"),), description="further files of /dev for jobs that hold an accelerator"
    )
    scratch_mib: int = Field(
        default=0, ge=0, description="size of a job's /tmp and of its /dev/shm, MiB; 0: half of the machine's memory"
    )
    secrets: Path | None = Field(
        default=None,
        description="where files of secrets are made; by default in memory: $XDG_RUNTIME_DIR, /run or /dev/shm, else the "
        "state directory",
    )
    secrets_wait_s: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="how long vault may be away before a part that names secrets is given up, s",
    )
    job_processes: int | None = Field(
        default=None,
        ge=16,
        le=4_000_000,
        description="processes and threads that a team's jobs may have here, with walls; by default 16,384, or a quarter of "
        "all that the machine can have where that is less",
    )
    job_disk_mib: int = Field(
        default=0,
        ge=0,
        description="what the folders of one attempt on this machine may hold, checkpoints included, MiB; 0: half of the disk",
    )
    job_sockets: int = Field(
        default=0,
        ge=0,
        description="sockets that one attempt on this machine may have open; 0: half of the machine's ports for outgoing "
        "connections",
    )
    job_gang_ports: int = Field(
        default=0,
        ge=0,
        description="ports of 20000 to 29999, at which gangs meet, that one attempt on this machine may have had; 0: 64, or "
        "1,000 where the machine gives them to outgoing connections",
    )
    limits_s: float = Field(
        default=2.0, gt=0, le=3600, description="how often what an attempt takes of memory and disk is looked at, s"
    )
    cgroups: bool = Field(default=True, description="put jobs into cgroups of their own where that is possible")
    reserved_cpus: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="processors that all jobs of this machine together leave to everything else; 0: none; null: what a bound "
        "there is stays",
    )
    quick_cgroups: bool = Field(
        default=True,
        description="as root, mount this machine's cgroups with favordynmods: a job starts some milliseconds sooner",
    )

    @property
    def log_bus(self) -> Address:
        """The bus address for questions about logs: with `logs.creds` beside the agent's own credential, if it exists."""
        logs = self.nats_creds and self.nats_creds.with_name(LOGS_CREDS)
        return replace(self.bus, creds=logs) if logs and logs.is_file() else self.bus

    def state_path(self) -> Path:
        """Where incarnations and pid files are. It must survive restarts of the agent."""
        if self.state_dir is not None:
            return self.state_dir.resolve()
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").resolve() / "baton"
