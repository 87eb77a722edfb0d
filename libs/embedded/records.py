"""`<state>/processes.json`: which processes run here. For people, for tests that kill one by name, and for clean-up.

A pid alone is no identity (pids are reused), so each record has the kernel's start time of the process as well; with
both, the next supervisor on this directory can kill what a dead one left behind without ever hitting a stranger.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from libs.ports.private_files import write_private
from libs.ports.processes import start_ticks

_FILE = "processes.json"


@dataclass(frozen=True)
class ProcessRecord:
    """One supervised process as last written; `pid` is None while it is down."""

    name: str
    state: str
    pid: int | None
    started_ticks: int | None
    restarts: int
    port: int | None
    log: str


def read_processes(state_dir: Path) -> dict[str, ProcessRecord]:
    """The processes recorded in a state directory, by name; empty if there are none."""
    try:
        document = json.loads((state_dir / _FILE).read_text())
    except FileNotFoundError:
        return {}
    return {name: ProcessRecord(**record) for name, record in document["processes"].items()}


def write_processes(state_dir: Path, records: Iterable[ProcessRecord]) -> None:
    """Replace the file atomically: a reader sees the old list or the new one."""
    document = {"supervisor_pid": os.getpid(), "processes": {record.name: asdict(record) for record in records}}
    write_private(state_dir / _FILE, json.dumps(document, indent=1) + "\n")


_KILLED_S = 5.0
"""How long a killed process may take to be gone, s."""


def kill_leftovers(state_dir: Path) -> list[str]:
    """Kill the recorded processes that still run, and return their names. Call it only while holding the lock.

    They die with their supervisor by themselves, but not in the same instant, and two servers must never open one
    data directory.
    """
    left = {
        name: record
        for name, record in read_processes(state_dir).items()
        if record.pid is not None and record.started_ticks is not None and _runs(record)
    }
    for record in left.values():
        if record.pid:  # never killpg(0), which is ourselves
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + _KILLED_S
    while any(map(_runs, left.values())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return sorted(left)


def _runs(record: ProcessRecord) -> bool:
    return record.pid is not None and start_ticks(record.pid) == record.started_ticks
