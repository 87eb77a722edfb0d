"""CPU time that agent and keeper need to start and end the processes of an attempt.

    python -m benchmarks.process_starts --containment namespace --attempts 200 --ranks 1
    python -m benchmarks.process_starts --against ../baton-before
    python -m benchmarks.process_starts --walls --groups --at-once 16 --against ../baton-before
    python -m benchmarks.process_starts --burst 100 --walls

Each attempt runs `/bin/true`, one after the other or `--at-once`, through a keeper of its own; with `--groups` in cgroups that
limit its memory and share the processors, as an agent asks for them. The agent is the measuring process with the
keeper's client alone; the keeper's time, its zygote's with it, is the kernel's (`/proc/<pid>/schedstat`); shims and programs
are the keeper's children. How long an attempt takes is from the agent's asking until it knows that all of it has ended: with
`--ranks 8` that is a gang of eight on one node. With `--against` the code of another checkout is measured in turn with this
one: on a machine that does other work as well, only the ratio says anything. With `--burst` it is told how long the first
attempts of a keeper take, 64 at once, and as many that follow.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from services.agent import jobwalls
from services.agent.keeper import contain, proc
from services.agent.keeper.client import KeeperClient
from services.agent.settings import AgentSettings
from services.agent.tree import cgroup_base, limit_base
from services.agent.view import view_of

_WARM_UP = 10
_AT_ONCE = 64
_TICK_MS = 10
"""Of the times in /proc/<pid>/stat."""
_HERE = Path(__file__).resolve().parents[1]

Times = list[float]
"""Of agent, keeper, shims and programs: CPU ms per process; then ms of time an attempt, the median."""


async def measure(containment: str, attempts: int, ranks: int, walled: bool, groups: bool, at_once: int) -> Times:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pids").mkdir()  # for keepers before the zygote
        keeper, about = await _keeper(folder, containment, walled)
        wanted = _groups() if groups else {}
        took = list[float]()

        async def one_by_one(names: Iterator[str]) -> None:
            for name in names:
                took.append(await _one(keeper, folder, name, ranks, about, wanted))

        async def all_of(names: Iterator[str]) -> None:
            await asyncio.gather(*(one_by_one(names) for _ in range(at_once)))

        await all_of(f"warm-{number}" for number in range(max(_WARM_UP, 2 * at_once)))
        took.clear()
        before = time.process_time() * 1000, _keeper_ms(keeper.pid), _children_ms(keeper.pid)
        await all_of(str(number) for number in range(attempts))
        after = time.process_time() * 1000, _keeper_ms(keeper.pid), _children_ms(keeper.pid)
        await keeper.close()
        return [*((b - a) / (attempts * ranks) for a, b in zip(before, after, strict=True)), median(took)]


async def burst(containment: str, attempts: int, walled: bool) -> Times:
    """ms until the first so many have ended, and until as many more have."""
    with tempfile.TemporaryDirectory() as name:
        folder, took = Path(name), list[float]()
        keeper, about = await _keeper(folder, containment, walled, [()])
        for turn in range(2):
            began, waiting = time.perf_counter(), iter(range(attempts))

            async def one_by_one(waiting: Iterator[int] = waiting, turn: int = turn) -> None:
                for number in waiting:
                    await _one(keeper, folder, f"{turn}-{number}", 1, about)

            await asyncio.gather(*(one_by_one() for _ in range(_AT_ONCE)))
            took.append((time.perf_counter() - began) * 1000)
        await keeper.close()
        return took


async def _keeper(
    folder: Path, containment: str, walled: bool, *ahead: Sequence[Sequence[str]]
) -> tuple[KeeperClient, jobwalls.JobWalls | None]:
    """As an agent starts it; `ahead` as `jobwalls.asked` has it, which other checkouts may not know."""
    view = view_of([folder], AgentSettings()) if walled else None
    asked = jobwalls.asked("auto", view, *ahead) if view else ""
    keeper = KeeperClient(folder, containment, "", _nothing, behind=asked)
    keeper.life("n0", 1, None)
    await keeper.ensure()
    return keeper, jobwalls.JobWalls(keeper, view, folder / "teams.json", False) if view else None


def _groups() -> dict[str, Any]:
    """Of the start message: cgroups as an agent of root's asks for them, of version 1."""
    base, name = cgroup_base(), f"baton-starts-{os.getpid()}"
    memory, cpu = (limit_base(controller, base) for controller in ("memory", "cpu"))
    return {
        "memory": {"group": f"{memory}/{name}", "stem": f"{memory}/{name}", "bytes": 1 << 30},
        "cpu": {"stem": f"{cpu}/{name}", "weight": 100},
    }


async def _nothing() -> None:
    """Nothing is left to clear."""


async def _one(
    keeper: KeeperClient,
    folder: Path,
    name: str,
    ranks: int,
    walls: jobwalls.JobWalls | None,
    groups: Mapping[str, Any] = MappingProxyType({}),
) -> float:
    """ms from asking for it to its end."""
    environment = {"PATH": "/usr/bin:/bin"} | {f"VARIABLE_{i}": "x" * 20 for i in range(25)}
    attempt = keeper.attempt(f"n0/{name}.1")
    own = [folder / part / name for part in ("jobs", "checkpoints", "acknowledge")]
    for made in own:
        made.mkdir(parents=True)
    message: dict[str, object] = {
        "node": "n0",
        "incarnation": 1,
        "about": {"part": "x" * 1500},
        "command": ["/bin/true"],
        "workdir": str(own[0]),
        "log_limit": 1000,
        "ranks": [{"rank": r, "environment": environment, "log": str(folder / f"{name}-{r}")} for r in range(ranks)],
    }
    if groups:
        memory = dict(groups["memory"])
        message |= {"cpu": groups["cpu"], "memory": memory | {"group": f"{memory['group']}-{name}"}}
    if walls is not None:
        message["walls"] = walls.around("blue", own, (), 1 << 30)
    asked = time.perf_counter()
    await keeper.start(attempt, message)
    await attempt.ended.wait()
    took = (time.perf_counter() - asked) * 1000
    attempt.forget()
    return took


def _keeper_ms(pid: int) -> float:
    """Between two attempts the keeper's only child is its zygote, where it has one."""
    return sum(int(proc.read_text(f"/proc/{one}/schedstat").split()[0]) / 1e6 for one in (pid, *proc.children(pid)))


def _children_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) * _TICK_MS


def compare(given: argparse.Namespace) -> None:
    """Every tree in turn, each time in a fresh process that imports Baton from there."""
    trees = [tree.resolve() for tree in (_HERE, given.against) if tree is not None]
    found: dict[Path, list[Times]] = {tree: [] for tree in trees}
    options = ["--containment", given.containment, "--attempts", str(given.attempts), "--ranks", str(given.ranks)]
    options += ["--at-once", str(given.at_once)]
    options += [word for word, wanted in (("--walls", given.walls), ("--groups", given.groups)) if wanted]
    for _ in range(given.rounds):
        for tree in trees:
            out = subprocess.run(
                [sys.executable, __file__, "--one", *options],
                env=os.environ | {"PYTHONPATH": str(tree)},
                stdout=subprocess.PIPE,
                check=True,
            )
            found[tree].append(json.loads(out.stdout))
    print(f"{given.containment}, {given.ranks} processes an attempt, CPU ms per process, median of {given.rounds}:")
    for tree, rounds in found.items():
        agent, keeper, children, took = map(median, zip(*rounds, strict=True))
        both = median(agent + keeper for agent, keeper, *_ in rounds)
        print(
            f"agent {agent:.2f}, keeper {keeper:.2f}, both {both:.2f}; shims and programs {children:.2f}; "
            f"an attempt takes {took:.1f} ms  ({tree.name})"
        )
    if given.against is not None:
        ratios = [sum(a[:2]) / sum(b[:2]) for a, b in zip(*found.values(), strict=True)]
        print(f"both, against {given.against.name}: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        ratios = [sum(a[:3]) / sum(b[:3]) for a, b in zip(*found.values(), strict=True)]
        print(f"and with shims and programs: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--containment", choices=("auto", *contain.KINDS), default="auto")
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout of Baton")
    parser.add_argument("--walls", action="store_true", help="with the best walls that this user can have")
    parser.add_argument("--groups", action="store_true", help="in cgroups, as root and of version 1")
    parser.add_argument("--at-once", type=int, default=1, help="attempts that run at once")
    parser.add_argument("--burst", type=int, default=0, help="time so many first attempts, and as many that follow")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.burst:
        first, then = asyncio.run(burst(arguments.containment, arguments.burst, arguments.walls))
        print(f"the first {arguments.burst} took {first:.0f} ms, as many more {then:.0f} ms")
    elif arguments.one:
        kind, walled, groups = arguments.containment, arguments.walls, arguments.groups
        found = asyncio.run(measure(kind, arguments.attempts, arguments.ranks, walled, groups, arguments.at_once))
        print(json.dumps(found))
    else:
        compare(arguments)
