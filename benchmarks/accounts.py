"""How fast accounts fold a ledger, and quota_billing's meter, which keeps accounts, usage and money: events per second of CPU
time, and what stays in memory, over ledgers of growing length.

python -m benchmarks.accounts [--jobs 1000 10000 50000]
"""

import argparse
import time
from collections.abc import Iterator

from libs.core.billing.accounts import Accounts
from libs.core.billing.metering import Meter
from schemas import ledger as led
from schemas.attempts import Evidence, Outcome
from schemas.ids import job_id
from schemas.jobs import JobState
from schemas.known_specs import AcceptedSpec
from schemas.resources import Claim, Device, Inventory

NODES, DEVICES = 64, 8


def records(jobs: int) -> Iterator[led.LedgerRecord]:
    """A pool of 512 devices on which jobs of a whole node begin and end, each told in two records."""
    spec = AcceptedSpec(name="job", command=("true",))
    t_us = 1_790_000_000_000_000
    devices = [
        tuple(Device(id=f"n{n}-{i}", index=i, model="H100", memory_mib=80) for i in range(DEVICES))
        for n in range(NODES)
    ]
    joins = [led.NodeJoined(incarnation=1, inventory=Inventory(node=f"n{n}", devices=d)) for n, d in enumerate(devices)]
    yield _record(t_us, tuple(joins))
    running: dict[int, str] = {}
    for number in range(jobs):
        node, key = number % NODES, job_id("team", str(number))
        ended = _ends(running[node], node) if node in running else ()
        claims = tuple(
            Claim(device=d.id, node=f"n{node}", milli=1000, memory_mib=0, epoch=number + 1) for d in devices[node]
        )
        queued = led.JobQueued(
            job_id=key,
            team="team",
            spec=spec,
            spec_hash="h",
            client_key="k",
            priority=0,
            preempts=False,
            submitted_us=1,
        )
        t_us += 1_000_000
        yield _record(t_us, (*ended, queued, led.JobGranted(job_id=key, attempt=1, claims=claims)))
        yield _record(t_us + 500_000, (led.AttemptRunning(job_id=key, attempt=1),))
        running[node] = key


def _ends(key: str, node: int) -> tuple[led.LedgerEvent, ...]:
    held = tuple(f"n{node}-{i}" for i in range(DEVICES))
    return (
        led.DevicesFreed(job_id=key, attempt=1, node=f"n{node}", devices=held, evidence=Evidence.RELEASED, exit_code=0),
        led.AttemptClosed(job_id=key, attempt=1, outcome=Outcome.SUCCEEDED),
        led.JobFinished(job_id=key, state=JobState.SUCCEEDED),
    )


def _record(t_us: int, events: tuple[led.LedgerEvent, ...]) -> led.LedgerRecord:
    return led.LedgerRecord(pool="p", prev_seq=0, prev_hash="", inbox_seq=0, t_us=t_us, writer="bench", events=events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 10_000, 50_000])
    for jobs in parser.parse_args().jobs:
        books, meter, events, postings, spent_s, metered_s = Accounts(), Meter(), 0, 0, 0.0, 0.0
        for seq, record in enumerate(records(jobs), 1):
            began = time.process_time()
            postings += len(books.apply(record, seq))
            posted = time.process_time()
            meter.apply(record, seq)
            spent_s, metered_s = spent_s + posted - began, metered_s + time.process_time() - posted
            events += len(record.events)
        exact = sum(books.balances().values()) == books.capacity_unit_us()
        size = sum(map(len, books.dump()))
        print(
            f"{jobs:>8} jobs {events:>9} events {postings:>9} postings {events / spent_s:>12,.0f} events/s "
            f"{postings / spent_s:>12,.0f} postings/s  open {size / 1024:,.0f} KiB  exact {exact}  "
            f"meter {events / metered_s:,.0f} events/s"
        )


if __name__ == "__main__":
    main()
