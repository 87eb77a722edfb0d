"""The guard: a second process that ends a node's jobs when its lease ends or the agent dies. Standard library only.

An agent that is frozen (SIGSTOP, a hung driver, a swapped-out machine) cannot stop its own work, but telemetry counts
on it that the work has stopped. So the agent tells this process, one line each, first in the file whose descriptor is
its argument (complete before the guard starts), then on standard input:

    node <name> <marker> <cgroup or ->          here is where the jobs of this life (incarnation) of the node are
    until <name> <seconds on CLOCK_BOOTTIME>    they may run until then

At a node's deadline, or for all nodes at end of file (the agent is gone), everything there is killed, again and again
until nothing is left. The deadline alone is trusted, never that the agent will speak again; a lease that has ended
never revives, so what appears later in the same life (an agent that was frozen just before its fork) is killed too.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.agent.tree import kill_all, kill_group, marked, remove_group

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine is suspended, where there is such a clock: a lease does too."""
RETRY_S = 0.05
LONGEST_WAIT_S = 1.0


def now() -> float:
    """Seconds on the clock that leases are measured with, the same for all processes of a machine."""
    return time.clock_gettime(CLOCK)


@dataclass(slots=True)
class Watched:
    """One life of a node: where its processes are and until when they may run (0: no lease yet)."""

    marker: str
    group: Path | None
    until: float = 0.0

    def kill(self) -> bool:
        """Kills what is there; returns whether anything was."""
        found = kill_group(self.group) if self.group is not None and self.group.is_dir() else set()
        return bool(found | kill_all(marked(self.marker + "/")))


def read_line(watched: dict[str, Watched], line: str) -> None:
    """Applies one line of the protocol; one that is not understood is left alone."""
    match line.split():
        case ["node", name, marker, group]:
            watched[name] = Watched(marker, None if group == "-" else Path(group))
        case ["until", name, seconds] if name in watched:
            watched[name].until = float(seconds)


def main() -> int:
    """Runs until the agent is gone and nothing of its jobs is left. Returns the exit status."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # it ends with its agent, not before
    watched: dict[str, Watched] = {}
    with open(int(sys.argv[1]), "rb") as told:
        for line in told:
            read_line(watched, line.decode(errors="replace"))
    buffer, busy = b"", False
    while True:
        ready, _, _ = select.select([0], [], [], RETRY_S if busy else _wait(watched))
        if ready:
            data = os.read(0, 65_536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                read_line(watched, line.decode(errors="replace"))
        busy = kill([node for node in watched.values() if node.until and node.until <= now()])
    while kill(list(watched.values())):
        time.sleep(RETRY_S)
    for node in watched.values():
        if node.group is not None:
            remove_group(node.group)
            with suppress(OSError):
                node.group.parent.rmdir()
    return 0


def kill(nodes: list[Watched]) -> bool:
    """Kills what is on all of `nodes`; returns whether anything was."""
    return sum(node.kill() for node in nodes) > 0


def _wait(watched: dict[str, Watched]) -> float:
    """Seconds until the next deadline to come, a second at the most; past ones are swept once a second."""
    time_left = [node.until - now() for node in watched.values() if node.until > now()]
    return max(0.0, min([*time_left, LONGEST_WAIT_S]))


if __name__ == "__main__":
    sys.exit(main())
