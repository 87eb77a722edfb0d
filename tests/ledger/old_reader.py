"""What the reader of Baton 0.1.0 makes of a ledger. A script: run with that version's wheel as PYTHONPATH, and nothing
of the present code; it prints one JSON object. `python old_reader.py <nats url> <pool>`
"""

import asyncio
import json
import sys

import nats

import libs
from libs.core import fold, metering, projection, verify
from libs.core.model import State
from libs.ledger.chain import LedgerStopped
from libs.ledger.reader import LedgerReader


async def read(url: str, pool: str) -> dict:
    client = await nats.connect(url)
    state, rows, meter, checker = State(), projection.HotState(), metering.Meter(), verify.Checker()
    reader = LedgerReader(client.jetstream(), pool)
    stopped = None
    try:
        async for entries in reader.read_to(await reader.last_seq()):
            for entry in entries:
                checker.step(entry.seq, entry.record, entry.valid)
                if entry.valid:
                    fold.apply_record(state, entry.record)
                    rows.apply(entry.record, entry.seq)
                    meter.apply(entry.record, entry.seq)
    except LedgerStopped as error:
        stopped = [type(error).__name__, str(error)]
    await reader.close()
    await client.close()
    report = checker.finish()
    return {
        "code": str(libs.__path__[0]),
        "head": [reader.head.seq, reader.head.hash],
        "position": reader.position,
        "records": reader.records,
        "stopped": stopped,
        "violations": report.violations,
        "jobs": report.jobs,
        "milli_us": report.milli_us,
        "terminal": report.terminal,
        "unfinished": sorted(state.jobs),
        "grants": state.grants,
        "rows": {name: row["state"] for name, row in sorted(rows.jobs.items())},
        "sums": sorted([*key, units] for key, units in meter.sums().items()),
    }


print(json.dumps(asyncio.run(read(*sys.argv[1:]))))
