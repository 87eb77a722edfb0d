"""Credits in bills: what the price book gives back, in money, with its cause; in exports, statements and seals."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from libs.cli.main import app
from libs.core.billing.charges import Charge, charges
from libs.core.billing.kept_bills import kept_bills
from libs.core.billing.metering import Meter
from libs.core.billing.pricing import Prices
from libs.core.billing.wall import DAY_US
from libs.core.state.formats import CREDITED
from schemas import inbox
from schemas.billing import BillQuery, Price, PriceBook
from schemas.ledger import DevicesFreed, InputRejected, PeriodClosed, PricesApplied
from schemas.prices import ClosedPeriod, CreditCause, ListRate, RateBook
from services.quota_billing.handlers import get_bill
from services.quota_billing.metrics import BillingMetrics
from tests.billing.focus_rules import problems
from tests.billing.ledgers import filed
from tests.core.builders import World
from tests.core.test_credits import lost_node

HOUR_US = 3_600_000_000
PAGE = Path(__file__).parents[2] / "docs/billing.md"
POLICY = {CreditCause.NODE_LOST: 1000, CreditCause.HARDWARE_FAULT: 500}


NO_PRICES = Prices(PriceBook(currency="XXX", prices=(Price(model="H200", micros_per_device_hour=1),)))


def book(credits: dict[CreditCause, int]) -> RateBook:
    return RateBook(
        version=1, currency="USD", prices=(ListRate(device="H100", micros=2_990_000, from_us=0),), credits=credits
    )


def priced(credits: dict[CreditCause, int]) -> World:
    """The example of docs/billing.md, in a pool with a price book."""
    world = lost_node()
    event = PricesApplied(book=book(credits), user="olga")
    world.records[0] = world.records[0].model_copy(update={"events": (event, *world.records[0].events)})
    return world


def charged(records: list[Any]) -> list[Charge]:
    return list(charges(lambda: list(enumerate(records, start=1))))


def test_the_example_of_the_documentation() -> None:
    found = charged(priced(POLICY).records)
    sums: Counter[str] = Counter()
    for charge in found:
        sums[charge.credit or "use"] += charge.amount.cost_micros
        assert (charge.amount.units == 0) is (charge.credit is not None)
        assert charge.credit is None or "silent for 31.0 s" in charge.why
    text = PAGE.read_text("utf-8").partition("### Worked example: credits in a bill")[2].partition("\n## ")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    told = {row[0]: int(row[-1].replace(" ", "")) for row in rows[2:]}
    assert told == {**sums, "all": sums.total()}


def test_a_price_of_the_past_corrects_what_was_given_back_with_what_was_billed() -> None:
    world = priced(POLICY)
    cheaper = RateBook(version=2, currency="USD", prices=(ListRate(device="H100", micros=1_495_000, from_us=0),))
    last = world.records[-1]
    world.records.append(last.model_copy(update={"events": (PricesApplied(book=cheaper, user="olga"),)}))
    sums: Counter[tuple[str, bool]] = Counter()
    for c in charged(world.records):
        sums[c.credit or "use", c.posted_seq == len(world.records)] += c.amount.cost_micros
    for what in ("use", "node-lost", "hardware-fault"):
        was, more = sums[what, False], sums[what, True]
        assert was != 0
        assert abs(2 * (was + more) - was) <= 4, (
            "half of the price, half of the credit, though the new book gives nothing back"
        )
    meter = Meter()
    for seq, record in enumerate(world.records, 1):
        meter.apply(record, seq)
    told = get_bill(meter, NO_PRICES, BillQuery(), "research")
    assert told.total_cost_micros == sum(sums.values())
    assert told.total_credit_micros == sum(n for (what, _), n in sums.items() if what != "use") < 0
    seen = {
        family.name: family.samples[0].value
        for family in BillingMetrics(lambda: meter, NO_PRICES).collect()
        if family.samples
    }
    assert (seen["baton_cost"], seen["baton_credits"]) == (
        (told.total_cost_micros - told.total_credit_micros) / 1e6,
        -told.total_credit_micros / 1e6,
    ), "a counter does not go back when a credit is given"
    (kept,) = kept_bills(meter.money, {("research", "2026-09")}, pool="p", upto_seq=meter.seq, head="ab")
    assert (kept.cost_micros, sum(r.credit_micros for r in kept.rows)) == (
        told.total_cost_micros,
        told.total_credit_micros,
    )


def test_a_seal_lays_what_was_posted_since_its_record_on_the_day_on_which_that_was() -> None:
    """The seal comes some records after the one that it knows, and use of the closed day was posted between."""
    world, (start, end) = priced(POLICY), (0, 0)
    freed = next(n for n, r in enumerate(world.records) if any(isinstance(e, DevicesFreed) for e in r.events))
    end = world.records[freed].t_us // DAY_US * DAY_US + DAY_US
    period = ClosedPeriod(from_us=start, to_us=end, upto_seq=freed, head="a" * 64, rows="b" * 64, currency="USD")
    last, later = world.records[-1], 3 * DAY_US
    seal = PeriodClosed(period=period, reason="invoiced", user="olga")
    world.records.append(last.model_copy(update={"events": (seal,), "t_us": last.t_us + later, "wall_us": None}))
    records = list(enumerate(world.records, 1))
    meter = Meter()
    for seq, record in records:
        meter.apply(record, seq)
    days = {day for rows in meter.money.rows.values() for day in rows}
    assert days == {c.billed_us // DAY_US for c in charges(lambda: records, [period])} == {end // DAY_US}
    assert days.isdisjoint(c.billed_us // DAY_US for c in charges(lambda: records))


def test_exports_statements_and_seals_have_them_with_their_cause(tmp_path: Path) -> None:
    ledger = filed(priced(POLICY).records, tmp_path / "ledger.jsonl")
    period = ("--ledger", str(ledger), "--from", "2026-09-01", "--to", "2026-10-01")

    def baton(*words: str) -> str:
        ran = CliRunner().invoke(app, list(words))
        assert ran.exit_code == 0, (ran.output, ran.exception)
        return ran.output

    for version in ("1.2", "1.3", "1.4"):
        path = tmp_path / f"{version}.csv"
        baton("bill", "export", str(path), *period, "--focus-version", version)
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[Any] = [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]
        assert problems(list(rows[0]), rows, version) == []
        credits = [row for row in rows if row["ChargeCategory"] == "Credit"]
        assert {row["x_CreditCause"] for row in credits} == {"node-lost", "hardware-fault"}
        assert all(float(row["BilledCost"] or 0) < 0 and row["ListCost"] == row["BilledCost"] for row in credits)
        assert "silent for 31.0 s" in (credits[0]["ChargeDescription"] or "")
        baton("bill", "verify", str(path), "--ledger", str(ledger))
    total = json.loads(baton("bill", "statement", *period, "-o", "json"))["total"]
    assert total["credit_micros"] < 0 == total["correction_micros"]
    assert total["cost_micros"] == sum(c.amount.cost_micros for c in charged(priced(POLICY).records))


def test_a_book_with_credits_waits_until_all_readers_know_them() -> None:
    (refused,) = World(allowed=CREDITED - 1).send(inbox.ApplyPrices(book=book(POLICY), user="olga"))
    assert isinstance(refused, InputRejected)
    assert refused.reason.startswith("credits: a reader")
    assert "credits" not in book({}).model_dump_json()
    with pytest.raises(ValueError, match="less than or equal to 1000"):
        book({CreditCause.NODE_LOST: 1001})
