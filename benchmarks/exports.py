"""How long an export takes, and what memory, over ledgers of growing length: the real command on a ledger file.

python -m benchmarks.exports [--attempts 10000 100000] [--format parquet] [--folder FOLDER] [--write]

An attempt comes to about ten rows: one device for nine hours, two for four, four for an hour and a half, or eight for a quarter
of an hour. Ten teams, two of which have contracts (one with tiers); prices change each month. The
ledger is made once in the folder.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Final

from benchmarks import chart, machine
from libs.core.billing.wall import HOUR_US, month_us
from libs.ledger.chain import encode
from libs.ledger.export import FileStart, LedgerFileWriter
from libs.ledger.tail import Stored
from schemas import ledger as led
from schemas.attempts import Evidence, Outcome
from schemas.ids import job_id
from schemas.jobs import JobState
from schemas.known_specs import AcceptedSpec
from schemas.prices import ContractRate, ListRate, RateBook, RateTier, Term
from schemas.resources import Claim, Device, Inventory

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "img" / "exports.svg"
NODES, DEVICES, TEAMS = 128, 8, 10
START_US, _ = month_us(2026, 1)
HOURS: Final = {1: 9.2, 2: 4.2, 4: 1.6, 8: 0.25}
"""Devices of an attempt -> about how long it holds them."""
AIM_S, AIM_MIB = 600, 1024
MINUTE_US = 60_000_000


def book() -> RateBook:
    """A price that changes each month, two contracts, one with tiers."""
    moments = [START_US + month * 30 * 24 * HOUR_US for month in range(60)]
    prices = [
        ListRate(device="H100", micros=2_990_000 - 10_000 * number, from_us=since, to_us=until)
        for number, (since, until) in enumerate(zip([0, *moments[1:]], [*moments[1:], None], strict=True))
    ]
    tiers = (RateTier(above_hours=0, micros=2_500_000), RateTier(above_hours=10_000, micros=2_200_000))
    flat = (RateTier(above_hours=0, micros=2_400_000),)
    return RateBook(
        version=1, currency="USD", prices=tuple(prices),
        contracts=(
            ContractRate(team="team-1", contract="c-1", device="H100", from_us=0, tiers=flat),
            ContractRate(team="team-2", contract="c-2", device="H100", term=Term.RESERVATION, from_us=0, tiers=tiers),
        ),
    )  # fmt: skip


def records(attempts: int, seed: int = 12) -> Iterator[led.LedgerRecord]:
    """A pool of 1,024 H100 on which attempts follow each other on each node."""
    chance = random.Random(seed)
    ids = [tuple(f"n{n}-{i}" for i in range(DEVICES)) for n in range(NODES)]
    joins = tuple(
        led.NodeJoined(
            incarnation=1,
            inventory=Inventory(
                node=f"n{n}", devices=tuple(Device(id=d, index=i, model="H100", memory_mib=80) for i, d in enumerate(devices))
            ),
        )
        for n, devices in enumerate(ids)
    )  # fmt: skip
    yield record(START_US, joins)
    yield record(START_US, (led.PricesApplied(book=book(), reason="the year begins", user="olga"),))
    turns: list[tuple[int, int, int, tuple[led.LedgerEvent, ...]]] = [
        (START_US + chance.randrange(MINUTE_US), node, 0, ()) for node in range(NODES)
    ]
    heapify(turns)
    made = 0
    while turns:
        t_us, node, wave, running = heappop(turns)
        if running:
            yield record(t_us, tuple(e for grant in running for e in ended(grant, node)))
            heappush(turns, (t_us + chance.randrange(1, MINUTE_US), node, wave + 1, ()))
        elif made < attempts:
            width = (1, 2, 4, 8)[wave % 4]
            starts = [
                began(made + number, node, ids[node][number * width : (number + 1) * width], chance)
                for number in range(min(DEVICES // width, attempts - made))
            ]
            made += len(starts)
            yield record(t_us, tuple(event for pair in starts for event in pair))
            hold_us = int(HOURS[width] * HOUR_US * chance.uniform(0.9, 1.1))
            heappush(turns, (t_us + hold_us, node, wave, tuple(grant for _, grant in starts)))


def began(
    number: int, node: int, devices: tuple[str, ...], chance: random.Random
) -> tuple[led.LedgerEvent, led.LedgerEvent]:
    """A job is queued and gets its devices."""
    team = f"team-{chance.randrange(TEAMS)}"
    key = job_id(team, str(number))
    claims = tuple(Claim(device=d, node=f"n{node}", milli=1000, memory_mib=0, epoch=number + 1) for d in devices)
    return (
        led.JobQueued(
            job_id=key, team=team, user=f"user-{number % 97}", spec=_SPEC, spec_hash="h", client_key="k", priority=0,
            preempts=False, submitted_us=1,
        ),
        led.JobGranted(job_id=key, attempt=1, claims=claims),
    )  # fmt: skip


_SPEC = AcceptedSpec(name="job", command=("true",))


def ended(grant: Any, node: int) -> tuple[led.LedgerEvent, ...]:
    """Its devices are freed."""
    key, held = grant.job_id, tuple(claim.device for claim in grant.claims)
    return (
        led.DevicesFreed(job_id=key, attempt=1, node=f"n{node}", devices=held, evidence=Evidence.RELEASED, exit_code=0),
        led.AttemptClosed(job_id=key, attempt=1, outcome=Outcome.SUCCEEDED),
        led.JobFinished(job_id=key, state=JobState.SUCCEEDED),
    )


def record(t_us: int, events: tuple[led.LedgerEvent, ...]) -> led.LedgerRecord:
    """One record of these events, not chained yet."""
    return led.LedgerRecord(
        pool="bench", prev_seq=0, prev_hash="", inbox_seq=0, t_us=t_us, writer="bench", events=events
    )


def filed(attempts: int, path: Path) -> None:
    """The ledger as a file of `baton ledger export`."""
    with LedgerFileWriter(path, FileStart("bench")) as out:
        for number, one in enumerate(records(attempts), start=1):
            chained = one.model_copy(update={"prev_seq": out.head.seq, "prev_hash": out.head.hash})
            out.add(Stored(number, "", {}, encode(chained)[0], one.t_us))
        out.finish()


def measured(*words: object) -> dict[str, Any]:
    """Runs `baton` in a process of its own: seconds on the clock and of the processor, and the most memory, MiB."""
    began_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "libs.cli", *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"baton {' '.join(map(str, words))} failed: {status}")
    return {
        "wall_s": round(time.perf_counter() - began_s, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": round(used.ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--format", default="parquet")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the result and its picture")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder: Path = given.folder or Path(made)
        runs = [run(folder, attempts, given.format) for attempts in given.attempts]
    if given.write:
        machine.write("exports", {"machine": machine.describe(), "aim_s": AIM_S, "aim_mib": AIM_MIB, "runs": runs})
        PICTURE.write_text(picture(runs))


def run(folder: Path, attempts: int, format: str) -> dict[str, Any]:
    """One size."""
    ledger = folder / f"ledger-{attempts}.jsonl"
    if not ledger.exists():
        filed(attempts, ledger)
    out = folder / f"bill-{attempts}.{format}"
    words = ("--ledger", ledger, "--from", "2026-01-01", "--to", "2040-01-01")
    export = measured("bill", "export", out, "--format", format, *words)
    rows = json.loads(out.with_name(out.name + ".metadata.json").read_text())["x_RowCount"]
    result = {
        "attempts": attempts, "rows": rows, "ledger_mib": ledger.stat().st_size >> 20, "file_mib": out.stat().st_size >> 20,
        "export": export,
    }  # fmt: skip
    print(json.dumps(result), flush=True)
    return result


def picture(runs: list[dict[str, Any]]) -> str:
    """Time and memory against rows, with the bar for ten million."""

    def line(name: str, of: str) -> chart.Line:
        return chart.Line(name, [(run["rows"], run["export"][of]) for run in runs])

    most = runs[-1]["rows"]
    panels = [
        chart.log_log(
            0, 56, 520, 330, "Time", axes=("rows", "seconds"),
            lines=[line("processor", "cpu_s"), line("clock", "wall_s"), chart.Line("the bar", [(most, AIM_S)], dashed=True)],
        ),
        chart.log_log(
            520, 56, 520, 330, "Most memory", axes=("rows", "MiB"),
            lines=[line("resident", "peak_mib"), chart.Line("the bar", [(most, AIM_MIB)], dashed=True)],
        ),
    ]  # fmt: skip
    return chart.page(1040, 400, "baton bill export --format parquet: growth with the rows", panels)


if __name__ == "__main__":
    main()
