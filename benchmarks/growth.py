"""`python -m benchmarks.growth`: what a job and a decision cost against jobs queued and against nodes, without a bus.

Every point is a process of its own, with a decider and a scorer as placement has them; the reader folds each record from its
JSON, as all readers do. All times are processor time of that process, so other work on the machine hardly counts.

- *queued*: 16 nodes of 8 are full, and 10^3 to 10^6 jobs wait: 10 teams, four widths, so 40 queues. *per job*: deciding
  that it waits (batches of 256), and folding that record in a reader. *per decision*: a job on one device ends and the next one
  gets its device. *bytes*: half of what the process grew by for each job that waits; it holds two states, the reader's too.
- *nodes*: 16 to 12,500 nodes of 8, in leaves of 32, nine in ten full. *per decision*: one device; a gang of 16 on two nodes.

Writes `benchmarks/results/growth.json`, and `docs/img/growth.svg` with what `benchmarks.writers` and `benchmarks.leaf` found.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import chart, machine
from libs.core.placement.score.scorer import Scorer
from libs.core.scheduling.decider import Decider
from libs.service.app import collect_seldom
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import JobSpec
from schemas.ledger import LedgerRecord
from schemas.resources import Device, Inventory, Position, Resources

QUEUED = (1_000, 10_000, 100_000, 1_000_000)
NODES = (16, 128, 1_000, 4_000, 12_500)
WIDTHS = (1, 2, 4, 8)
TEAMS, BATCH, DEVICES = 10, 256, 8
DECISIONS = 200
FEW = 128
"""Nodes of the pool in which jobs wait: their devices."""
IMAGE = Path(__file__).resolve().parents[1] / "docs" / "img" / "growth.svg"
_T0 = 1_000_000

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, nargs="*", default=QUEUED, help="jobs that wait")
    parser.add_argument("--nodes", type=int, nargs="*", default=NODES)
    parser.add_argument("--point", nargs=2, metavar=("KIND", "SIZE"), help="one point, as JSON; nothing is written")
    parser.add_argument("--plot", action="store_true", help="draw what was measured before")
    options = parser.parse_args()
    if options.point:
        kind, size = options.point
        collect_seldom()
        print(json.dumps({"queued": _queued, "nodes": _nodes}[kind](int(size))))
        return
    if not options.plot:
        result: Figures = {"machine": machine.describe()}
        result["queued"] = [_point("queued", size) for size in options.queued]
        result["nodes"] = [_point("nodes", size) for size in options.nodes]
        print(f"written to {machine.write('growth', result)}")
    IMAGE.write_text(_picture(), encoding="utf-8")
    print(f"written to {IMAGE}")


def _point(kind: str, size: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.growth", "--point", kind, str(size)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    print(f"{kind} {size:,}: {found}", flush=True)
    return {kind: size, **found}


@dataclass(frozen=True, slots=True)
class _Sent:
    seq: int
    message: Any
    time_us: int
    subject: str = ""
    error: str = ""


class Writer:
    """A decider that is sent messages one batch after the other, and a reader that folds what it says."""

    def __init__(self, nodes: int, *, reader: bool = False) -> None:
        self.decider, self._reader = Decider(learner=Scorer()), Decider() if reader else None
        self.deciding_s = self.folding_s = 0.0
        """Processor time so far."""
        self._seq = self._records = self._jobs = 0
        for start in range(0, nodes, BATCH):
            self.take(*(registered(n) for n in range(start, min(nodes, start + BATCH))))

    def submit(self, devices: Sequence[int]) -> list[str]:
        """Jobs of so many devices, in batches; gives their ids."""
        sent = [admitted(self._jobs + n, one, self.t_us).model_dump_json() for n, one in enumerate(devices, 1)]
        jobs = [inbox.JobAdmitted.model_validate_json(one) for one in sent]
        self._jobs += len(jobs)
        for start in range(0, len(jobs), BATCH):
            self.take(*jobs[start : start + BATCH])
        return [job.job_id for job in jobs]

    def end(self, job: str) -> None:
        """Its one attempt has ended on each of its nodes."""
        attempt = self.decider.state.jobs[job].current
        assert attempt is not None
        seen = inbox.Released(job_id=job, attempt=1, exit_code=0, own_exit=True)
        self.take(*(inbox.NodeObserved(node=node, incarnation=1, observations=(seen,)) for node in list(attempt.parts)))

    def take(self, *messages: Any) -> None:
        items = [_Sent(self._seq + n, message, self.t_us) for n, message in enumerate(messages, 1)]
        self._seq = items[-1].seq
        began = time.process_time()
        events = self.decider.decide(items, self.t_us)
        self.deciding_s += time.process_time() - began
        self._records += 1
        if self._reader is not None:
            record = LedgerRecord(
                pool="main", prev_seq=self._records - 1, prev_hash="", inbox_seq=self._seq, t_us=self.t_us,
                writer="growth", events=tuple(events),
            )  # fmt: skip
            stored = record.model_dump_json()
            began = time.process_time()
            self._reader.apply(LedgerRecord.model_validate_json(stored), self._records)
            self.folding_s += time.process_time() - began

    @property
    def t_us(self) -> int:
        return _T0 + 1000 * self._records


def admitted(number: int, devices: int, t_us: int) -> inbox.JobAdmitted:
    """A job of one of ten teams."""
    team, name = f"team{number % TEAMS}", str(number)
    spec = JobSpec(name=f"job-{name}", command=("true",), resources=Resources(devices=devices))
    return inbox.JobAdmitted(
        job_id=job_id(team, name), team=team, spec=spec, spec_hash="h", client_key=name, priority=100,
        preempts=False, submitted_us=t_us,
    )  # fmt: skip


def registered(number: int) -> inbox.NodeRegistered:
    """A node of 8 in a leaf of 32."""
    name, leaf = f"n{number:05}", number // 32
    devices = tuple(Device(id=f"{name}-{d}", index=d, model="H100", memory_mib=81920) for d in range(DEVICES))
    position = Position(leaf=f"leaf-{leaf}", spine=f"spine-{leaf // 16}")
    inventory = Inventory(node=name, position=position, devices=devices, cpus=128, memory_mib=1 << 20, simulated=True)
    return inbox.NodeRegistered(inventory=inventory, incarnation=1, lease_s=10)


def _queued(waiting: int) -> Figures:
    writer = Writer(FEW // DEVICES, reader=True)
    running = iter(writer.submit([1] * FEW))
    before, decided, folded = psutil.Process().memory_info().rss, writer.deciding_s, writer.folding_s
    for start in range(0, waiting, BATCH):
        writer.submit([WIDTHS[n % len(WIDTHS)] for n in range(start, min(waiting, start + BATCH))])
    decided, folded = writer.deciding_s - decided, writer.folding_s - folded
    grown = psutil.Process().memory_info().rss - before
    return {
        "decide_us_per_job": round(1e6 * decided / waiting, 1),
        "fold_us_per_job": round(1e6 * folded / waiting, 1),
        "bytes_per_job": round(grown / waiting / 2),
        "decision": _timed(writer, lambda: writer.end(next(running)), FEW),
    }


def _nodes(nodes: int) -> Figures:
    writer = Writer(nodes)
    free = max(2, nodes // 10)
    before = writer.deciding_s
    writer.submit([DEVICES] * (nodes - free))
    while writer.decider.state.queues:  # a cycle decides a bounded number
        writer.take(inbox.Tick())
    filled = writer.deciding_s - before
    ends: list[str] = []

    def submit(devices: int) -> None:
        ends.extend(writer.submit([devices]))

    def after() -> None:
        writer.end(ends.pop())
        if writer.decider.learner is not None:
            writer.decider.upkeep()

    return {
        "filled_us_per_job": round(1e6 * filled / (nodes - free), 1),
        "single": _timed(writer, lambda: submit(1), DECISIONS, after),
        "gang_16": _timed(writer, lambda: submit(2 * DEVICES), DECISIONS, after),
    }


def _timed(
    writer: Writer, work: Callable[[], object], times: int, after: Callable[[], object] = lambda: None
) -> Figures:
    """Processor time that the decider takes for `work`, us; the first is not counted, nor what `after` does."""
    took = []
    for number in range(times):
        before = writer.deciding_s
        work()
        if number:
            took.append(1e6 * (writer.deciding_s - before))
        after()
    return {"p50_us": round(machine.quantile(took, 0.5), 1), "p99_us": round(machine.quantile(took, 0.99), 1)}


# ------------------------------------------------------------------------------------------------------------ picture


def _picture() -> str:
    growth = _result("growth")
    queued, nodes = growth["queued"], growth["nodes"]
    panels = [
        _panel(0, 0, "Jobs that wait (16 nodes)", "jobs queued", [
            _line("decide that it waits", queued, "queued", lambda r: r["decide_us_per_job"]),
            _line("fold it in a reader", queued, "queued", lambda r: r["fold_us_per_job"]),
            _line("one ends, next starts, p50", queued, "queued", lambda r: r["decision"]["p50_us"]),
            _line("the same, p99", queued, "queued", lambda r: r["decision"]["p99_us"], dashed=True),
        ]),
        _panel(1, 0, "Nodes of 8 devices", "nodes", [
            _line("one device, p50", nodes, "nodes", lambda r: r["single"]["p50_us"]),
            _line("one device, p99", nodes, "nodes", lambda r: r["single"]["p99_us"], dashed=True),
            _line("gang of 16, p50", nodes, "nodes", lambda r: r["gang_16"]["p50_us"]),
            _line("gang of 16, p99", nodes, "nodes", lambda r: r["gang_16"]["p99_us"], dashed=True),
        ]),
    ]  # fmt: skip
    if pools := _result("writers").get("pools", []):
        panels.append(_panel(0, 1, "Pools, a writer each", "pools", [
            _line("writer", pools, "pools", lambda r: 1000 * r["writer_ms_per_job"]),
            _line("nats-server", pools, "pools", lambda r: 1000 * r["broker_ms_per_job"]),
        ]))  # fmt: skip
    if hops := _result("leaf").get("hops", []):
        panels.append(_panel(1, 1, "Hops over leaf links", "servers in the chain", [
            _line("question, p50", hops, "servers", lambda r: r["question"]["p50_us"]),
            _line("question, p99", hops, "servers", lambda r: r["question"]["p99_us"], dashed=True),
            _line("stored message, p50", hops, "servers", lambda r: r["stored"]["p50_us"]),
            _line("stored message, p99", hops, "servers", lambda r: r["stored"]["p99_us"], dashed=True),
        ]))  # fmt: skip
    rows = (len(panels) + 1) // 2
    return chart.page(1180, 50 + 330 * rows, "What a job and a decision cost as things grow", panels)


def _panel(column: int, row: int, caption: str, axis: str, lines: Sequence[chart.Line]) -> str:
    axes = (axis, "us")
    return chart.log_log(590 * column, 60 + 330 * row, 590, 320, caption, axes=axes, lines=lines)


def _line(
    name: str, rows: Sequence[Figures], over: str, value: Callable[[Figures], float], dashed: bool = False
) -> chart.Line:
    return chart.Line(name, [(row[over], value(row)) for row in rows], dashed)


def _result(name: str) -> Figures:
    path = machine.RESULTS / f"{name}.json"
    found: Figures = json.loads(path.read_text()) if path.exists() else {}
    return found


if __name__ == "__main__":
    main()
