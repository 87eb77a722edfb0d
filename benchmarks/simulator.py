"""`python -m benchmarks.simulator`: how many simulated jobs a second, on 10,000 devices, beside a baseline in the same run.

The fleet is 1,250 nodes of 8 like devices. Jobs come as a Poisson process at 0.9 of what the fleet can serve: gangs of 1 to 64
devices, run times lognormal (median 10 minutes, sigma 1.5, at the most 30 days), all from a seed. Every hour brings a burst of
twice the mean rate for 20 minutes, so that queues build up and drain.

`full` is what `baton simulate` runs: the production decider with every score, orders, exchanges and promises. `fast` is
`baton simulate --fast`. Both decide in cycles of `--cycle-s`, which is the command's default for so many jobs.
`--baseline PATH/jobsim.py` names another simulator to run on the same jobs: a module with
`simulate(jobs, nodes, per_node, policy)`, where a job is (submit_s, duration_s, devices, tenant). Each runs in a process of its
own; CPU time, peak resident memory.

Writes `benchmarks/results/simulator.json`.
"""

import argparse
import importlib.util
import json
import math
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.orders import fleet
from libs.core.scheduling.precedence import DEFAULT_RULE
from libs.simulation.policy.engine import CYCLE_S, KnownRunTime, SimulatedWorld, simulate
from libs.simulation.policy.measure import figures
from libs.simulation.policy.workload import WorkloadRow

PER_NODE = 8
LOAD = 0.9
WIDTHS = {1: 50, 2: 14, 4: 12, 8: 14, 16: 5, 32: 3, 64: 2}
"""Devices of a gang -> its part of the jobs, %."""
MEDIAN_S, SIGMA, LONGEST_S = 600.0, 1.5, 30 * 86_400.0
BURST_S, EVERY_S, BURST = 1200.0, 3600.0, 2.0


def workload(jobs: int, devices: int, load: float = LOAD, seed: int = 11) -> list[WorkloadRow]:
    """`jobs` rows that ask for `load` of the devices' time in the long run."""
    chance = random.Random(seed)
    widths, parts = list(WIDTHS), list(WIDTHS.values())
    mean_width = sum(width * part for width, part in WIDTHS.items()) / sum(parts)
    mean_s = MEDIAN_S * math.exp(SIGMA**2 / 2)
    rate = load * devices / (mean_width * mean_s)  # jobs per second
    calm = (EVERY_S - BURST * BURST_S) / (EVERY_S - BURST_S)
    rows, at_s = [], 0.0
    for i in range(jobs):
        now = BURST if at_s % EVERY_S < BURST_S else calm
        at_s += chance.expovariate(rate * now)
        took_s = min(LONGEST_S, chance.lognormvariate(math.log(MEDIAN_S), SIGMA))
        rows.append(WorkloadRow(i + 1, f"job-{i}", at_s, max(1.0, took_s), chance.choices(widths, parts)[0]))
    return rows


def run_one(
    what: str, jobs: int, nodes: int, baseline: Path | None, load: float, cycle_s: float = CYCLE_S
) -> dict[str, Any]:
    """One run in this process."""
    rows = workload(jobs, nodes * PER_NODE, load)
    inventories = fleet(nodes)
    simulate(rows[:200], inventories[:8], DEFAULT_RULE)  # compiles what is compiled at first use
    began = time.process_time()
    if what == "baseline":
        assert baseline is not None
        told = _baseline(baseline, rows, nodes)
    else:
        world = SimulatedWorld(knows=KnownRunTime.NOTHING, fast=what == "fast", cycle_s=cycle_s)
        told = figures(simulate(rows, inventories, DEFAULT_RULE, world))
    cpu_s = time.process_time() - began
    kept = ("ended", "jct_mean_s", "queueing_mean_s", "utilization_pct", "preemptions", "promises", "decisions")
    return {
        "jobs": jobs,
        "cpu_s": round(cpu_s, 1),
        "jobs_per_cpu_s": round(jobs / cpu_s, 1),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        **{name: told[name] for name in kept if name in told},
    }


def _baseline(path: Path, rows: Sequence[WorkloadRow], nodes: int) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("baseline", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    jobs = [(row.submit_s, row.duration_s, row.devices, "") for row in rows]
    told, _ = module.simulate(jobs, nodes, PER_NODE, "fifo-bf")
    return {"jct_mean_s": told["avg_jct_s"], "queueing_mean_s": told["avg_queue_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=int, default=250_000, help="jobs with full scoring; 0: none")
    parser.add_argument("--fast", type=int, default=1_000_000, help="jobs with the fast path; 0: none")
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--load", type=float, default=LOAD)
    parser.add_argument("--cycle-s", type=float, default=CYCLE_S, help="decide so often, s; 0: at each event")
    parser.add_argument("--baseline", type=Path, help="jobsim.py or the like")
    parser.add_argument("--baseline-jobs", type=int, default=20_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        what, jobs = asked.one.split(":")
        print(json.dumps(run_one(what, int(jobs), asked.nodes, asked.baseline, asked.load, asked.cycle_s)))
        return
    result: dict[str, Any] = {
        "machine": machine.describe(), "devices": asked.nodes * PER_NODE, "load": asked.load, "cycle_s": asked.cycle_s
    }  # fmt: skip
    runs = [("full", asked.full), ("fast", asked.fast)]
    if asked.baseline is not None:
        runs.insert(0, ("baseline", asked.baseline_jobs))
    for what, jobs in runs:
        if not jobs:
            continue
        shared = ["--nodes", str(asked.nodes), "--load", str(asked.load), "--cycle-s", str(asked.cycle_s)]
        shared += ["--baseline", str(asked.baseline)] if asked.baseline else []
        out = subprocess.run(
            [sys.executable, "-m", "benchmarks.simulator", "--one", f"{what}:{jobs}", *shared],
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip
        result[what] = json.loads(out)
        print(f"{what}: {result[what]}", flush=True)
    if "baseline" in result:
        for what in ("full", "fast"):
            if what in result:
                ratio = result[what]["jobs_per_cpu_s"] / result["baseline"]["jobs_per_cpu_s"]
                result[what]["rate_to_baseline"] = round(ratio, 2)
    print(f"written to {machine.write('simulator', result)}")


if __name__ == "__main__":
    main()
