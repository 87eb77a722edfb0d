"""What a part's processes are started with, and the start message for the keeper."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.nodes import DesiredPart
from services.agent.keeper.client import KeptAttempt
from services.agent.limits import Watched
from services.agent.quarantine import Since
from services.agent.secrets import NOTHING, Delivered
from services.agent.shared import SharedUse


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """How to start one process."""

    rank: int
    environment: Mapping[str, str]
    log: str
    acknowledgement: Path


async def no_devices(grace_s: float) -> None:
    """The default: no devices to check."""


async def no_secrets(wanted: Callable[[], bool]) -> Delivered:
    """The default: the job names no secrets."""
    return NOTHING


@dataclass(slots=True)
class AttemptLaunch:
    """What a part needs besides its spec. `kept` is its handle in the keeper; `may_run` says whether the lease holds.

    `adopted`: the note that an earlier agent left with the keeper about its requests to the job; None for a new part.
    """

    kept: KeptAttempt
    node: str
    incarnation: int
    workdir: Path
    commands: Sequence[ProcessCommand]
    log_limit: int
    early_s: float | None
    """How many seconds the part's lease ends before its node's; None: no lease ends it."""
    may_run: Callable[[], bool]
    group: str = ""
    """Its own cgroup, to be created; "": none."""
    adopted: Mapping[str, Any] | None = None
    walls: Callable[[], dict[str, Any] | None] = lambda: None
    """Gives its folders to its team, and returns the description of its walls, if any. Raises OSError or NotServed."""
    watched: Watched | None = None
    """Its limits on this machine, and its use."""
    shared: SharedUse | None = None
    """Its use of the machine's common resources."""
    set_live: Callable[[int, bool], None] = lambda rank, live: None
    not_served: Callable[[], str] = lambda: ""
    """Why this team's processes cannot run here, after the keeper has reported how it holds them; or ""."""
    settle: Callable[[float], Awaitable[None]] = no_devices
    """Waits until the part's devices are free, at most the given seconds; then the others are in quarantine."""
    since: Since = field(default_factory=Since.now)
    """When it began."""
    deliver_secrets: Callable[[Callable[[], bool]], Awaitable[Delivered]] = no_secrets
    """Before the start: gets the job's secrets while the part is wanted, and writes their files."""
    remove_secrets: Callable[[], None] = lambda: None
    """Called when nothing of it runs any more."""
    secrets_folder: Path | None = None
    """Removed by the shim at the end, too."""
    silent_devices: Callable[[], Sequence[str]] = lambda: ()
    """The part's devices that no longer answer. May block for some milliseconds."""

    def start_message(self, part: DesiredPart, delivered: Delivered) -> dict[str, object]:
        """The start message for the keeper. It keeps `about` and passes the environments, with secrets, on to the shim."""
        return {
            "node": self.node,
            "incarnation": self.incarnation,
            "about": {"part": part.model_dump_json(), "since": self.since.ticks},
            "early": self.early_s,
            "command": list(part.spec.command),  # an argv list, never a shell
            "workdir": str(self.workdir),
            "group": self.group,
            **({} if self.watched is None else self.watched.limits.start_fields()),
            "log_limit": self.log_limit,
            "remove": str(self.secrets_folder or ""),
            "walls": self.walls(),
            "ranks": [
                {
                    "rank": command.rank,
                    "environment": {**command.environment, **delivered.environment},
                    "log": command.log,
                }
                for command in self.commands
            ],
        }
