"""`python -m benchmarks.allocation`: how much of a cluster Baton's placement fills, in the experiment of FGD (USENIX ATC '23).

Runs `fgdsim.py`, an independent re-implementation of that experiment (1,213 nodes, 6,212 GPUs of Alibaba's trace; its
own books, so a wrong answer is seen), with `baton placer` as the placer: once for each list of pods and seed.

- `--mode inflate`, the published one: pods arrive until 130 % of the GPUs are asked for, none leaves, what does not fit is
  lost. Compared with the published means (`data/fgd_published.csv`, seeds 42..51) and fgdsim's own first-fit.
- `--mode replay`: pods come and go at their recorded times, on so few nodes that the peak demand exceeds them
  (`--pressure`, peak demand / capacity). FGD and first-fit run here too, by fgdsim, on the same nodes. Ten pods are half
  of the trace's GPU time, so a few seeds say little more than which of those found room.
- `--mode churn`: 8,000 pods drawn from the list arrive at random and stay for a random while (log-normal, whatever their
  size), about ten times as many as run at once, on one node in ten. `--pressure`: mean demand / capacity. FGD and
  first-fit meet the same pods. No pod weighs much here, so it tells more than the replay.

Controls: `--shuffle-names` (a placer that lives on the order of the node file shows it) and `--no-workload` (Baton learns
the mix from what arrives). Writes `benchmarks/results/allocation.json` (each mode and control its own part) and
`docs/img/placement-allocation.svg`.
"""

import argparse
import csv
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import chart, machine

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "benchmarks" / "data" / "fgd_published.csv"
IMAGE = ROOT / "docs" / "img" / "placement-allocation.svg"
FGDSIM = ROOT.parent / "shared" / "tools" / "fgdsim.py"
PLACER = shlex.join([str(Path(sys.executable).parent / "baton"), "placer"])
POLICIES = ("FGD", "FirstFit", "BestFit", "GpuPacking", "GpuClustering", "DotProd", "Random")
AT = ("100", "130")
CHURN_PODS = 8_000
CHURN_SCALE = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fgdsim", type=Path, default=FGDSIM, help="the simulator")
    parser.add_argument("--data", type=Path, help="folder of the openb csv files; default: data/openb beside tools")
    parser.add_argument("--placer", default=PLACER, help="command of the placer (JSON lines)")
    parser.add_argument("--lists", default="", help="e.g. default,gpuspec10; default: all at hand")
    parser.add_argument("--seeds", default="42-44", help="e.g. 42 or 42-51")
    parser.add_argument("--mode", choices=("inflate", "replay", "churn"), default="inflate")
    parser.add_argument(
        "--pressure", type=float, default=0.0, help="demand / capacity (replay: 1.5 at the peak; churn: 1.1)"
    )
    parser.add_argument("--shuffle-names", action="store_true", help="permute names and order of the nodes, per seed")
    parser.add_argument("--no-workload", action="store_true", help="do not tell the placer the mix of requests")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    machine.show_progress()
    about = machine.describe()
    lists = _lists(options)
    options.pressure = options.pressure or {"replay": 1.5, "churn": 1.1}.get(options.mode, 0.0)
    work = {"inflate": _inflations, "replay": _replays, "churn": _churns}[options.mode](options, lists)
    runs = _all(options, work)
    part = (_compared if options.mode == "inflate" else _replayed)(lists, runs)
    settings = {
        "seeds": options.seeds,
        "placer": options.placer.replace(str(ROOT) + os.sep, ""),
        "shuffled_names": options.shuffle_names,
        "told_the_mix": not options.no_workload,
    }
    if options.pressure:
        settings["pressure"] = options.pressure
    result = {**_earlier(), _part(options): {"machine": about, **settings, "lists": part}}
    print(f"written to {machine.write('allocation', result)}")
    if "inflate" in result:
        IMAGE.parent.mkdir(parents=True, exist_ok=True)
        IMAGE.write_text(_picture(result["inflate"]), encoding="utf-8")
        print(f"written to {IMAGE}")
    wrong = {key: n for run in runs for key, n in run["failures"].items() if key.startswith("invalid")}
    if wrong:
        raise SystemExit(f"wrong answers: {wrong}")


def _part(options: argparse.Namespace) -> str:
    """The part of the result that a run replaces: controls stand beside what they control."""
    name: str = options.mode
    return name + "_shuffled" * options.shuffle_names + "_untold" * options.no_workload


@dataclass(frozen=True, slots=True)
class Run:
    """One call of fgdsim. `policy` is one of its own, or empty for the placer."""

    workload: str
    seed: int
    policy: str = ""
    scale: float = 1.0


def _lists(options: argparse.Namespace) -> list[str]:
    if not options.fgdsim.is_file():
        sys.exit(f"there is no simulator at {options.fgdsim}: give its path with --fgdsim")
    options.data = options.data or options.fgdsim.resolve().parents[1] / "data" / "openb"
    found = sorted(p.stem.removeprefix("openb_pod_list_") for p in options.data.glob("openb_pod_list_*.csv"))
    if not found:
        sys.exit(f"there is no openb_pod_list_*.csv in {options.data}: give the folder with --data")
    asked = options.lists.split(",") if options.lists else sorted(found, key=lambda name: (name != "default", name))
    if missing := sorted(set(asked) - set(found)):
        sys.exit(f"no list {', '.join(missing)} in {options.data}; there are {', '.join(found)}")
    return asked


def _seeds(text: str) -> list[int]:
    spans = [part.partition("-") for part in text.split(",")]
    return [seed for low, _, high in spans for seed in range(int(low), int(high or low) + 1)]


def _inflations(options: argparse.Namespace, lists: Sequence[str]) -> list[Run]:
    return [Run(name, seed) for name in lists for seed in _seeds(options.seeds)]


def _replays(options: argparse.Namespace, lists: list[str]) -> list[Run]:
    nodes = _rows(options.data / "openb_node_list_gpu_node.csv")
    capacity = sum(int(n["gpu"]) for n in nodes)
    result: list[Run] = []
    for name in list(lists):
        peak = _peak_gpus(_rows(options.data / f"openb_pod_list_{name}.csv"))
        if peak == 0:
            print(f"{name}: has no times, left out")
            lists.remove(name)
            continue
        scale = capacity * options.pressure / peak
        print(f"{name}: peak demand {peak:.1f} GPUs; 1 in {scale:.0f} nodes, about {capacity / scale:.0f} GPUs")
        result += [
            Run(name, seed, policy, scale) for seed in _seeds(options.seeds) for policy in ("", "fgd", "firstfit")
        ]
    return result


def _churns(options: argparse.Namespace, lists: list[str]) -> list[Run]:
    return [
        Run(name, seed, policy, CHURN_SCALE)
        for name in lists
        for seed in _seeds(options.seeds)
        for policy in ("", "fgd", "firstfit")
    ]


def _churning(pods: list[dict[str, str]], capacity: float, pressure: float, seed: int, to: Path) -> Path:
    """A list of pods drawn from `pods`, with exponential gaps of 100 s on average, that stay for log-normal times (sigma 1)
    of such a mean that they ask for `pressure` x `capacity` (GPUs) at once."""
    rng = random.Random(seed)
    asked = fmean(int(p["num_gpu"]) * int(p["gpu_milli"] or 0) / 1000 for p in pods)
    mean_s = 100 * pressure * capacity / asked
    now, rows = 0.0, []
    for k in range(CHURN_PODS):
        now += rng.expovariate(1 / 100)
        stays = mean_s * rng.lognormvariate(-0.5, 1.0)
        pod = pods[rng.randrange(len(pods))]
        times = {"creation_time": str(int(now)), "deletion_time": str(int(now + max(1.0, stays)))}
        rows.append({**pod, "name": f"churn-{k:05}", **times})
    with to.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return to


def _peak_gpus(pods: list[dict[str, str]]) -> float:
    """The most GPUs asked for at once; 0 when the list has no times."""
    if not pods or "creation_time" not in pods[0]:
        return 0.0
    changes: list[tuple[int, int]] = []
    for pod in pods:
        if not pod["creation_time"] or not pod["deletion_time"]:
            continue
        milli, began = int(pod["num_gpu"]) * int(pod["gpu_milli"]), int(float(pod["creation_time"]))
        changes += [(began, milli), (max(int(float(pod["deletion_time"])), began + 1), -milli)]
    now = peak = 0
    for _, milli in sorted(changes):
        now += milli
        peak = max(peak, now)
    return peak / 1000


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _all(options: argparse.Namespace, work: list[Run]) -> list[dict[str, Any]]:
    """All runs, `--processes` at a time; each in simulator processes of its own."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as pool:
        waiting = {pool.submit(_simulate, options, run, Path(folder)): run for run in work}
        for done in as_completed(waiting):
            run, found = waiting[done], done.result()
            runs.append(found)
            print(f"[{len(runs)}/{len(work)}] {run.workload} seed {run.seed} {run.policy or 'placer'}: {_line(found)}")
    return sorted(runs, key=lambda r: (r["workload"], r["policy"], r["seed"]))


def _simulate(options: argparse.Namespace, run: Run, folder: Path) -> dict[str, Any]:
    out = folder / f"{run.workload}-{run.seed}-{run.policy or 'placer'}.json"
    nodes = options.data / "openb_node_list_gpu_node.csv"
    if options.shuffle_names:
        nodes = _shuffled(nodes, run.seed, out.with_suffix(".csv"))
    pods = options.data / f"openb_pod_list_{run.workload}.csv"
    if options.mode == "churn":
        gpus = sum(int(node["gpu"]) for node in _rows(nodes)) / run.scale
        pods = _churning(_rows(pods), gpus, options.pressure, run.seed, out.with_suffix(".pods.csv"))
    command = [sys.executable, str(options.fgdsim), "--nodes", str(nodes), "--seeds", str(run.seed)]
    command += ["--pods", str(pods), "--json", str(out), "--timeout", "180", "--scale", str(run.scale)]
    command += ["--mode", "inflate" if options.mode == "inflate" else "replay"]
    command += ["--policy", run.policy] if run.policy else ["--placer", options.placer]
    command += ["--no-workload"] if options.no_workload else []
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=_alone())
    if ended.returncode:
        raise SystemExit(f"{shlex.join(command)}\nended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return {**found, "workload": run.workload, "policy": run.policy or "placer"}


def _alone() -> dict[str, str]:
    """One thread a process, so that two at a time do not measure each other."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def _shuffled(nodes: Path, seed: int, to: Path) -> Path:
    """A copy of the node list in which names and order tell nothing of the kind of a node."""
    rows = _rows(nodes)
    rng = random.Random(seed)
    names = [row["sn"] for row in rows]
    rng.shuffle(names)
    rows = [{**row, "sn": name} for row, name in zip(rows, names, strict=True)]
    rng.shuffle(rows)
    with to.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return to


def _line(found: dict[str, Any]) -> str:
    if "curve" in found:
        shown = ", ".join(f"{x} %: {found['curve'][x][0]:.2f} allocated" for x in AT)
    else:
        shown = f"{found['gpu_time_refused']:.2f} % of GPU time refused"
    return f"{shown}, failures {found['failures']}, mean {found['latency_ms']['mean']} ms"


def _compared(lists: Sequence[str], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Per list: the means, the published ones, and what is better by how many points."""
    published: dict[tuple[str, str, str, str], float] = {
        (r["measure"], r["arrived"], r["list"], r["policy"]): float(r["percent"]) for r in _rows(PUBLISHED)
    }
    result: dict[str, Any] = {}
    for name in lists:
        mine = [r for r in runs if r["workload"] == name]
        row: dict[str, Any] = {"seeds": [r["seed"] for r in mine]}
        for column, measure in enumerate(("allocation", "fragmentation")):
            for x in AT:
                values = [r["curve"][x][column] for r in mine]
                peers = {p: published[measure, x, name, p] for p in POLICIES if (measure, x, name, p) in published}
                row[f"{measure}_{x}"] = {
                    "baton": round(fmean(values), 2),
                    "baton_by_seed": [round(v, 2) for v in values],
                    **peers,
                }
        for x in AT:
            at = row[f"allocation_{x}"]
            row[f"points_over_{x}"] = {p: round(at["baton"] - at[p], 2) for p in ("FGD", "FirstFit") if p in at}
        row.update(_answers(mine))
        result[name] = row
        print(f"{name}: {row['allocation_100']['baton']} % at 100, over {row['points_over_100']}")
    return result


def _replayed(lists: Sequence[str], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Per list and policy: means over the seeds, which are samples of nodes as well."""
    result: dict[str, Any] = {}
    for name in lists:
        result[name] = {}
        for policy in ("placer", "fgd", "firstfit"):
            mine = [r for r in runs if r["workload"] == name and r["policy"] == policy]
            keys = ("alloc_time_avg", "demand_time_avg", "frag_time_avg", "gpu_time_refused")
            row = {key: round(fmean(r[key] for r in mine), 3) for key in keys}
            refused = [round(r["gpu_time_refused"], 2) for r in mine]
            label = {"placer": "baton", "fgd": "FGD", "firstfit": "FirstFit"}[policy]
            result[name][label] = {**row, "refused_by_seed": refused, **_answers(mine)}
            print(f"{name} {label}: {row}")
    return result


def _answers(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Right, wrong and missed answers, and how long they took. `missed`: no answer where some node had room."""
    failures = [r["failures"] for r in runs]
    return {
        "pods": sum(r["pods"] for r in runs),
        "missed": sum(f.get("missed", 0) for f in failures),
        "invalid": sum(n for f in failures for key, n in f.items() if key.startswith("invalid")),
        "no_room": sum(f.get("no-room", 0) for f in failures),
        "latency_ms": {
            "mean": round(fmean(r["latency_ms"]["mean"] for r in runs), 4),
            "p50": round(fmean(r["latency_ms"]["p50"] for r in runs), 4),
            "p99": round(max(r["latency_ms"]["p99"] for r in runs), 4),
            "max": round(max(r["latency_ms"]["max"] for r in runs), 3),
        },
    }


def _earlier() -> dict[str, Any]:
    """What an earlier run of the other mode has written."""
    path = machine.RESULTS / "allocation.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _picture(part: dict[str, Any]) -> str:
    rows = list(part["lists"])

    def panel(x: float, measure: str, caption: str, unit: str) -> str:
        found = [part["lists"][name][measure] for name in rows]
        marks = [chart.Marks("Baton", [f["baton"] for f in found], strong=True)]
        marks += [chart.Marks(p, [f.get(p) for f in found]) for p in POLICIES]
        return chart.dots(x, 56, 600, caption, unit, rows=rows, marks=marks)

    left = panel(0, "allocation_100", "GPUs allocated when 100 % have been asked for", "% of GPUs; more is better")
    right = panel(
        610, "fragmentation_100", "Free GPUs that the next job could not use (F)", "% of GPUs; less is better"
    )
    title = (
        f"Placement on Alibaba's openb trace (others: published means, FirstFit: fgdsim; Baton: seeds {part['seeds']})"
    )
    return chart.page(1220, 56 + chart.dots_height(len(rows)) + 10, title, [left, right])


if __name__ == "__main__":
    main()
