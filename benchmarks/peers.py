"""`./dev bench --peers`: Baton beside other schedulers, in one run on this machine, in turns.

    ./dev bench --peers --folder PEERS --python PEERS_PYTHON --rounds 5 --require hyperqueue --require slurm

PEERS is a folder with `<name>_bench.py` for HyperQueue, Slurm, Dask and Ray (or set BATON_PEERS): each starts its system with
fake devices and prints one JSON line. PEERS_PYTHON is an interpreter that has their packages (or BATON_PEERS_PYTHON; without,
this one).
Who is not installed is left out, and named; with `--require NAME` that is an error.

Everybody gets the same cluster, 4 nodes of 8 devices, and jobs of one device. Each round has a turn of everybody, one
after the other and each in processes of its own, and begins with another one. A turn is two measurements: `--jobs` jobs at
once (jobs/s), and `--idle` jobs one at a time on the idle cluster (submit to start). Ratios are of the same round, and
their median is what counts. Steal is what the hypervisor took of the processors; above 5 % a figure says little. Results go to
`benchmarks/results/peers.json`, and are drawn in `docs/img/peers.svg` (`--draw`: from the results that are there). Fails when a
ledger does not verify, or a bill is not its integral.

Baton's turns leave their folders until all rounds are over: on an ext4 without a journal each file that is made costs more for
minutes after others were removed (30 us, 70 to 170 after 4,800), whoever removed them, and the next turn would pay for that.

What each does for a job: baton-process, hyperqueue and slurm start a process (Baton's behind full walls, fsynced and billed);
baton-timer, dask and ray start none. HyperQueue, Dask and Ray keep nothing through a crash.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import chart, machine

ROUNDS = 5
STEAL = 0.05
IMAGE = Path(__file__).resolve().parent.parent / "docs" / "img" / "peers.svg"
SYSTEMS = ("baton-process", "baton-timer", "hyperqueue", "slurm", "dask", "ray")
_TURN_S = 1200
_FIGURES = ("jobs_per_s", "idle_p50_ms", "idle_p99_ms")

Figures = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """Another scheduler: the arguments of its script for both measurements, and how it is known to be here."""

    rate: str
    idle: str
    module: str = ""
    program: str = ""
    most_idle: int = 10**9
    """Of one that needs a second for each."""


PEERS: Mapping[str, Peer] = {
    "hyperqueue": Peer("--mode single --nodes 4", "--mode latency --nodes 4", module="hyperqueue"),
    "slurm": Peer(
        "--mode single --nodes 4 --sched tuned", "--mode latency --nodes 4 --sched tuned_nodefer",
        program="slurmctld", most_idle=20,
    ),
    "dask": Peer("--mode single --nodes 4", "--mode latency --nodes 4", module="distributed"),
    "ray": Peer("--mode task --nodes 4", "--mode latency --nodes 4 --per-job 1", module="ray"),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=os.environ.get("BATON_PEERS"), help="with the peers' scripts")
    parser.add_argument(
        "--python", default=os.environ.get("BATON_PEERS_PYTHON", sys.executable), help="that has the peers' packages"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs at once")
    parser.add_argument("--idle", type=int, default=100, help="jobs one at a time")
    parser.add_argument("--require", action="append", default=[], metavar="NAME", help="fail when this one is absent")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=SYSTEMS)
    parser.add_argument("--out", default="peers", help="name of the result; only `peers` is drawn")
    parser.add_argument("--draw", action="store_true", help="draw the results that are there, and run nothing")
    options = parser.parse_args(arguments)
    if options.draw:
        IMAGE.write_text(picture(json.loads((machine.RESULTS / "peers.json").read_text())))
        return
    if options.rounds < 1 or options.jobs < 1 or options.idle < 1:
        parser.error("--rounds, --jobs and --idle are at least 1")
    if unknown := set(options.require) - set(SYSTEMS):
        parser.error(f"--require: {', '.join(sorted(unknown))} is not known; there are {', '.join(SYSTEMS)}")
    here, absent = _present(options.folder, options.python)
    here = [name for name in here if not options.only or name in options.only]
    if missing := [name for name in options.require if name not in here]:
        raise SystemExit(
            "required and absent: " + "; ".join(f"{one}: {absent.get(one, 'left out')}" for one in missing)
        )
    for name, why in absent.items():
        print(f"without {name}: {why}")
    about = machine.describe()
    with tempfile.TemporaryDirectory(prefix="peers-") as within:
        options.within = within
        rounds = [
            _round(options, here[number % len(here) :] + here[: number % len(here)]) for number in range(options.rounds)
        ]
    result = {"machine": about, "cluster": "4 nodes of 8 devices, one device a job", "absent": absent, **report(rounds)}
    print(table(result))
    print(f"written to {machine.write(options.out, result)}")
    if options.out == "peers" and not result["faults"]:
        IMAGE.write_text(picture(result))
    if result["faults"]:
        raise SystemExit("; ".join(result["faults"]))


def _present(folder: Path | str | None, python: str) -> tuple[list[str], dict[str, str]]:
    """Who can be run here, and why the others cannot."""
    here, absent = ["baton-process", "baton-timer"], {}
    for name, peer in PEERS.items():
        if folder is None or not (Path(folder) / f"{name}_bench.py").is_file():
            absent[name] = f"no {name}_bench.py: give the peers' folder (--folder, or BATON_PEERS)"
        elif peer.program and shutil.which(peer.program) is None:
            absent[name] = f"{peer.program} is not installed"
        elif peer.module and subprocess.run([python, "-c", f"import {peer.module}"], capture_output=True).returncode:
            absent[name] = f"{Path(python).name} has no {peer.module} (--python, or BATON_PEERS_PYTHON)"
        else:
            here.append(name)
    return here, absent


def _round(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Figures]:
    found = {}
    for name in names:
        before = _ticks()
        found[name] = _baton(options, name) if name.startswith("baton-") else _peer(options, name)
        found[name]["host_steal"] = round(steal(before, _ticks()), 4)
        print(
            f"{name}: {json.dumps({key: found[name].get(key) for key in (*_FIGURES, 'host_steal', 'error')})}",
            flush=True,
        )
    return found


def _baton(options: argparse.Namespace, name: str) -> Figures:
    turn = ["--kind", name.removeprefix("baton-"), "--jobs", str(options.jobs), "--idle", str(options.idle)]
    return _told([sys.executable, "-m", "benchmarks.peer_turn", *turn, "--within", options.within])


def _peer(options: argparse.Namespace, name: str) -> Figures:
    peer, script = PEERS[name], [options.python, str(Path(options.folder) / f"{name}_bench.py")]
    rate = _told([*script, *peer.rate.split(), "--jobs", str(options.jobs)])
    idle = _told([*script, *peer.idle.split(), "--jobs", str(min(options.idle, peer.most_idle))])
    if error := rate.get("error") or idle.get("error"):
        return {"error": error}
    return {
        "version": rate.get("version"),
        "durable": rate.get("durable", False),
        "jobs_per_s": rate["jobs_per_s"],
        "idle_p50_ms": idle["p50_ms"],
        "idle_p99_ms": idle["p99_ms"],
        "cpu_ms_per_job": round(1000 * sum(rate["cpu_s"].values()) / max(1, rate["done"]), 3),
    }


def _told(command: list[str]) -> Figures:
    """The JSON of a command's last line; `error` when there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TURN_S)
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return told if isinstance(told, dict) else {"error": f"printed {told!r}"}
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_TURN_S} s"}
    except (IndexError, ValueError):
        return {"error": f"printed no figures, ended with {done.returncode}: {done.stderr.strip()[-400:]}"}


def _ticks() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of all processors; zeros where there is no /proc."""
    try:
        return [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return [0] * 8


def steal(before: Sequence[int], after: Sequence[int]) -> float:
    """The share of the processors' time that the hypervisor took between two readings."""
    return (after[7] - before[7]) / max(1, sum(after) - sum(before))


def report(rounds: Sequence[Mapping[str, Figures]]) -> dict[str, Any]:
    """What all rounds say together: of each system its medians and rounds, of each pair with Baton the rounds' ratios.

    `rounds`: name -> figures, one for each round. A turn that failed has `error`, and counts in no median.
    """
    names = [name for name in SYSTEMS if any(name in one for one in rounds)]
    systems = {}
    for name in names:
        turns = [one[name] for one in rounds if name in one]
        good = [turn for turn in turns if "error" not in turn]
        figures = {what: _median([turn[what] for turn in good]) for what in _FIGURES}
        systems[name] = {**figures, "host_steal": _median([turn["host_steal"] for turn in turns]), "rounds": turns}
    ratios = {}
    for own in ("baton-process", "baton-timer"):
        for other in names:
            pairs = [(one[own], one[other]) for one in rounds if _good(one, own) and _good(one, other)]
            if other != own and pairs:
                ratios[f"{own}/{other}"] = {what: _ratios(pairs, what) for what in _FIGURES}
    return {
        "rounds": len(rounds),
        "host_steal": _median([turn["host_steal"] for one in rounds for turn in one.values()]),
        "systems": systems,
        "ratios": ratios,
        "faults": _faults(rounds),
    }


def _good(one: Mapping[str, Figures], name: str) -> bool:
    return name in one and "error" not in one[name]


def _ratios(pairs: Sequence[tuple[Figures, Figures]], what: str) -> dict[str, Any]:
    each = [round(mine[what] / max(theirs[what], 1e-9), 3) for mine, theirs in pairs]
    return {"median": _median(each), "rounds": each}


def _faults(rounds: Sequence[Mapping[str, Figures]]) -> list[str]:
    """What makes the run no evidence."""
    faults = []
    for number, one in enumerate(rounds, 1):
        for name, turn in one.items():
            if "error" in turn:
                faults.append(f"round {number}, {name}: {turn['error']}")
            elif turn.get("violations", 0) or not turn.get("billed", True):
                faults.append(f"round {number}, {name}: {turn['violations']} violations, billed {turn['billed']}")
    return faults


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None


def table(result: Mapping[str, Any]) -> str:
    """The medians side by side."""
    lines = [f"{'':14} {'jobs/s':>8} {'idle p50':>9} {'p99 ms':>8} {'steal':>6}"]
    for name, one in result["systems"].items():
        rate, p50, p99 = ("-" if one[what] is None else f"{one[what]:.1f}" for what in _FIGURES)
        lines.append(f"{name:14} {rate:>8} {p50:>9} {p99:>8} {one['host_steal']:6.1%}")
    for pair, one in result["ratios"].items():
        lines.append(f"{pair}: jobs/s x{one['jobs_per_s']['median']}, idle p50 x{one['idle_p50_ms']['median']}")
    if result["host_steal"] > STEAL:
        lines.append(f"steal is above {STEAL:.0%}: the machine was not quiet")
    return "\n".join(lines)


def picture(result: Mapping[str, Any]) -> str:
    """Both measurements side by side as SVG: of each system the median of its rounds, and the lowest and the highest."""
    systems = {name: one for name, one in result["systems"].items() if one["jobs_per_s"] is not None}

    def panel(x: float, caption: str, unit: str, what: str) -> str:
        each = [[turn[what] for turn in one["rounds"] if "error" not in turn] for one in systems.values()]
        marks = [
            chart.Marks("median", [one[what] for one in systems.values()], strong=True),
            chart.Marks("lowest round", [min(values) for values in each]),
            chart.Marks("highest round", [max(values) for values in each]),
        ]
        return chart.dots(x, 56, 560, caption, unit, rows=list(systems), marks=marks, log=True)

    about = result["machine"]
    title = f"Beside other schedulers: {about['cores']} cores, {result['rounds']} rounds, {about['at'][:10]}"
    left = panel(0, "Jobs at once: more is better", "jobs/s", "jobs_per_s")
    right = panel(580, "One job on an idle cluster: less is better", "submit to start, p50, ms", "idle_p50_ms")
    return chart.page(1160, 56 + chart.dots_height(len(systems)) + 10, title, [left, right])


if __name__ == "__main__":
    main()
