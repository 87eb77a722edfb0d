"""`python -m benchmarks.overload`: ten times the sustainable rate for a minute, nine tenths of it from one team.

Phases on one stack, in one run:

1. a burst; half of its rate is called sustainable;
2. *base*: the other teams alone, at the rate that they will have under overload;
3. *overload*: the same, and the loud team at nine times the sustainable rate, from a process of its own
   (`benchmarks.crowd`): `raw` publishes without waiting for the broker, as an attacker would; `client` uses our client;
4. *aftermath*: the loud team is silent, and the others go on for as long as the crowd took, or until all that was stored has
   come to its end; then nobody sends, and what is left of the crowd drains alone;
5. *control*, with `--control`: base once more, while the same crowd publishes to another broker that nobody reads. What the
   others lose there is what the machine lacks (processor, disk), whoever handles the crowd.

A wait is counted from when a request was due (an open loop), so it has the way to the broker in it. Reported: the others' p99
in each phase and its ratio to base (aim: at most 2), the same by stage, whether every job of which a request was stored came to
its end (by id: a client that got no answer in time sends again, and the same request may be stored twice), memory and
processor of each service, and recovery: how long after the crowd's end the others had five seconds for the last time in which
more than one request of a hundred waited longer than twice the p99 of base.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from nats.js.api import StreamConfig

from benchmarks import crowds, machine
from benchmarks.crowd import CONTROL
from libs.bus.connect import close, connect
from libs.bus.creds import Address
from libs.client import Baton
from libs.embedded import ServerOptions, Servers
from libs.embedded.servers import NATS
from schemas import subjects

LOUD = "loud"
OTHERS = ("quiet-1", "quiet-2", "quiet-3")
_PROBE_S = 0.5
_SPAN_S = 5.0
"""Recovery is looked for in spans of this length."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of base and overload, s")
    parser.add_argument("--jobs", type=int, default=2000, help="of the burst that finds the sustainable rate")
    parser.add_argument("--rate", type=float, help="the sustainable rate, where it is known, jobs/s")
    parser.add_argument("--times", type=float, default=10.0, help="load, in sustainable rates")
    parser.add_argument("--crowd", choices=("raw", "users", "client"), default="raw")
    parser.add_argument("--control", action="store_true", help="the crowd once more, on a broker that nobody reads")
    parser.add_argument("--short", action="store_true", help="a few seconds, to see that it works; not for figures")
    parser.add_argument("--state-dir", type=Path, default=Path(".baton/bench-overload"))
    options = parser.parse_args()
    if options.short:
        options.seconds, options.jobs, options.times = 4.0, 200, 3.0
    asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> None:
    about = machine.describe()
    async with crowds.stack(options.state_dir, (LOUD, *OTHERS)) as (cluster, clients, operator):
        run = _Run(clients, operator, options.seconds)
        rate = options.rate or await crowds.sustainable({LOUD: clients[LOUD]}, operator, options.jobs)
        loud = rate * options.times * 0.9
        run.rates = {team: rate * options.times / 10 / len(OTHERS) for team in OTHERS}
        print(
            f"sustainable: {rate:.0f} jobs/s; others together {rate * options.times / 10:.0f}, the loud team {loud:.0f}"
        )
        result: dict[str, Any] = {"machine": about, "seconds": options.seconds, "times": options.times}
        result |= {"sustainable_jobs_per_s": round(rate, 1), "crowd": options.crowd}
        result["base"] = base = await run.phase("base")
        if options.control:
            async with _unread(options.state_dir / "control") as where:
                result["control"] = await run.phase("control", (where, "control", loud))
        result["overload"] = await run.phase("overload", (cluster.address(LOUD), options.crowd, loud))
    for name in ("control", "overload"):
        if name in result:
            ratio = result[name]["others"]["p99_ms"] / max(base["others"]["p99_ms"], 0.001)
            result[name]["p99_ratio"] = round(ratio, 2)
            print(f"{name}: p99 of the others {result[name]['others']['p99_ms']} ms, x{ratio:.2f} of base")
    for name in ("base", "control", "overload"):
        for stage, times in result.get(name, {}).get("stages", {}).items():
            print(f"{name:9} {stage}: p50 {times['p50_ms']} ms, p99 {times['p99_ms']} ms")
    result["aim_ratio"] = 2
    over = result["overload"]
    recovered = "not recovered" if over["recovery_s"] is None else f"recovered after {over['recovery_s']:g} s"
    again = f"{over['stored_again']} requests were stored again"
    print(f"lost: {over['lost']} jobs; {again}; {recovered}; all at its end after {over['drained_s']} s")
    print(f"written to {machine.write('overload', result)}" if not options.short else "short: nothing is written")
    if any(result[name]["lost"] for name in ("base", "control", "overload") if name in result):
        raise SystemExit("jobs of which a request was stored came to no end")


class _Run:
    """What the phases share."""

    def __init__(self, clients: dict[str, Baton], operator: Baton, seconds: float) -> None:
        self.clients, self.operator, self.seconds = clients, operator, seconds
        self.js = operator.nats.jetstream()
        self.rates: dict[str, float] = {}
        self.slow_ms = 0.0
        """Twice the p99 of base."""

    async def phase(self, name: str, crowd: tuple[Address, str, float] | None = None) -> dict[str, Any]:
        """`crowd`: where, how and at which rate it publishes meanwhile."""
        status = await self.operator.status()
        after, inbox = status.ledger_seq, await self._last(subjects.inbox_stream(status.pool))
        before, stored_before = await crowds.ended(self.operator), await self._last(subjects.REQUESTS)
        memory, used = _memory(), machine.cpu_by_process()
        most = dict(memory)
        watching = asyncio.create_task(_watch(most))
        process = await _crowd(*crowd, self.seconds) if crowd else None
        began = time.monotonic()
        stopped = began + self.seconds
        calm = asyncio.Event() if process is not None else None

        def over() -> bool:
            now = time.monotonic()
            return now > stopped + self.seconds or (now > stopped and (calm is None or calm.is_set()))

        submitting = asyncio.create_task(crowds.submit_open(self.clients, self.rates, over))
        await asyncio.sleep(self.seconds)
        cpu = {n: round((at - used.get(n, 0.0)) / self.seconds, 3) for n, at in machine.cpu_by_process().items()}
        ended = await crowds.ended(self.operator) - before
        stopped_us, offered = time.time_ns() // 1000, 0
        if process is not None and calm is not None:
            out, _ = await process.communicate()
            offered = int(out)
            stopped, stopped_us = time.monotonic(), time.time_ns() // 1000
            await self._drained(before - stored_before + await self._last(subjects.REQUESTS), calm)
        sent = await submitting
        stored = await self._stored() - stored_before
        asked = await self.js.consumer_info(subjects.REQUESTS, "admission")
        unanswered = (asked.num_pending or 0) + (asked.num_ack_pending or 0)
        own, (queued, _) = {(due.team, due.job_id) for due in sent}, await crowds.lives(self.operator, after)
        await crowds.rest(self.operator, before + len(own | queued) + unanswered)
        drained_s = time.monotonic() - stopped
        watching.cancel()
        queued, finished = await crowds.lives(self.operator, after)
        lost = {job_id for _, job_id in own | queued} - finished
        loud = sum(team == LOUD for team, _ in queued)
        found = await crowds.stages(self.operator, after, inbox)
        return self._summary(name, sent, found, stopped_us) | {
            "loud": crowds.spread([(s.granted_us - s.stored_us) / 1000 for s in found.values() if s.team == LOUD]),
            "loud_sent_per_s": round(offered / self.seconds, 1),
            "loud_stored_per_s": round(loud / self.seconds, 1),
            "ended_per_s": round(ended / self.seconds, 1),
            "cores": cpu,
            "lost": len(lost),
            "stored_again": stored - len(own | queued),
            "drained_s": round(drained_s, 1),
            "memory_mib": {n: [memory.get(n), most.get(n), now] for n, now in _memory().items()},
        }

    def _summary(
        self, name: str, sent: Sequence[crowds.Due], found: dict[str, crowds.Stages], stopped_us: int
    ) -> dict[str, Any]:
        pairs = [(due, found[due.job_id]) for due in sent if due.job_id in found]
        during = [(due, at) for due, at in pairs if due.due_us < stopped_us]
        seen = [
            (due, at) for due, at in during if at.admitted_us
        ]  # what was decided leaves the inbox after ten minutes

        def spread(begin: str, end: str, some: Sequence[tuple[crowds.Due, crowds.Stages]] = during) -> dict[str, float]:
            times = [(_time(due, at, begin), _time(due, at, end)) for due, at in some]
            return crowds.spread([(late - early) / 1000 for early, late in times])

        others = spread("due", "granted")
        if name == "base":
            self.slow_ms = 2 * others["p99_ms"]
        waits = [((due.due_us - stopped_us) / 1e6, (at.granted_us - due.due_us) / 1000) for due, at in pairs]
        return {
            "others": others,
            "stages": {
                "due -> request stored (client, broker)": spread("due", "stored"),
                "request stored -> admitted stored (admission)": spread("stored", "admitted", seen),
                "admitted stored -> grant stored (placement)": spread("admitted", "granted", seen),
            },
            "others_afterwards": spread("due", "granted", [p for p in pairs if p[0].due_us >= stopped_us]),
            "offered_by_others_per_s": round(len(during) / self.seconds, 1),
            "recovery_s": recovery_s(waits, self.slow_ms),
        }

    async def _stored(self) -> int:
        """Of all requests, once no more is being stored: by sequence, for what was answered is trimmed."""
        counted = -1
        while (now := await self._last(subjects.REQUESTS)) != counted:
            counted = now
            await asyncio.sleep(2.0)
        return counted

    async def _drained(self, ends: int, calm: asyncio.Event) -> None:
        """Waits until the queue is empty and about as much has ended as the crowd had stored, or for as long as the crowd took:
        the others go on meanwhile."""
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            waiting = (await self.js.consumer_info(subjects.REQUESTS, "admission")).num_pending
            if not waiting and await crowds.ended(self.operator) >= ends:
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(_SPAN_S)
        calm.set()

    async def _last(self, stream: str) -> int:
        return (await self.js.stream_info(stream)).state.last_seq


def recovery_s(waits: Sequence[tuple[float, float]], slow_ms: float) -> float | None:
    """Until when others waited long, in seconds from the crowd's end. `waits`: of each request when it was due, from there, and
    how long it waited, ms. None when they still did in the last span that was looked at."""
    spans: dict[int, list[bool]] = {}
    for at_s, ms in waits:
        if at_s >= 0:
            spans.setdefault(int(at_s / _SPAN_S), []).append(ms > slow_ms)
    slow = [number for number, some in spans.items() if sum(some) > len(some) / 100]
    if not slow:
        return 0.0
    return None if max(slow) == max(spans) else (max(slow) + 1) * _SPAN_S


def _time(due: crowds.Due, at: crowds.Stages, what: str) -> int:
    return due.due_us if what == "due" else int(getattr(at, f"{what}_us"))


async def _crowd(where: Address, mode: str, rate: float, seconds: float) -> asyncio.subprocess.Process:
    line = ["-m", "benchmarks.crowd", LOUD, "--mode", mode, "--rate", str(rate), "--seconds", str(seconds)]
    return await asyncio.create_subprocess_exec(
        sys.executable, *line, stdout=asyncio.subprocess.PIPE, env=os.environ | where.environ()
    )


@asynccontextmanager
async def _unread(state_dir: Path) -> AsyncIterator[Address]:
    """A broker of the same settings, with a stream for the control's crowd."""
    async with Servers(state_dir, ServerOptions(run=(NATS,))) as servers:
        connection = await connect(servers.nats_url, name="benchmark-control")
        await connection.jetstream().add_stream(StreamConfig(name="CONTROL", subjects=[CONTROL]))
        await close(connection)
        yield Address(servers.nats_url)


async def _watch(most: dict[str, int]) -> None:
    while True:
        for name, mib in _memory().items():
            most[name] = max(mib, most.get(name, 0))
        await asyncio.sleep(_PROBE_S)


def _memory() -> dict[str, int]:
    """Resident MiB of every process below this one, by service."""
    used: dict[str, int] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            line, size = process.cmdline(), process.memory_info().rss
        except psutil.Error:
            continue
        name = next((part.removeprefix("services.") for part in line if part.startswith("services.")), "")
        name = name or (Path(line[0]).name if line else "")
        used[name] = used.get(name, 0) + size // 2**20
    return used


if __name__ == "__main__":
    main()
