"""`python -m benchmarks.waiting`: what a job that waits costs each reader of the ledger, without a broker.

Every reader is a process of its own, which folds the same records from their JSON: `--jobs` jobs with names of their own, 64 in
a record, of ten teams. For each of them: *bytes*, by which the process grew (resident); *fold_us*, processor time from the
JSON of its record; *dump_us* and *load_us*, of a snapshot written and read; *snapshot_bytes*, before compression.
*none* is what reading the records alone takes.

Writes `benchmarks/results/waiting.json`.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from benchmarks import machine
from benchmarks.growth import TEAMS, registered
from libs.core.admission.fleet_shape import FleetShape
from libs.core.billing.metering import Meter
from libs.core.placement.score.scorer import Scorer
from libs.core.projections.history import Feed, JobStory, advance, job_events
from libs.core.projections.hot_state import HotState
from libs.core.proofs.chains import TeamChains
from libs.core.scheduling.decider import Decider
from libs.service.app import collect_seldom
from schemas.ids import content_hash, job_id
from schemas.jobs import JobSpec, Simulation
from schemas.ledger import JobQueued, LedgerRecord, NodeJoined
from schemas.resources import Resources

OF_A_RECORD = 64
_T0 = 10**15
_READERS: dict[str, Callable[[], Any]] = {
    "placement": lambda: Decider(learner=Scorer()),
    "redis_rows": HotState,
    "feed": Feed,
    "proofs": TeamChains,
    "admission": FleetShape,
    "billing": Meter,
}


class _Documents:
    """History's documents, if it kept all of them."""

    def __init__(self) -> None:
        self._stories: dict[str, JobStory] = {}

    def apply(self, record: LedgerRecord, seq: int) -> None:
        for job, events in job_events(record).items():
            self._stories[job] = advance(self._stories.get(job), events, record.t_us, seq, record.pool)


class _None:
    def apply(self, record: LedgerRecord, seq: int) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--reader", choices=[*_READERS, "documents", "none"], help="one, as JSON; nothing is written")
    options = parser.parse_args()
    if options.reader:
        collect_seldom()
        print(json.dumps(_measured(options.reader, options.jobs)))
        return
    found = {name: _in_a_process(name, options.jobs) for name in ("none", *_READERS, "documents")}
    result = {"machine": machine.describe(), "jobs": options.jobs, "readers": found}
    print(f"written to {machine.write('waiting', result)}")


def _in_a_process(name: str, jobs: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.waiting", "--reader", name, "--jobs", str(jobs)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    print(f"{name}: {found}", flush=True)
    return found


def _measured(name: str, jobs: int) -> dict[str, float]:
    records = list(_records(jobs))
    reader: Any = {**_READERS, "documents": _Documents, "none": _None}[name]()
    reader.apply(_record(0, 0, (NodeJoined(inventory=registered(0).inventory, incarnation=1),)), 1)
    gc.collect()
    before, began = psutil.Process().memory_info().rss, time.process_time()
    for seq, record in enumerate(records, 2):
        reader.apply(LedgerRecord.model_validate_json(record), seq)
    took = time.process_time() - began
    gc.collect()
    found = {"bytes": round((psutil.Process().memory_info().rss - before) / jobs), "fold_us": _us(took, jobs)}
    if name in _READERS:
        began = time.process_time()
        parts = list(reader.dump())
        found |= {
            "dump_us": _us(time.process_time() - began, jobs),
            "snapshot_bytes": round(sum(map(len, parts)) / jobs),
        }
        began = time.process_time()
        type(reader).load(parts)
        found["load_us"] = _us(time.process_time() - began, jobs)
    return found


def _us(took_s: float, jobs: int) -> float:
    return round(1e6 * took_s / jobs, 1)


def _records(jobs: int) -> Iterator[str]:
    for number, start in enumerate(range(0, jobs, OF_A_RECORD), 1):
        events = tuple(_queued(n) for n in range(start, min(jobs, start + OF_A_RECORD)))
        yield _record(number, 1000 * start, events).model_dump_json()


def _record(number: int, t_us: int, events: tuple[Any, ...]) -> LedgerRecord:
    return LedgerRecord(
        pool="main",
        prev_seq=number,
        prev_hash="0" * 64,
        inbox_seq=number,
        t_us=_T0 + t_us,
        writer="waiting",
        events=events,
    )


def _queued(number: int) -> JobQueued:
    team, name = f"team{number % TEAMS}", f"waits-{number}"
    spec = JobSpec(name=name, resources=Resources(), simulation=Simulation(duration_s=0))
    return JobQueued(
        job_id=job_id(team, name), team=team, spec=spec, spec_hash=content_hash(name.encode()), client_key=name,
        priority=100, preempts=False, submitted_us=_T0 + 1000 * number, user="user",
        cause=f"REQUESTS:{number}", policy="0" * 16,
    )  # fmt: skip


if __name__ == "__main__":
    main()
