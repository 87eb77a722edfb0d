"""Memory of each reader of the ledger over its length, and the stalls of a snapshot of a large state.

    python -m benchmarks.ledger_memory                              # every reader, 10^4 to 10^6 records
    python -m benchmarks.ledger_memory --readers checker --records 10000000 --per-second 3
    python -m benchmarks.ledger_memory --readers hot_state feed state admission --together --records 10000000
    python -m benchmarks.ledger_memory --stall                      # 500,000 waiting jobs, 1,000,000 ended ones

The ledger is generated as it is read: records in their wire form with a valid chain, each read by the rule that every
reader shares (`libs.ledger.chain.judge`). A job takes three records: queued and granted; running; freed, closed and
finished. `--running` jobs are open at a time, and `--per-second` records make one second of the ledger's time, so that
one record a second passes the seven days of client keys after 600,000 records. Each reader is a process of its own, and
its resident memory is taken at each power of ten and its multiples. With `--together` all of them are in one process, and
the ledger is generated once: what all keep together is flat only if what each keeps is. Nothing else of the stack runs.
"""

import argparse
import gc
import multiprocessing
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import psutil

from benchmarks import machine
from libs.core.admission.fleet_shape import FleetShape
from libs.core.billing.metering import Meter
from libs.core.projections.history import Feed
from libs.core.projections.hot_state import HotState
from libs.core.projections.verify import Checker
from libs.core.state import ended, fold, snapshot
from libs.core.state.model import State
from libs.ledger.audited import AuditedLedger
from libs.ledger.chain import GENESIS, ChainEntry, Head, encode, judge
from schemas import ledger as led
from schemas.attempts import Evidence, Outcome
from schemas.ids import job_id
from schemas.jobs import JobSpec, JobState
from schemas.resources import Claim, Device, Inventory, Resources

POOL, TEAM, NODES, DEVICES = "bench", "bench", 64, 8
BEGAN_US = 20_000 * ended.DAY_US
SPEC = JobSpec(name="train", command=("python", "train.py", "--epochs", "3"), resources=Resources(devices=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--running", type=int, default=400, help="jobs that hold a device at a time")
    parser.add_argument("--per-second", type=float, default=1.0, help="records in a second of the ledger's time")
    parser.add_argument("--readers", nargs="*", default=list(READERS), choices=list(READERS))
    parser.add_argument("--together", action="store_true", help="all readers in one process, over one ledger")
    parser.add_argument("--name", default="ledger_memory", help="of the file in benchmarks/results")
    parser.add_argument(
        "--no-chain", action="store_true", help="neither encode nor read the records: three times as fast"
    )
    parser.add_argument("--stall", action="store_true", help="measure a snapshot's stalls instead")
    options = parser.parse_args()
    about = machine.describe()
    if options.stall:
        result = stalls(waiting=500_000, ended_jobs=1_000_000)
        machine.write("snapshot_stall", {"machine": about, **result})
        print(*(f"{name}: {value}" for name, value in result.items()), sep="\n")
        return
    rows = {}
    context = multiprocessing.get_context("spawn")
    for names in [tuple(options.readers)] if options.together else [(name,) for name in options.readers]:
        with context.Pool(1) as pool:
            how = (names, options.records, options.running, options.per_second, not options.no_chain)
            found = pool.apply(measure, how)
        rows[" + ".join(names)] = found
        print(*names, found, flush=True)
    settings = {"records": options.records, "running": options.running, "per_second": options.per_second}
    settings["chain"] = not options.no_chain
    machine.write(options.name, {"machine": about, **settings, "mib": rows})


# ------------------------------------------------------------------------------------------------------- the ledger


def ledger(records: int, running: int, per_second: float, chain: bool = True) -> Iterator[ChainEntry]:
    """A pool's life: nodes join, then jobs come, run and end. Entries as a reader has them; without `chain` as whoever made
    them has them, and without hashes."""
    head = GENESIS
    for seq, events in enumerate(_events(records, running), start=1):
        t_us = BEGAN_US + int(seq * 1e6 / per_second)
        record = led.LedgerRecord(
            pool=POOL, prev_seq=head.seq, prev_hash=head.hash, inbox_seq=seq, t_us=t_us, writer="bench", events=events
        )
        if not chain:
            head = Head(seq, "")
            yield ChainEntry(seq, record, "", t_us, True)
            continue
        payload, _ = encode(record)
        entry = judge(head, POOL, seq, payload, t_us)
        assert entry.valid, entry.why
        head = entry.head
        yield entry


def _events(records: int, running: int) -> Iterator[tuple[Any, ...]]:
    names = [f"n{node}-gpu{i}" for node in range(NODES) for i in range(DEVICES)]
    for node in range(NODES):
        devices = tuple(Device(id=f"n{node}-gpu{i}", index=i, model="H100", memory_mib=81_559) for i in range(DEVICES))
        yield (led.NodeJoined(incarnation=1, inventory=Inventory(node=f"n{node}", devices=devices, simulated=True)),)
    free, epochs = deque(names), dict.fromkeys(names, 0)
    open_jobs: deque[tuple[str, str]] = deque()
    for number in range((records - NODES) // 3):
        device = free.popleft()
        epochs[device] += 1
        job = job_id(TEAM, str(number))
        yield queued(job, number), granted(job, device, epochs[device])
        yield (led.AttemptRunning(job_id=job, attempt=1),)
        open_jobs.append((job, device))
        if len(open_jobs) < running:
            yield ()
            continue
        done, device = open_jobs.popleft()
        free.append(device)
        yield (
            led.DevicesFreed(
                job_id=done,
                attempt=1,
                node=device.partition("-")[0],
                devices=(device,),
                evidence=Evidence.RELEASED,
                exit_code=0,
                own_exit=True,
            ),
            led.AttemptClosed(job_id=done, attempt=1, outcome=Outcome.SUCCEEDED),
            led.JobFinished(job_id=done, state=JobState.SUCCEEDED),
        )


def queued(job: str, number: int) -> led.JobQueued:
    return led.JobQueued(
        job_id=job, team=TEAM, spec=SPEC, spec_hash=sha256(job.encode()).hexdigest(), client_key=str(number),
        priority=100, preempts=False, submitted_us=BEGAN_US + number,
    )  # fmt: skip


def granted(job: str, device: str, epoch: int) -> led.JobGranted:
    claim = Claim(device=device, node=device.partition("-")[0], milli=1000, memory_mib=81_559, epoch=epoch)
    return led.JobGranted(job_id=job, attempt=1, claims=(claim,))


# ------------------------------------------------------------------------------------------------------ the readers


def _checker() -> Callable[[ChainEntry], Any]:
    checker = Checker()

    def step(entry: ChainEntry) -> None:
        checker.step(entry.seq, entry.record, entry.valid)
        assert checker.report.ok, checker.report.violations

    return step


def _audited() -> Callable[[ChainEntry], Any]:
    ledger = AuditedLedger()

    def step(entry: ChainEntry) -> None:
        ledger.step(entry.seq, entry.record, entry.valid)
        assert ledger.report.ok, ledger.report.violations

    return step


def _state() -> Callable[[ChainEntry], Any]:
    state = State()
    return lambda entry: fold.apply_record(state, entry.record)


READERS: dict[str, Callable[[], Callable[[ChainEntry], Any]]] = {
    "nobody": lambda: lambda entry: None,
    "checker": _checker,
    "verify": _audited,
    "state": _state,
    "admission": lambda: _applied(FleetShape()),
    "hot_state": lambda: _applied(HotState()),
    "feed": lambda: _applied(Feed()),
    "meter": lambda: _applied(Meter()),
}
"""`state` is placement's and preemption's, `hot_state` the Redis projector's and telemetry's, `feed` history's, `verify` is
`baton ledger verify`: the checker with the accounts beside it. `nobody` is the generator alone."""


def _applied(projection: Any) -> Callable[[ChainEntry], Any]:
    return lambda entry: projection.apply(entry.record, entry.seq)


def measure(names: Sequence[str], records: int, running: int, per_second: float, chain: bool) -> dict[str, float]:
    """Resident memory (MiB) of a process with these readers after so many records, the peak, and how long it took.

    Each figure is printed as soon as it is known, so that a run that is broken off has told something.
    """
    readers, process, began = [READERS[name]() for name in names], psutil.Process(), time.perf_counter()
    found: dict[str, float] = {}
    for entry in ledger(records, running, per_second, chain):
        for take in readers:
            take(entry)
        if entry.seq >= 10_000 and set(str(entry.seq)[1:]) == {"0"}:
            found[f"{entry.seq:,}"] = _mib(process.memory_info().rss)
            print(*names, f"{entry.seq:,} records: {found[f'{entry.seq:,}']} MiB", flush=True)
    found["peak"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    found["cpu_s"] = round(time.process_time(), 1)
    found["records_per_s"] = round(records / (time.perf_counter() - began))
    return found


# ------------------------------------------------------------------------------------------------------- the stalls


def stalls(waiting: int, ended_jobs: int) -> dict[str, float]:
    """A snapshot of a pool with `waiting` jobs and `ended_jobs` ids of ended ones: its parts, and the longest of them.

    In CPU time of this thread, which on a machine that does nothing else is the time that a decision waits.
    """
    state = State()
    for node in range(NODES):
        devices = tuple(Device(id=f"n{node}-gpu{i}", index=i, model="H100", memory_mib=81_559) for i in range(DEVICES))
        inventory = Inventory(node=f"n{node}", devices=devices, simulated=True)
        fold.apply(state, led.NodeJoined(incarnation=1, inventory=inventory), BEGAN_US)
    for number in range(ended_jobs):
        state.finished.add(job_id("ended", str(number)), "", BEGAN_US + number)
    for number in range(waiting):
        job = job_id(TEAM, str(number))
        fold.apply(state, queued(job, number), BEGAN_US)
    gc.collect()
    began = last = time.thread_time()
    parts = snapshot.dump(state)
    first_s = time.thread_time() - last
    steps, size = [], 0
    while True:
        last = time.thread_time()
        part = next(parts, None)
        steps.append(time.thread_time() - last)
        if part is None:
            break
        size += len(part)
    whole_s = time.thread_time() - began
    steps.sort()
    return {
        "waiting_jobs": waiting,
        "ended_jobs": ended_jobs,
        "parts": len(steps) - 1,
        "mib": _mib(size),
        "consistent_cut_ms": round(first_s * 1000, 1),
        "median_part_ms": round(steps[len(steps) // 2] * 1000, 2),
        "longest_part_ms": round(steps[-1] * 1000, 1),
        "whole_s": round(whole_s, 2),
    }


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


if __name__ == "__main__":
    main()
