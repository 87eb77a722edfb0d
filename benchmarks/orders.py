"""`python -m benchmarks.orders --data FOLDER`: the simulator's orders on published traces, beside the figures to beat.

`--data` holds `muri/trace1.jobs.csv`, `muri/trace3.jobs.csv` and `itp/cluster02.csv`, `03`, `05`; none of them is in this
repository. `--held-out` runs other traces instead, on which no knob was ever set: `muri/trace2` and `4`, Muri's traces with
all jobs submitted at once (`trace1_pr.jobs.csv`), and `itp/cluster06.csv` and `01`. The production decider runs each trace to
its end, in virtual time, with 30 s of work lost per preempted device. Figures to beat: for Muri's traces the published mean
completion times (SIGCOMM '22, Figs. 9 and 10), for the ITP clusters the mean queueing time under first-in-first-out with
greedy backfill, and the p99 queueing time of gangs of eight and more under strict first-in-first-out (both by the baseline
simulator, `jobsim.py`, which migrates for free and loses nothing).

Writes `benchmarks/results/orders.json`. `--only trace1:nothing` runs one line.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.cli.tracefile import read_file
from libs.core.scheduling.precedence import DEFAULT_RULE
from libs.simulation.policy.engine import KnownRunTime, SimulatedWorld, simulate
from libs.simulation.policy.measure import figures
from libs.simulation.policy.workload import WorkloadRow
from schemas.resources import Device, Inventory

RESULT = Path(__file__).parent / "results" / "orders.json"


@dataclass(frozen=True, slots=True)
class PublishedTrace:
    """A trace, the nodes of eight that it runs on, and what to stay below: by what is known, of `field`."""

    file: str
    nodes: int
    field: str
    below: Mapping[str, float]
    gangs_below: float | None = None


TRACES = {
    "trace1": PublishedTrace(
        "muri/trace1.jobs.csv", 8, "jct_mean_s", {"nothing": 1_823_179, "progress": 999_744, "durations": 980_141}
    ),
    "trace3": PublishedTrace(
        "muri/trace3.jobs.csv", 8, "jct_mean_s", {"nothing": 347_213, "progress": 188_722, "durations": 185_022}
    ),
    "itp02": PublishedTrace(
        "itp/cluster02.csv", 8, "queueing_mean_s", {"nothing": 41_786, "progress": 22_982}, 6_484_317
    ),
    "itp03": PublishedTrace(
        "itp/cluster03.csv", 10, "queueing_mean_s", {"nothing": 339_007, "progress": 154_094}, 4_817_427
    ),
    "itp05": PublishedTrace("itp/cluster05.csv", 8, "queueing_mean_s", {"nothing": 8_142, "progress": 4_478}, 105_666),
}


def _muri(file: str, better: float, srsf: float) -> PublishedTrace:
    """At most 5 % above the better of Tiresias and Themis, and 2 % above SRSF."""
    known = {"nothing": round(1.05 * better), "progress": round(1.02 * srsf), "durations": round(1.02 * srsf)}
    return PublishedTrace(f"muri/{file}.jobs.csv", 8, "jct_mean_s", known)


def _itp(file: str, nodes: int, greedy: float, strict: float) -> PublishedTrace:
    """As cluster 03: 0.55 and 0.25 of first-in-first-out with greedy backfill."""
    known = {"nothing": round(0.55 * greedy), "progress": round(0.25 * greedy)}
    return PublishedTrace(f"itp/{file}.csv", nodes, "queueing_mean_s", known, strict)


HELD_OUT = {
    "trace2": _muri("trace2", 4_628_172, 2_213_950),
    "trace4": _muri("trace4", 994_971, 487_167),
    "trace1-at-once": _muri("trace1_pr", 3_314_303, 1_801_860),
    "trace2-at-once": _muri("trace2_pr", 10_555_502, 3_384_600),
    "trace3-at-once": _muri("trace3_pr", 1_502_768, 798_058),
    "trace4-at-once": _muri("trace4_pr", 2_271_053, 1_218_502),
    "itp06-8": _itp("cluster06", 8, 512_975, 2_841_355),
    "itp06-10": _itp("cluster06", 10, 233_438, 1_275_198),
    "itp01-8": _itp("cluster01", 8, 82_412, 206_409),
}


def fleet(nodes: int, per_node: int = 8) -> list[Inventory]:
    """Nodes of like devices."""
    return [
        Inventory(
            node=f"node-{i}",
            simulated=True,
            devices=tuple(
                Device(id=f"node-{i}-gpu{k}", index=k, model="V100", memory_mib=32_768) for k in range(per_node)
            ),
        )
        for i in range(nodes)
    ]


def measure(data: Path, name: str, knows: KnownRunTime) -> dict[str, Any]:
    """One trace under the simulator's default order."""
    trace = (TRACES | HELD_OUT)[name]
    jobs, _ = read_file(data / trace.file, 0)
    rows = [WorkloadRow(j.line, j.key, j.submit_s, j.duration_s, j.devices) for j in jobs]
    began = time.process_time()
    told = figures(simulate(rows, fleet(trace.nodes), DEFAULT_RULE, SimulatedWorld(knows=knows)))
    told["cpu_s"] = round(time.process_time() - began, 1)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", action="append", help="TRACE:KNOWS; may be repeated")
    parser.add_argument("--held-out", action="store_true", help="traces on which no knob was set, if they are there")
    asked = parser.parse_args()
    traces = HELD_OUT if asked.held_out else TRACES
    lines = [(name, known) for name, trace in traces.items() for known in trace.below]
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, known in lines:
        if asked.only and f"{name}:{known}" not in asked.only:
            continue
        trace = traces[name]
        told = measure(asked.data, name, KnownRunTime(known))
        found[f"{name}:{known}"] = told
        verdict = "below" if told[trace.field] <= trace.below[known] else "ABOVE"
        gangs = told["large_gang_queueing_p99_s"]
        if trace.gangs_below is not None:
            verdict += f", gangs {gangs:,.0f} of {trace.gangs_below:,.0f}"
        print(
            f"{name:7} {known:10} {trace.field} {told[trace.field]:>12,.0f} of {trace.below[known]:>12,.0f}: {verdict}; "
            f"p99 JCT {told['jct_p99_s']:,.0f}, longest wait {told['wait_max_s']:,.0f}, promises kept "
            f"{told['promises_kept_pct']} % of {told['promises']}, slack {told['promise_slack_p50']}",
            flush=True,
        )
        RESULT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
