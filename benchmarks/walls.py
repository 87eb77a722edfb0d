"""`python -m benchmarks.walls`: what walls cost. The same jobs through two stacks that run side by side, in turns.

*walls*: as `baton up` starts it: an account for each team and node, a role for each service, jobs behind walls. *bare*: the
same services, `--insecure`, beside a broker that knows one password, with jobs that nothing keeps apart. Both fsync each write.

Each round has a turn of each, and which comes first alternates, so that what the machine does otherwise hits both alike; the
stack whose turn it is not only waits. A turn of *capacity* is a burst of no-op jobs, one of *processes* a burst of jobs that
run `/bin/true` each. Reported: jobs/s of each turn, the medians, the median of the rounds' ratios, CPU of a stack's own
processes per job, and how much slower walls are (aim: at most 10 %).
"""

import argparse
import asyncio
import contextlib
import shutil
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks import machine
from benchmarks.throughput import FLEET, TEAM, _burst, _noop, _until
from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.launch_options import External
from libs.client import connect
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.embedded.servers import MONGO, NATS, VALKEY
from schemas.jobs import JobSpec
from schemas.resources import Resources
from schemas.subjects import OPERATOR

AIM = 0.10
WALLS, BARE = "walls", "bare"
_OPEN = {"BATON_AGENT_WALLS": "none", "BATON_AGENT_TEAMS_WITHOUT_WALLS": "true"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each stack")
    parser.add_argument("--jobs", type=int, default=2000, help="no-op jobs of a turn")
    parser.add_argument(
        "--processes", type=int, default=200, help="jobs of a turn with a real process each; 0: leave out"
    )
    parser.add_argument("--short", action="store_true", help="a few jobs, to see that it works; not for figures")
    parser.add_argument("--state-dir", type=Path, default=Path(".baton/bench-walls"))
    options = parser.parse_args()
    if options.short:
        options.rounds, options.jobs, options.processes = 2, 60, 10
    asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> None:
    about = machine.describe()
    shutil.rmtree(options.state_dir, ignore_errors=True)
    async with _walled(options.state_dir / WALLS) as walled, _bare(options.state_dir / BARE) as bare:
        stacks = {WALLS: walled, BARE: bare}
        for side in stacks.values():
            await _until(side.operator, lambda s: s.nodes_up == 64)
            await side.turn(_noop("warm"), max(50, options.jobs // 4))
        result: dict[str, Any] = {"machine": about, "rounds": options.rounds, "aim": AIM}
        kinds = {"capacity": (_noop("cap"), options.jobs)}
        if options.processes:
            real = JobSpec(name="true", command=("/bin/true",), resources=Resources())
            kinds["processes"] = (real, options.processes)
        for kind, (spec, count) in kinds.items():
            turns: dict[str, list[dict[str, float]]] = {WALLS: [], BARE: []}
            for number in range(options.rounds):
                for name in (WALLS, BARE) if number % 2 == 0 else (BARE, WALLS):
                    turns[name].append(await stacks[name].turn(spec, count))
            result[kind] = _compared(turns)
            print(f"{kind}: {_line(result[kind])}")
        result["jobs_walls"] = walled.cluster.walls() or _tier(walled)  # known once a process was started
        print(f"jobs' walls: {result['jobs_walls']}")
    print(f"written to {machine.write('walls', result)}" if not options.short else "short: nothing is written")


@dataclass(frozen=True)
class _Side:
    """One stack: its team's client, its operator, and the servers that it does not start itself."""

    cluster: LocalStack
    client: Any
    operator: Any
    servers: Servers | None = None

    async def turn(self, spec: JobSpec, count: int) -> dict[str, float]:
        before = self._cpu_s()
        found = await _burst(self.client, self.operator, spec, count)
        used = {part: round(1000 * (s - before.get(part, 0.0)) / count, 3) for part, s in self._cpu_s().items()}
        return {
            "jobs_per_s": found["jobs_per_s"],
            "granted_p99_ms": found["submit_to_granted"]["p99_ms"],
            "cpu_ms_per_job": round(sum(used.values()), 3),
            **{f"cpu_ms_{part}": ms for part, ms in used.items()},
        }

    def _cpu_s(self) -> dict[str, float]:
        """Of this stack's processes by part, s, and of jobs that they have waited for; a keeper counts with its agent."""
        records = dict(self.cluster.processes())
        records |= self.servers.supervisor.processes() if self.servers else {}
        known = {one.pid for one in records.values()}
        used: dict[str, float] = {}
        running = [(name, one.pid) for name, one in records.items() if one.pid is not None]
        for name, pid in running:
            for process in _family(pid):
                if process.pid != pid and process.pid in known:
                    continue  # a service that was forked from this one is a part of its own
                with contextlib.suppress(psutil.Error):
                    used[name] = used.get(name, 0.0) + sum(process.cpu_times()[:4])
        return used


def _family(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


@asynccontextmanager
async def _walled(folder: Path) -> AsyncIterator[_Side]:
    launch = LaunchOptions(state_dir=folder, teams=(TEAM,), fleet=FLEET, real_node="none")
    async with LocalStack(launch) as cluster, _clients(cluster) as (client, operator):
        yield _Side(cluster, client, operator)


@asynccontextmanager
async def _bare(folder: Path) -> AsyncIterator[_Side]:
    nats = NatsOptions()
    async with Servers(folder / "servers", ServerOptions(run=(NATS, VALKEY, MONGO), nats=nats)) as servers:
        external = External(nats_url=servers.nats_url, redis_url=servers.redis_url, mongo_url=servers.mongo_url)
        launch = LaunchOptions(state_dir=folder / "stack", teams=(TEAM,), fleet=FLEET, real_node="none")
        launch = replace(launch, external=external, insecure=True, env={"*": _OPEN})
        async with LocalStack(launch) as cluster, _clients(cluster) as (client, operator):
            yield _Side(cluster, client, operator, servers)


@asynccontextmanager
async def _clients(cluster: LocalStack) -> AsyncIterator[tuple[Any, Any]]:
    # By name: a broker without accounts does not say who is the operator.
    operating, asking = connect(cluster.address(OPERATOR), OPERATOR), connect(cluster.address(TEAM), TEAM)
    async with await operating as operator, await asking as client:
        yield client, operator


def _tier(side: _Side) -> str:
    """What the agent says of itself: figures of processes are of that."""
    for path in sorted((side.cluster.state_dir / "services").glob("*/agent/walls")):
        return path.read_text()
    return "unknown"


def _compared(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Of each stack's turns, round by round."""

    def median(name: str, what: str) -> float:
        return round(statistics.median(turn.get(what, 0.0) for turn in turns[name]), 3)

    def ratio(what: str) -> float:
        pairs = zip(turns[WALLS], turns[BARE], strict=True)
        return round(statistics.median(walled[what] / max(bare[what], 1e-9) for walled, bare in pairs), 3)

    return {
        **{
            name: {"median": {what: median(name, what) for what in turns[name][0]}, "turns": turns[name]}
            for name in turns
        },
        "jobs_per_s_ratio": ratio("jobs_per_s"),
        "cpu_ratio": ratio("cpu_ms_per_job"),
        "slower": round(1 - ratio("jobs_per_s"), 3),
        "aim_held": 1 - ratio("jobs_per_s") <= AIM,
    }


def _line(found: dict[str, Any]) -> str:
    walled, bare = (found[name]["median"] for name in (WALLS, BARE))
    return (
        f"{walled['jobs_per_s']} jobs/s with walls, {bare['jobs_per_s']} without; {100 * found['slower']:.1f} % slower, "
        f"x{found['cpu_ratio']} of the CPU a job"
    )


if __name__ == "__main__":
    main()
