"""What Baton 0.1.0 makes of ledgers in files, without a server. A script: run with that version's wheel as PYTHONPATH, and
nothing of the present code; it prints one JSON object. `python old_fold.py FOLDER`: a file per ledger, a record on each line.
"""

import json
import sys
from pathlib import Path

import libs
from libs.core import fold, metering, projection, verify
from libs.core.model import State
from schemas.ledger import LedgerRecord


def read(lines: list[str]) -> dict:
    state, rows, meter, checker = State(), projection.HotState(), metering.Meter(), verify.Checker()
    for seq, line in enumerate(lines, 1):
        record = LedgerRecord.model_validate_json(line)
        checker.step(seq, record, True)
        fold.apply_record(state, record)
        rows.apply(record, seq)
        meter.apply(record, seq)
    report = checker.finish()
    return {
        "violations": report.violations,
        "milli_us": report.milli_us,
        "unfinished": sorted(state.jobs),
        "sums": sorted([*key, units] for key, units in meter.sums().items()),
    }


found = {path.stem: read(path.read_text().splitlines()) for path in Path(sys.argv[1]).iterdir()}
print(json.dumps({"code": str(libs.__path__[0]), "ledgers": found}))
