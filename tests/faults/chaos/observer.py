"""Watches the machine's processes, and asks nobody: two attempts of one job are never at work at once (P2), and no service
grows without bound."""

import asyncio
import resource
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from libs.cli.launch import LocalStack

EVERY_S = 0.5
ENDING_S = 5.0
"""How long a part whose lease has ended may take to be gone: the kill bound. A whole node that was frozen wakes up with it."""
_STILL = "TtZX"
"""States in which a process does nothing: stopped, traced, ended."""


MOST_MIB = 512
"""Of one service, resident. They begin with 100 to 200."""


@dataclass(slots=True)
class Observer:
    """`await watch()` until it is cancelled; `seen` has what was wrong, `largest` the most that each service had, MiB."""

    cluster: LocalStack
    largest: dict[str, int] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)

    async def watch(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """One look at all processes."""
        for name in self.cluster.http:
            self._weigh(name)
        now = time.monotonic()
        doubled = {job: a for job, a in attempts_at_work(self.cluster.state_dir).items() if len(a) > 1}
        self._since = {job: self._since.get(job, now) for job in doubled}
        for job, since in self._since.items():
            if now - since > ENDING_S:
                self.seen.append(f"attempts {sorted(doubled[job])} of {job} at once for {now - since:.1f} s")

    def _weigh(self, name: str) -> None:
        with suppress(OSError, ProcessLookupError):
            pages = int(Path(f"/proc/{self.cluster.supervisor.pid(name)}/statm").read_text().split()[1])
            size = pages * resource.getpagesize() // (1 << 20)
            if size > MOST_MIB >= self.largest.get(name, 0):
                self.seen.append(f"{name} takes {size} MiB")
            self.largest[name] = max(size, self.largest.get(name, 0))


def attempts_at_work(state_dir: Path) -> dict[str, set[str]]:
    """Job -> attempts with a process that runs, of the agents whose files lie under `state_dir`."""
    found: dict[str, set[str]] = defaultdict(set)
    home = str(state_dir).encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, KeyError, IndexError):
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if home not in environment or b"BATON_PART=" not in environment:
                continue
            variables = dict(pair.split(b"=", 1) for pair in environment.split(b"\0") if b"=" in pair)
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in _STILL:
                found[variables[b"BATON_JOB_ID"].decode()].add(variables[b"BATON_ATTEMPT"].decode())
    return found
