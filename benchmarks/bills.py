"""How long a bill for one team and one month takes out of ledgers of growing length, as quota_billing works it out: seconds of
the processor.

python -m benchmarks.bills [--attempts 1000 10000 100000 1000000] [--write]

The ledgers are those of `benchmarks.exports`: ten teams, two with contracts, an attempt comes to about ten hours of devices.
A bill by job of more rows than one answer has is refused, by their count; a bill of a zone when too many uses would be cut.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import chart, machine
from benchmarks.exports import records
from libs.bus.queries import InvalidQuestion
from libs.core.billing.metering import Meter
from libs.core.billing.pricing import Prices
from libs.core.billing.wall import month_us
from schemas.billing import BillQuery, PriceBook
from services.quota_billing.handlers import get_bill

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "img" / "bills.svg"
TEAM: Final = "team-2"
"""With a contract in tiers."""
AIM_S: Final = 2.0
_DAYS = {"from_day": "2026-01-01", "to_day": "2026-01-31"}
_FROM_US, _TO_US = month_us(2026, 1)
QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "team": {"group_by": "team", **_DAYS},
    "day": {"group_by": "day", **_DAYS},
    "device": {"group_by": "model", **_DAYS},
    "user": {"group_by": "user", **_DAYS},
    "job": {"group_by": "job", **_DAYS},
    "day, Berlin": {"group_by": "day", "from_us": _FROM_US, "to_us": _TO_US, "time_zone": "Europe/Berlin"},
}
_FILE = Prices(
    PriceBook.model_validate({"currency": "USD", "prices": [{"model": "H200", "micros_per_device_hour": 1}]})
)


def run(attempts: int) -> dict[str, Any]:
    """One size: events folded a second, and what each question takes, or that it is refused."""
    meter, events, spent = Meter(), 0, 0.0
    for seq, record in enumerate(records(attempts), start=1):
        began = time.process_time()
        meter.apply(record, seq)
        spent += time.process_time() - began
        events += len(record.events)
    bills: dict[str, Any] = {}
    for name, question in QUESTIONS.items():
        bills[name] = asked(meter, BillQuery.model_validate(question))
    result = {"attempts": attempts, "events": events, "events_per_s": round(events / spent), "bills": bills}
    print(json.dumps(result), flush=True)
    return result


def asked(meter: Meter, query: BillQuery) -> float | str:
    """Seconds, the least of three; "refused"."""
    took = []
    for _ in range(3):
        began = time.process_time()
        try:
            get_bill(meter, _FILE, query, TEAM)
        except InvalidQuestion:
            return "refused"
        took.append(time.process_time() - began)
    return round(min(took), 5)


def picture(runs: list[dict[str, Any]]) -> str:
    """Time against attempts, with the bar."""
    lines = [
        chart.Line(f"by {name}", [(r["attempts"], r["bills"][name]) for r in runs if r["bills"][name] != "refused"])
        for name in QUESTIONS
    ]
    bar = chart.Line("the bar", [(runs[-1]["attempts"], AIM_S)], dashed=True)
    panel = chart.log_log(0, 56, 620, 330, "Processor", axes=("attempts", "seconds"), lines=[*lines, bar])
    return chart.page(620, 400, "A bill for one team and month: growth with the attempts", [panel])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--write", action="store_true", help="keep the result and its picture")
    given = parser.parse_args()
    runs = [run(attempts) for attempts in given.attempts]
    if given.write:
        machine.write("bills", {"machine": machine.describe(), "aim_s": AIM_S, "runs": runs})
        PICTURE.write_text(picture(runs))


if __name__ == "__main__":
    main()
