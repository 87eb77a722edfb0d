"""The worked example of docs/billing.md, computed."""

from datetime import UTC, datetime
from pathlib import Path

from libs.core.billing.charges import charges
from libs.core.billing.focus import decimal_text, facts_of
from libs.core.billing.wall import HOUR_US, us_of
from libs.core.state.moments import text_of
from schemas import inbox
from schemas.prices import ListRate, RateBook
from tests.billing.ledgers import ask
from tests.core.builders import World, node

PAGE = Path(__file__).parents[2] / "docs/billing.md"
DECEMBER = us_of(datetime(2026, 12, 1, tzinfo=UTC))


def test_the_table_is_what_the_ledger_comes_to() -> None:
    w = World()
    w.now_us = DECEMBER - 24 * HOUR_US
    w.send(inbox.NodeRegistered(incarnation=1, inventory=node("n0", 1), lease_s=10))
    later = ListRate(device="H100", micros=2_790_000, from_us=DECEMBER)
    for version, november in ((1, 2_990_000), (2, 2_490_000)):
        before = ListRate(device="H100", micros=november, from_us=0, to_us=DECEMBER)
        w.now_us = max(w.now_us, DECEMBER + 2 * HOUR_US) if version == 2 else w.now_us
        w.send(inbox.ApplyPrices(book=RateBook(version=version, currency="USD", prices=(before, later))))
        if version == 1:
            w.now_us = DECEMBER - HOUR_US // 2 - 1000
            job = ask(w, "job", 1)
            w.started(job)
            w.now_us = w.now_us // HOUR_US * HOUR_US + 3 * HOUR_US // 2 - 1000
            w.released(job)
    found = []
    for charge in charges(lambda: list(enumerate(w.records, start=1))):
        told = facts_of(charge, "main", "USD")
        amount, posted = charge.amount, "book 2" if charge.correction else "the freeing"
        price = "" if charge.correction else decimal_text(amount.unit_micros * 10**6)
        found.append(
            [posted, text_of(amount.hour * HOUR_US), text_of(told.billing[0])[:7], amount.units, price, amount.cost_micros,
             "Correction" if told.before else ""]
        )  # fmt: skip
    lines = (
        PAGE.read_text("utf-8").partition("### Worked example: a price that changes")[2].partition("November stays")[0]
    )
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines() if line.startswith("|")
    ][2:]
    numbers = [[*row[:3], int(row[3].replace(" ", "")), row[4], int(row[5].replace(" ", "")), row[6]] for row in table]
    assert found == numbers
    assert sum(row[5] for row in numbers if row[2] == "2026-12") == 1_145_000
