"""What a result was measured on, and where results go."""

import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).resolve().parent / "results"


def show_progress() -> None:
    """Each line at once, also into a file."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def describe() -> dict[str, Any]:
    """Processor, cores, memory, kernel, Python, load before the run, and the commit."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "commit": _commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(name: str, result: dict[str, Any]) -> Path:
    """Writes `result` with the machine's description to `results/<name>.json`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def quantile(values: Sequence[float], q: float) -> float:
    """Nearest-rank quantile; 0 for an empty list."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else 0.0


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    try:
        out = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return out.stdout.strip()


def cpu_by_process() -> dict[str, float]:
    """CPU seconds of this process and everything below it, by service. Short-lived job processes count with the agent,
    as children that it has waited for."""
    used: dict[str, float] = {}
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            times, name = process.cpu_times(), service_of(process)
        except psutil.Error:
            continue
        used[name] = used.get(name, 0.0) + times.user + times.system + times.children_user + times.children_system
    return used


def service_of(process: psutil.Process) -> str:
    """What a process of ours is called in results. Raises psutil.Error when it is gone."""
    if process.pid == os.getpid():
        return "benchmark client"
    line = process.cmdline()
    module = next((part for part in line if part.startswith("services.")), "")
    if module:
        return module.removeprefix("services.")
    return Path(line[0]).name if line else process.name()
