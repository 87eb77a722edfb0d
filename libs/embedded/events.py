"""What a supervisor reports: the state of a process, what happens to it, and how long it waits to try again."""

from dataclasses import dataclass
from enum import StrEnum


class ServerState(StrEnum):
    """Where a process is; written to processes.json."""

    WAITING = "waiting"  # for a dependency, or for its turn to start again
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"  # on request
    EXITED = "exited"  # by itself, and not to be restarted
    FAILED = "failed"  # never became ready

    @property
    def is_live(self) -> bool:
        """Whether the supervisor still looks after the process."""
        return self in (ServerState.WAITING, ServerState.STARTING, ServerState.READY)


class EventKind(StrEnum):
    """What happened to a process."""

    STARTED = "started"  # ready for the first time
    EXITED = "exited"  # ended without being asked to
    RESTARTED = "restarted"  # ready again
    RESTART_FAILED = "restart_failed"  # ended or stayed silent before it was ready again; tried again later
    STOPPED = "stopped"  # ended because it was asked to
    ILL = "ill"  # runs and does not do its work; started anew as soon as that helps


@dataclass(frozen=True)
class ProcessEvent:
    """Something that happened to a process; `detail` is for people."""

    kind: EventKind
    name: str
    pid: int | None
    restarts: int
    detail: str = ""


@dataclass(frozen=True)
class Backoff:
    """Pause before a restart: doubles from `first_s` to `longest_s`, and starts over after `healthy_s` of health."""

    first_s: float = 0.1
    longest_s: float = 5.0
    healthy_s: float = 10.0

    def next(self, previous_s: float | None, ran_s: float) -> float:
        """The pause after a run of `ran_s` seconds, given the pause before it (None: there was none)."""
        if previous_s is None or ran_s >= self.healthy_s:
            return self.first_s
        return min(previous_s * 2, self.longest_s)
