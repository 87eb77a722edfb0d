"""Reads what a report needs: the whole ledger, folded and audited in one pass, and the bill. The operator's connection."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from libs.client import Baton
from libs.core.projections.verify import Verification
from libs.ledger.audited import AuditedLedger
from libs.ledger.reader import LedgerReader
from libs.report.accounts import AccountCurves
from libs.report.document import Report, Step
from libs.report.facts import Facts
from libs.report.figures import report
from libs.report.page import page
from schemas.billing import BillQuery, BillReply

_BILL_CATCHES_UP_S = 20.0


@dataclass(frozen=True, slots=True)
class RunStory:
    """A pool's whole past: `facts` for the picture, `audit` and `bill` for what must be true. All at one sequence when
    the pool is idle; while it works the bill may be ahead of the other two, and then `bill.equal` is false."""

    pool: str
    facts: Facts
    audit: Verification
    bill: BillReply
    curves: AccountCurves


async def collect(baton: Baton) -> RunStory:
    """The story of the pool of `baton`, an operator's connection.

    Raises LedgerStopped when the ledger cannot be read from its beginning, and what `Baton.bill` raises.
    """
    pool = baton.place.pool
    facts, curves = Facts(), AccountCurves()
    checker = AuditedLedger(curves.add)
    reader = LedgerReader(baton.nats.jetstream(), pool)

    async def read_on() -> int:
        async for entries in reader.read_to(await reader.last_seq()):
            for entry in entries:
                checker.step(entry.seq, entry.record, entry.valid)
                if entry.valid:
                    facts.apply(entry.record, entry.seq, entry.time_us)
        return reader.position

    try:
        bill = await _bill_at_least(baton, await read_on())
        await read_on()
    finally:
        await reader.close()
    audit = checker.finish()
    for posting in checker.accounts.open(audit.last_t_us):
        curves.add(posting)
    return RunStory(pool, facts, audit, bill, curves)


async def _bill_at_least(baton: Baton, seq: int) -> BillReply:
    """The bill by team, exact up to ledger sequence `seq` or a later one; the latest there is after 20 s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _BILL_CATCHES_UP_S
    while True:
        bill = await baton.bill(BillQuery(group_by="team"))
        if bill.ledger_seq >= seq or loop.time() > deadline:
            return bill
        await asyncio.sleep(0.1)


def write(story: RunStory, folder: Path, *, title: str, steps: Sequence[Step] = ()) -> tuple[Report, Path, Path]:
    """Writes `report.json` and `report.html` into `folder`; returns the numbers and both paths. Raises OSError."""
    numbers = report(story.facts, story.audit, story.bill, title=title, pool=story.pool, steps=steps)
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_html = folder / "report.json", folder / "report.html"
    as_json.write_text(numbers.model_dump_json(indent=2) + "\n", encoding="utf-8")
    as_html.write_text(page(story.facts, numbers, story.curves), encoding="utf-8")
    return numbers, as_json, as_html
