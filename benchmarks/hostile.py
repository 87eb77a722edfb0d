"""`python -m benchmarks.hostile`: what a team that means harm costs the others.

One stack, one run. Three teams submit at a fixed rate in an open loop; a fourth says fourteen kinds of hostile message
(`benchmarks.hostility`) at a rate, from a process of its own. Phases, each as long:

1. *base*: the three teams alone;
2. *control*: the same bytes as in the attack, to another broker, which stores them and which nobody reads: what the others lose
   then is what the machine lacks, whoever is attacked;
3. *attack*: all kinds in turns;
4. with `--each`, one phase for each kind alone.

Reported: the others' p99 from when a request was due until its grant was stored, in each phase, and its ratio to base and to
control (aim: at most 2); whether each of their jobs was granted; memory and processor of each service.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from nats.js.api import StreamConfig

from benchmarks import crowds, machine
from benchmarks.hostility import CONTROL, KINDS
from libs.bus.connect import close, connect
from libs.bus.creds import Address
from libs.cli.launch import LocalStack
from libs.client import Baton
from libs.embedded import ServerOptions, Servers
from libs.embedded.servers import NATS
from schemas import subjects

HOSTILE = "hostile"
OTHERS = ("quiet-1", "quiet-2", "quiet-3")
AIM = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each phase, s")
    parser.add_argument("--rate", type=float, default=300.0, help="hostile messages/s")
    parser.add_argument("--others", type=float, default=30.0, help="jobs/s of the other teams together")
    parser.add_argument("--each", action="store_true", help="a phase for each kind as well")
    parser.add_argument("--short", action="store_true", help="a few seconds, to see that it works; not for figures")
    parser.add_argument("--state-dir", type=Path, default=Path(".baton/bench-hostile"))
    options = parser.parse_args()
    if options.short:
        options.seconds, options.rate, options.others = 4.0, 100.0, 9.0
    asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> None:
    about = machine.describe()
    async with crowds.stack(options.state_dir, (HOSTILE, *OTHERS)) as (cluster, clients, operator):
        run = _Run(cluster, clients, operator, options)
        await run.phase("warm")
        result: dict[str, Any] = {"machine": about, "seconds": options.seconds}
        result |= {"hostile_per_s": options.rate, "others_per_s": options.others, "aim_ratio": AIM}
        result["base"] = await run.phase("base")
        async with _unread(options.state_dir / "control") as where:
            result["control"] = await run.phase("control", where, "--control")
        hostile = cluster.address(HOSTILE)
        result["attack"] = await run.phase("attack", hostile)
        if options.each:
            result["kinds"] = {kind: await run.phase(kind, hostile, "--kind", kind) for kind in KINDS}
    for name, found in (("attack", result["attack"]), *result.get("kinds", {}).items()):
        for against in ("base", "control"):
            least = max(result[against]["others"]["p99_ms"], 0.001)
            found[f"p99_ratio_to_{against}"] = round(found["others"]["p99_ms"] / least, 2)
        print(
            f"{name}: p99 of the others {found['others']['p99_ms']} ms, x{found['p99_ratio_to_base']} of base, "
            f"x{found['p99_ratio_to_control']} of control"
        )
    print(f"written to {machine.write('hostile', result)}" if not options.short else "short: nothing is written")
    if any(found["lost"] for found in result.values() if isinstance(found, dict) and "lost" in found):
        raise SystemExit("jobs of the others were not granted")


class _Run:
    def __init__(
        self, cluster: LocalStack, clients: dict[str, Baton], operator: Baton, options: argparse.Namespace
    ) -> None:
        self.cluster, self.operator, self.options = cluster, operator, options
        self.clients = {team: clients[team] for team in OTHERS}

    async def phase(self, name: str, where: Address | None = None, *words: str) -> dict[str, Any]:
        """`where` is attacked, and how; without it nobody is."""
        status, seconds = await self.operator.status(), self.options.seconds
        js = self.operator.nats.jetstream()
        inbox = (await js.stream_info(subjects.inbox_stream(status.pool))).state.last_seq
        used, memory = machine.cpu_by_process(), self._memory()
        attack = await self._attack(where, words) if where else None
        stop = time.monotonic() + seconds
        rates = dict.fromkeys(OTHERS, self.options.others / len(OTHERS))
        sent = await crowds.submit_open(self.clients, rates, lambda: time.monotonic() > stop)
        cpu = {n: round((at - used.get(n, 0.0)) / seconds, 3) for n, at in machine.cpu_by_process().items()}
        said = int((await attack.communicate())[0]) if attack else 0
        found = await self._granted(sent, status.ledger_seq, inbox)
        waits = [(found[due.job_id].granted_us - due.due_us) / 1000 for due in sent if due.job_id in found]
        print(f"{name}: {crowds.spread(waits)}")
        return {
            "others": crowds.spread(waits),
            "lost": sum(due.job_id not in found for due in sent),
            "hostile_said_per_s": round(said / seconds, 1),
            "cores": cpu,
            "memory_mib": {n: [memory.get(n), now] for n, now in self._memory().items()},
        }

    async def _attack(self, where: Address, words: tuple[str, ...]) -> asyncio.subprocess.Process:
        command = ["-m", "benchmarks.hostility", HOSTILE, "--victim", OTHERS[0], *words]
        command += ["--rate", str(self.options.rate), "--seconds", str(self.options.seconds)]
        return await asyncio.create_subprocess_exec(
            sys.executable, *command, env=os.environ | where.environ(), stdout=asyncio.subprocess.PIPE
        )

    def _memory(self) -> dict[str, int]:
        """Of each process of the stack, MiB."""
        pids = {name: record.pid for name, record in self.cluster.processes().items()}
        return {name: psutil.Process(pid).memory_info().rss // 2**20 for name, pid in pids.items()}

    async def _granted(self, sent: list[crowds.Due], after: int, inbox: int) -> dict[str, crowds.Stages]:
        """Of all that were sent, once they are granted, or when nothing has changed for a while."""
        found: dict[str, crowds.Stages] = {}
        for _ in range(30):
            found = await crowds.stages(self.operator, after, inbox)
            if all(due.job_id in found for due in sent):
                break
            await asyncio.sleep(1.0)
        return found


@asynccontextmanager
async def _unread(state_dir: Path) -> AsyncIterator[Address]:
    """A broker of the same settings, with a stream for what is said in the control."""
    async with Servers(state_dir, ServerOptions(run=(NATS,))) as servers:
        connection = await connect(servers.nats_url, name="benchmark-control")
        await connection.jetstream().add_stream(StreamConfig(name="CONTROL", subjects=[CONTROL]))
        await close(connection)
        yield Address(servers.nats_url)


if __name__ == "__main__":
    main()
