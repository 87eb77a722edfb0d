"""`python -m benchmarks.overload`: ten times the sustainable rate for a minute, nine tenths of it from one team.

Three phases on one stack, in one run:

1. a burst; half of its rate is called sustainable;
2. *base*: the other teams alone, at the rate that they will have under overload: submit-to-granted of each;
3. *overload*: the same, and the loud team at nine times the sustainable rate.

Reported: the other teams' p99 in both phases and their ratio (aim: at most 2), whether every job that was stored came to an
end, memory of each service before, at the most and after, and how long after the last submit the other teams' jobs waited as
little as before (recovery).
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import crowds, machine
from libs.client import Baton

LOUD = "loud"
OTHERS = ("quiet-1", "quiet-2", "quiet-3")
_PROBE_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of base and overload, s")
    parser.add_argument("--jobs", type=int, default=2000, help="of the burst that finds the sustainable rate")
    parser.add_argument("--times", type=float, default=10.0, help="load, in sustainable rates")
    parser.add_argument("--short", action="store_true", help="a few seconds, to see that it works; not for figures")
    parser.add_argument("--state-dir", type=Path, default=Path(".baton/bench-overload"))
    options = parser.parse_args()
    if options.short:
        options.seconds, options.jobs, options.times = 4.0, 200, 3.0
    asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> None:
    about = machine.describe()
    async with crowds.stack(options.state_dir, (LOUD, *OTHERS)) as (_, clients, operator):
        rate = await crowds.sustainable({LOUD: clients[LOUD]}, operator, options.jobs)
        total = rate * options.times
        others = {team: total / 10 / len(OTHERS) for team in OTHERS}
        print(f"sustainable: {rate:.0f} jobs/s; others together {total / 10:.0f}, the loud team {total * 0.9:.0f}")
        base = await _phase(clients, operator, others, options.seconds)
        over = await _phase(clients, operator, {**others, LOUD: total * 0.9}, options.seconds)
    ratio = over["others"]["p99_ms"] / max(base["others"]["p99_ms"], 0.001)
    result = {
        "machine": about,
        "sustainable_jobs_per_s": round(rate, 1),
        "base": base,
        "overload": over,
        "p99_ratio_of_others": round(ratio, 2),
        "aim_ratio": 2,
    }
    print(
        f"others: p99 {base['others']['p99_ms']} ms at base, {over['others']['p99_ms']} ms under overload: x{ratio:.2f}"
    )
    print(
        f"lost: {over['lost']}; recovered after {over['recovery_s']} s; at the end of all after {over['drained_s']} s"
    )
    print(f"written to {machine.write('overload', result)}" if not options.short else "short: nothing is written")
    if base["lost"] or over["lost"]:
        raise SystemExit("jobs that were stored came to no end")


async def _phase(clients: dict[str, Baton], operator: Baton, rates: dict[str, float], seconds: float) -> dict[str, Any]:
    after, before, memory = (await operator.status()).ledger_seq, await crowds.ended(operator), _memory()
    used = machine.cpu_by_process()
    most = dict(memory)
    watching = asyncio.create_task(_watch(most))
    sent = await crowds.submit_at(clients, rates, seconds)
    stopped_us, stopped = time.time_ns() // 1000, time.monotonic()
    cpu = {name: round((at - used.get(name, 0.0)) / seconds, 3) for name, at in machine.cpu_by_process().items()}
    ended_meanwhile = await crowds.ended(operator) - before
    ends = await crowds.rest(operator, before + sum(sent.values()))
    drained_s = time.monotonic() - stopped
    watching.cancel()
    found = await crowds.granted(operator, after)
    of_others = [job for job in found if job.team != LOUD]
    waits = [job.wait_ms for job in of_others]
    slow = machine.quantile(waits, 0.5) * 2
    late = [job.submitted_us + job.wait_ms * 1000 for job in of_others if job.wait_ms > slow]
    return {
        "offered": {team: round(count / seconds, 1) for team, count in sent.items()},
        "others": crowds.spread(waits),
        "loud": crowds.spread([job.wait_ms for job in found if job.team == LOUD]),
        "ended_per_s": round(ended_meanwhile / seconds, 1),
        "cores": cpu,
        "lost": before + sum(sent.values()) - ends,
        "drained_s": round(drained_s, 1),
        "recovery_s": round(max(0.0, (max(late, default=0) - stopped_us) / 1e6), 1),
        "memory_mib": {name: [memory.get(name), most.get(name), now] for name, now in _memory().items()},
    }


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
