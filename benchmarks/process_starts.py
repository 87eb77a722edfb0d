"""CPU time that agent and keeper need to start and end the processes of an attempt.

    python -m benchmarks.process_starts --containment namespace --attempts 200 --ranks 1

Each attempt runs `/bin/true`, one after the other, through a keeper of its own. The agent is this process with the keeper's
client alone; the keeper's time is the kernel's (`/proc/<pid>/schedstat`); shims and programs are the keeper's children.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from services.agent.keeper import contain
from services.agent.keeper.client import KeeperClient

_WARM_UP = 10
_TICK_MS = 10
"""Of the times in /proc/<pid>/stat."""


async def measure(containment: str, attempts: int, ranks: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pids").mkdir()
        keeper = KeeperClient(folder, containment, "", _nothing)
        keeper.life("n0", 1, None)
        await keeper.ensure()
        for number in range(_WARM_UP):
            await _one(keeper, folder, f"warm-{number}", ranks)
        before = _keeper_ms(keeper.pid), _children_ms(keeper.pid), time.process_time() * 1000
        for number in range(attempts):
            await _one(keeper, folder, str(number), ranks)
        after = _keeper_ms(keeper.pid), _children_ms(keeper.pid), time.process_time() * 1000
        own, children, agent = ((b - a) / (attempts * ranks) for a, b in zip(before, after, strict=True))
        print(f"{keeper.containment}, {ranks} processes an attempt, CPU ms per process:")
        print(f"agent {agent:.2f}, keeper {own:.2f}, shims and programs {children:.2f}")
        await keeper.close()


async def _nothing() -> None:
    """Nothing is left to clear."""


async def _one(keeper: KeeperClient, folder: Path, name: str, ranks: int) -> None:
    environment = {"PATH": "/usr/bin:/bin"} | {f"VARIABLE_{i}": "x" * 20 for i in range(25)}
    attempt = keeper.attempt(f"n0/{name}.1")
    message = {
        "node": "n0",
        "incarnation": 1,
        "about": {"part": "x" * 1500},
        "command": ["/bin/true"],
        "workdir": str(folder),
        "log_limit": 1000,
        "ranks": [{"rank": r, "environment": environment, "log": str(folder / f"{name}-{r}")} for r in range(ranks)],
    }
    await keeper.start(attempt, message)
    await attempt.ended.wait()
    attempt.forget()


def _keeper_ms(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def _children_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) * _TICK_MS


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--containment", choices=("auto", *contain.KINDS), default="auto")
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1)
    given = parser.parse_args()
    asyncio.run(measure(given.containment, given.attempts, given.ranks))
