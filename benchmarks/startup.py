"""What starting Baton costs, and what it costs while nothing happens: `python -m benchmarks.startup`.

Runs `baton up` with the demo's fleet (128 simulated devices, servers, all services) in a fresh state directory, `--rounds`
times, and reports of each round: seconds until everything is ready, CPU seconds used by then, PSS after `--settle` seconds, and
CPU over `--idle` seconds more, by process, servers included. CPU seconds and PSS also mean something on a busy machine; the
seconds until ready, and the share of a core, only on a quiet one: `load_before` says which it was.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import machine

ROOT = Path(__file__).resolve().parents[1]
FLEET = ROOT / "deploy" / "fleets" / "demo-16x8-h100.yaml"
_READY = "Ctrl-C here"
"""In what `baton up` says once everything is ready."""
_READY_TIMEOUT_S = 300.0
MIB = 2**20


def main() -> None:
    """Runs the rounds, prints a table, writes benchmarks/results/startup.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settle", type=float, default=5.0, help="s from ready to the look at memory")
    parser.add_argument("--idle", type=float, default=20.0, help="s over which idle CPU is counted")
    parser.add_argument("--name", default="startup", help="of the result's file")
    options = parser.parse_args()
    about = machine.describe()
    rounds = [_round(options.settle, options.idle) for _ in range(options.rounds)]
    medians = {
        key: round(statistics.median(one[key] for one in rounds), 3)
        for key in ("ready_s", "ready_cpu_s", "pss_mib", "idle_pct_of_a_core")
    }
    for name, pss in sorted(rounds[-1]["pss_mib_by_process"].items(), key=lambda item: -item[1]):
        used, idle = (rounds[-1][key].get(name, 0.0) for key in ("ready_cpu_s_by_process", "idle_ms_per_s_by_process"))
        print(f"{name:24} {pss:8.1f} MiB PSS   {used:6.2f} s of CPU to ready   {idle:6.2f} ms of CPU a second idle")
    print(medians)
    print(machine.write(options.name, {"machine": about, "medians": medians, "rounds": rounds}))


def _round(settle_s: float, idle_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="baton-startup-") as folder:
        command = [sys.executable, "-m", "libs.cli", "up", "--fleet", str(FLEET), "--state-dir", folder]
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            ready_s = _until_ready(process, began)
            top = psutil.Process(process.pid)
            at_ready = _cpu(top)
            time.sleep(settle_s)
            memory, before, since = _pss(top), _cpu(top), time.monotonic()
            time.sleep(idle_s)
            after, over_s = _cpu(top), time.monotonic() - since
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
    idle = {name: round((used - before.get(name, 0.0)) / over_s * 1000, 2) for name, used in after.items()}
    return {
        "ready_s": round(ready_s, 2),
        "ready_cpu_s": round(sum(at_ready.values()), 2),
        "pss_mib": round(sum(memory.values()), 1),
        "idle_pct_of_a_core": round(sum(idle.values()) / 10, 2),
        "ready_cpu_s_by_process": {name: round(used, 2) for name, used in at_ready.items()},
        "pss_mib_by_process": {name: round(pss, 1) for name, pss in memory.items()},
        "idle_ms_per_s_by_process": idle,
    }


def _until_ready(process: subprocess.Popen[str], began: float) -> float:
    assert process.stdout is not None
    for line in process.stdout:
        if _READY in line:
            return time.monotonic() - began
        if time.monotonic() - began > _READY_TIMEOUT_S:
            break
    raise SystemExit("`baton up` did not become ready: see above")


def _all(top: psutil.Process) -> list[psutil.Process]:
    return [top, *top.children(recursive=True)]


def _cpu(top: psutil.Process) -> dict[str, float]:
    """CPU seconds by process, with those of children that it has waited for."""
    used: dict[str, float] = {}
    for process in _all(top):
        times, name = process.cpu_times(), _name(process, top)
        used[name] = used.get(name, 0.0) + sum((times.user, times.system, times.children_user, times.children_system))
    return used


def _pss(top: psutil.Process) -> dict[str, float]:
    """MiB by process. What several share counts in parts, so that the sum is what all of them take."""
    found: dict[str, float] = {}
    for process in _all(top):
        text, name = Path(f"/proc/{process.pid}/smaps_rollup").read_text(), _name(process, top)
        pss = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        found[name] = found.get(name, 0.0) + pss * 1024 / MIB
    return found


def _name(process: psutil.Process, top: psutil.Process) -> str:
    if process.pid == top.pid:
        return "baton up"
    line = process.cmdline()
    if any("nx_launcher" in part for part in line):
        return "mongo"
    title = line[0].strip()
    return title if title.startswith("baton ") else machine.service_of(process).split()[0]


if __name__ == "__main__":
    os.environ.pop("BATON_STATE_DIR", None)
    main()
