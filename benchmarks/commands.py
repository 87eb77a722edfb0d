"""`python -m benchmarks.commands`: what one team's commands at a rate cost another team's lone jobs.

A quiet team submits one job after the other, each when the one before has ended. For each kind of command
(`benchmarks.hostility.COMMANDS`), in turns: a while alone, then a while in which another team, from a process of its own, sends
that kind at a rate. Each kind has a stack of its own.

Reported for each kind: from before the quiet team's submit until the ledger has its job running, alone and in the attack, and
the ratio of the two p99 (aim: at most 2); how many of its jobs did not run; processor of each service.
"""

import argparse
import asyncio
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import crowds, machine
from benchmarks.hostility import COMMANDS
from libs.cli.launch import LocalStack
from libs.client import Baton, ClientError
from libs.ledger.reader import LedgerReader
from schemas.ledger import AttemptRunning
from schemas.subjects import REQUESTS

HOSTILE, QUIET = "hostile", "quiet"
AIM = 2.0
_BETWEEN_S = 0.02
_LIMIT_S = 60.0
_REST_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each attack, s; half of it without")
    parser.add_argument("--turns", type=int, default=2, help="of each kind")
    parser.add_argument("--rate", type=float, default=300.0, help="commands/s")
    parser.add_argument("--kind", choices=list(COMMANDS), action="append", help="these alone")
    parser.add_argument("--state-dir", type=Path, default=Path(".baton/bench-commands"))
    parser.add_argument("--short", action="store_true", help="a few seconds, to see that it works; not for figures")
    options = parser.parse_args()
    if options.short:
        options.seconds, options.turns, options.kind = 2.0, 1, options.kind or [next(iter(COMMANDS))]
    machine.show_progress()
    asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> None:
    result: dict[str, Any] = {"machine": machine.describe(), "commands_per_s": options.rate, "aim_ratio": AIM}
    result["kinds"] = kinds = {}
    for kind in options.kind or COMMANDS:
        shutil.rmtree(options.state_dir, ignore_errors=True)
        async with crowds.stack(options.state_dir, (HOSTILE, QUIET)) as (cluster, clients, operator):
            run = _Run(cluster, clients[QUIET], operator, options)
            await run.alone()  # warm
            run.waits.clear()
            for _ in range(options.turns):
                await run.alone()
                await run.attacked(kind)
            kinds[kind] = found = run.found()
            print(f"{kind}: {found}")
    if not options.short:
        print(f"written to {machine.write('commands', result)}")


class _Run:
    def __init__(self, cluster: LocalStack, quiet: Baton, operator: Baton, options: argparse.Namespace) -> None:
        self.cluster, self.quiet, self.operator, self.options = cluster, quiet, operator, options
        self.waits: dict[str, list[float]] = {}
        self.lost = 0
        self.cores: dict[str, float] = {}

    async def alone(self) -> None:
        await self._lone("alone", self.options.seconds / 2)

    async def attacked(self, kind: str) -> None:
        seconds = self.options.seconds
        command = ["-m", "benchmarks.hostility", HOSTILE, "--victim", QUIET, "--kind", kind]
        command += ["--rate", str(self.options.rate), "--seconds", str(seconds)]
        env = os.environ | self.cluster.address(HOSTILE).environ()
        attack = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=env, stdout=asyncio.subprocess.DEVNULL
        )
        used, began = machine.cpu_by_process(), time.monotonic()
        await self._lone("attacked", seconds)
        took_s = time.monotonic() - began
        self.cores = {n: round((at - used.get(n, 0.0)) / took_s, 2) for n, at in machine.cpu_by_process().items()}
        await attack.wait()
        await self._rest()

    async def _lone(self, phase: str, seconds: float) -> None:
        """One job after the other."""
        after, until, sent = (await self.operator.status()).ledger_seq, time.monotonic() + seconds, dict[str, int]()
        while time.monotonic() < until:
            at_us = time.time_ns() // 1000
            try:
                job = await self.quiet.submit(crowds.noop(), give_up_s=_LIMIT_S, answer_s=_LIMIT_S)
                sent[job.job_id] = at_us
                await self.quiet.wait(job.job_id, timeout_s=_LIMIT_S)
            except ClientError as error:
                print(f"a lone job: {error}")
                self.lost += 1
            await asyncio.sleep(_BETWEEN_S)
        at = await _began(self.operator, after)
        self.waits.setdefault(phase, []).extend(
            (at[job] - sent_us) / 1000 for job, sent_us in sent.items() if job in at
        )

    async def _rest(self) -> None:
        """Until every request is answered, or for a while: who asks in vain may wait for long."""
        until = time.monotonic() + _REST_S
        while time.monotonic() < until:
            reads = await self.operator.nats.jetstream().consumer_info(REQUESTS, "admission")
            if not reads.num_pending and not reads.num_ack_pending:
                return
            await asyncio.sleep(0.1)

    def found(self) -> dict[str, Any]:
        alone, attacked = (crowds.spread(self.waits.get(phase, [])) for phase in ("alone", "attacked"))
        ratio = round(attacked["p99_ms"] / max(alone["p99_ms"], 0.001), 2)
        return {"alone": alone, "attacked": attacked, "p99_ratio": ratio, "lost": self.lost, "cores": self.cores}


async def _began(operator: Baton, after: int) -> dict[str, int]:
    """Job -> when a record after sequence `after` said first that it runs, the broker's clock, us."""
    reader, found = LedgerReader(operator.nats.jetstream(), operator.place.pool), dict[str, int]()
    async for entries in reader.read_to(await reader.last_seq()):
        for entry in (entry for entry in entries if entry.valid and entry.seq > after):
            for event in entry.record.events:
                if isinstance(event, AttemptRunning):
                    found.setdefault(event.job_id, entry.time_us)
    await reader.close()
    return found


if __name__ == "__main__":
    main()
