"""Accounts and money of a recorded trace against sums that share no code with them; any difference is an error.

python -m benchmarks.reconciled TRACE.csv [--limit 1000] [--order fifo] [--faults 0.5]

The trace runs in virtual time through the decider on 64 devices (docs/replay.md names its columns). Its decisions are the
ledger, with a price book that has tiers for one team, and another one that corrects it after two thirds. Accounts are compared
with sums of raw events over every moment at which one happens, charges with `tests/core/money_oracle.py`, the meter's total
with these.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.cli.tracefile import read_file
from libs.core.billing.accounts import Accounts
from libs.core.billing.charges import charges
from libs.core.billing.metering import Meter
from libs.core.scheduling.precedence import OrderRule
from libs.simulation.policy import engine
from libs.simulation.policy.compare import compare
from libs.simulation.policy.engine import KnownRunTime, SimulatedWorld
from libs.simulation.policy.workload import WorkloadRow
from schemas import ledger as led
from schemas.prices import ContractRate, ListRate, RateBook, RateTier
from tests.core import money_oracle
from tests.core.test_money import rows_of

FLEET = Path(__file__).resolve().parent.parent / "deploy" / "fleets" / "replay-8x8.yaml"
HOUR_US = 3_600_000_000


def ledger_of(rows: list[WorkloadRow], order: OrderRule, faults: float) -> list[led.LedgerRecord]:
    """What the decider decided, with two price books."""
    kept: list[tuple[int, tuple[led.LedgerEvent, ...]]] = []

    class Kept(engine.Decider):
        def decide(self, inputs: Any, t_us: int, *, behind: bool = False, jumps: Any = ()) -> list[led.LedgerEvent]:
            if events := super().decide(inputs, t_us, behind=behind, jumps=jumps):
                kept.append((t_us, tuple(events)))
            return events

    usual, engine.Decider = engine.Decider, Kept  # type: ignore[misc]
    world = SimulatedWorld(
        knows=KnownRunTime.NOTHING, start_delay_s=5, stop_delay_s=10, node_faults_per_day=faults, seed=1, fast=True, cycle_s=5.0
    )  # fmt: skip
    try:
        compare(FLEET, rows, {"it": order}, world)
    finally:
        engine.Decider = usual  # type: ignore[misc]
    model = next(e.inventory.devices[0].model for _, es in kept for e in es if isinstance(e, led.NodeJoined))
    team = min(e.team for _, es in kept for e in es if isinstance(e, led.JobQueued))
    cut = kept[-1][0] // 3 + 1_234_567
    books = {
        0: book(1, model, team, (2_990_000, 2_790_001), cut),
        len(kept) * 2 // 3: book(2, model, team, (2_490_003, 2_890_001), cut + HOUR_US // 2),
    }
    return [
        led.LedgerRecord(
            pool="trace", prev_seq=n, prev_hash="", inbox_seq=0, t_us=t_us, writer="trace",
            events=(*events, led.PricesApplied(book=books[n], user="olga")) if n in books else events,
        )
        for n, (t_us, events) in enumerate(kept)
    ]  # fmt: skip


def book(version: int, model: str, team: str, micros: tuple[int, int], cut_us: int) -> RateBook:
    first, then = micros
    tiers = (RateTier(above_hours=0, micros=first - 1), RateTier(above_hours=100, micros=then - 7))
    return RateBook(
        version=version, currency="USD",
        prices=(
            ListRate(device=model, micros=first, from_us=0, to_us=cut_us), ListRate(device=model, micros=then, from_us=cut_us)
        ),
        contracts=(ContractRate(team=team, contract="c-1", device=model, from_us=0, tiers=tiers),),
    )  # fmt: skip


@dataclass
class Device:
    node: str
    there: bool = True
    milli: int = 0
    held: str = ""
    kept: str = ""

    def units(self) -> Iterator[tuple[str, int]]:
        yield "billed", 7 * self.milli
        if self.there:
            yield "held" if self.held else "reserved" if self.kept else "idle", 7000 - 7 * self.milli


def summed(records: list[led.LedgerRecord]) -> Counter[str]:
    """Unit-microseconds by account: between two records nothing changes. Raises ValueError for what a simulation has not."""
    devices: dict[str, Device] = {}
    claims: dict[tuple[str, int], tuple[Any, ...]] = {}
    totals, last_us = Counter[str](), records[0].t_us
    for record in records:
        if record.t_us > last_us:
            for device in devices.values():
                for account, units in device.units():
                    totals[account] += units * (record.t_us - last_us)
        last_us = record.t_us
        for e in record.events:
            match e:
                case led.NodeJoined():
                    for d in e.inventory.devices:
                        devices.setdefault(d.id, Device(e.inventory.node)).there = True
                case led.NodeLeft():
                    for device in devices.values():
                        device.there = device.there and device.node != e.node
                case led.JobGranted():
                    claims[e.job_id, e.attempt] = e.claims
                    _let_go(devices, e.job_id)
                    for c in e.claims:
                        devices[c.device].milli += c.milli
                case led.DevicesFreed():
                    for c in claims[e.job_id, e.attempt]:
                        if c.node == e.node and c.device in e.devices:
                            devices[c.device].milli -= c.milli
                case led.DevicesHeld():
                    for name in e.devices:
                        devices[name].held = e.job_id
                case led.HoldReleased():
                    for device in devices.values():
                        device.held = "" if device.held == e.job_id else device.held
                case led.DevicesReserved():
                    _let_go(devices, e.gang)
                    for name in e.devices:
                        devices[name].kept = e.gang
                case led.JobFinished():
                    _let_go(devices, e.job_id)
                case led.NodeSilence() | led.DeviceQuarantined() | led.BoardRecut() | led.NodeCordoned():
                    raise ValueError(f"{e.kind} is not summed here")
    return +totals


def _let_go(devices: dict[str, Device], gang: str) -> None:
    for device in devices.values():
        device.kept = "" if device.kept == gang else device.kept


def posted(records: list[led.LedgerRecord]) -> dict[Any, Any]:
    """As `money_oracle.posted`, of a ledger whose two clocks are one."""
    claims = money_oracle.claims_of(records)
    freed: dict[int, list[Any]] = defaultdict(list)
    for claim in claims:
        freed[claim.freed].append(claim)
    out: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    billed, spent, now = dict[Any, Any](), dict[Any, int](), None
    for number, record in enumerate(records, 1):
        for claim in freed[number]:
            for hour, pieces in money_oracle.rated(claim, now, [(0, 0)], spent).items():
                row = out[claim.name, hour, number, hour * HOUR_US]
                for units, listed, cost in pieces:
                    row[1 if listed is None else 0] += units
                    row[2] += listed or 0
                    row[3] += cost
                billed[claim.name, hour] = row[2:]
        for e in record.events:
            if not isinstance(e, led.PricesApplied):
                continue
            now, spent = e.book, {}
            for claim in (c for c in claims if c.freed <= number):
                for hour, pieces in money_oracle.rated(claim, now, [(0, 0)], spent).items():
                    money = [sum(p[1] or 0 for p in pieces), sum(p[2] for p in pieces)]
                    was, billed[claim.name, hour] = billed[claim.name, hour], money
                    if money != was:
                        out[claim.name, hour, number, record.t_us] = [0, 0, money[0] - was[0], money[1] - was[1]]
    return {key: money_oracle.Posted(*row) for key, row in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--order", type=OrderRule, default=OrderRule.FIFO)
    parser.add_argument("--faults", type=float, default=0.5, help="of each node, a day")
    given = parser.parse_args()
    jobs, _ = read_file(given.trace, given.limit)
    rows = [
        WorkloadRow(
            j.line, j.key, j.submit_s, j.duration_s, j.devices, j.share_milli, j.team, j.types, name=j.name, user=j.user
        )
        for j in jobs
    ]
    records = ledger_of(rows, given.order, given.faults)
    books, meter = Accounts(), Meter()
    for seq, record in enumerate(records, 1):
        books.apply(record, seq)
        meter.apply(record, seq)
    ours = {account.value: units for account, units in books.balances().items() if units}
    found, wanted = list(charges(lambda: list(enumerate(records, 1)))), posted(records)
    differs = [
        what
        for what, same in (
            ("accounts", ours == summed(records) and sum(ours.values()) == books.capacity_unit_us()),
            ("charges", rows_of(found) == wanted),
            ("the meter", sum(meter.money.totals.values()) == sum(row.cost for row in wanted.values())),
        )
        if not same
    ]
    ends = Counter(e.outcome.value for r in records for e in r.events if isinstance(e, led.AttemptClosed))
    print(
        json.dumps(
            {
                "trace": given.trace.name, "jobs": len(rows), "attempts": ends.total(), "ends": ends, "rows": len(found),
                "corrections": sum(c.correction for c in found), "accounts": ours, "differs": differs,
            }
        )
    )  # fmt: skip
    if differs:
        raise SystemExit(f"{given.trace.name}: {', '.join(differs)} differ")


if __name__ == "__main__":
    main()
