"""What is posted is what a brute force comes to: row by row, in every period of any zone, and in the sums of a bill."""

import os
import random
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from unittest.mock import patch
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.cli.bill_period import period_of
from libs.cli.bill_statement import grouped, grouping_of
from libs.core.billing import posted as posted_module
from libs.core.billing.accounts import Accounts
from libs.core.billing.charges import Charge, charges
from libs.core.billing.credits import Credits
from libs.core.billing.in_days import Days, bill_in_days
from libs.core.billing.metering import Meter
from libs.core.billing.pricing import Prices, at_least, bill_of_sums
from libs.core.billing.pricing import bill as bill_of
from libs.core.billing.sealing import Sealing
from libs.core.billing.use_lines import lines, money_rows
from libs.core.billing.wall import DAY_US, day_text, days_of_zone
from schemas.billing import BillQuery, Price, PriceBook
from schemas.ledger import LedgerRecord
from schemas.prices import CreditCause
from tests.core.money_oracle import Key, Name, Part, Posted, lost, posted, used
from tests.core.priced_ledgers import ZONES, PricedLedger

_FILE = Prices(PriceBook(currency="EUR", prices=(Price(model="H100", micros_per_device_hour=77),)))
LEDGERS = int(os.environ.get("RANDOM_LEDGERS", "40"))
"""How many random ledgers; 10,000 take twelve minutes of a processor."""


def rows_of(found: list[Charge]) -> dict[tuple[tuple[str, int, str], int, int, int], Posted]:
    """The charges as the oracle tells them."""
    out: dict[tuple[tuple[str, int, str], int, int, int], list[int]] = {}
    for charge in found:
        use, amount = charge.use, charge.amount
        key = ((use.job_id, use.attempt, use.device), amount.hour, charge.posted_seq, charge.billed_us)
        row = out.setdefault(key, [0, 0, 0, 0])
        row[1 if amount.quote is None else 0] += amount.units
        row[2] += amount.list_micros
        row[3] += amount.cost_micros
    return {key: Posted(*row) for key, row in out.items()}


def check(ledger: PricedLedger) -> None:
    records = ledger.records
    everything = list(charges(lambda: list(enumerate(records, start=1)), ledger.closed))
    found = [charge for charge in everything if charge.credit is None]
    told, credits = posted(records, ledger.closed)
    assert rows_of(found) == told
    back: Counter[tuple[Key, str]] = Counter()
    for charge in everything:
        if charge.credit is not None:
            name = (charge.use.job_id, charge.use.attempt, charge.use.device)
            back[(name, charge.amount.hour, charge.posted_seq, charge.billed_us), charge.credit.value] += (
                charge.amount.cost_micros
            )
    assert {key: micros for key, micros in back.items() if micros} == credits
    assert lost_time(records) == {name: parts for name, (_, parts) in lost(records).items() if parts}
    sealing = Sealing()
    for charge in everything:
        sealing.take(charge)
    units = sum(total.units for total in sealing.totals) + sum(sealing.unpriced.values())
    assert units == used(records), "what is used is billed or told to be unpriced"
    months(found, told, ledger.random.choice(ZONES))
    bill(ledger, everything)


def lost_time(records: list[LedgerRecord]) -> dict[Name, list[Part]]:
    """What credits are for, joined where one part goes on in the next."""
    books, credits, out = Accounts(), Credits(), dict[Name, list[Part]]()
    for seq, record in enumerate(records, start=1):
        for credit in credits.apply(record, seq, books.apply(record, seq)):
            p = credit.posting
            parts = out.setdefault((p.job_id, p.attempt, p.device), [])
            on = parts and parts[-1][0] == credit.cause and parts[-1][2] == p.wall_start_us
            start_us = parts.pop()[1] if on else p.wall_start_us
            parts.append((credit.cause.value, start_us, p.wall_end_us))
    return out


def months(found: list[Charge], told: dict[tuple[tuple[str, int, str], int, int, int], Posted], name: str) -> None:
    """Each calendar month and day of a zone, as `baton bill --from` cuts it, has the money whose moment is in it there."""
    zone = ZoneInfo(name)
    for form, flag in (("%Y-%m", "month"), ("%Y-%m-%d", "day")):
        wanted: Counter[str] = Counter()
        for (_, _, _, billed_us), row in told.items():
            moment = datetime.fromtimestamp(billed_us // 1_000_000, UTC).astimezone(zone)
            wanted[moment.strftime(form)] += row.cost
        for period in sorted(wanted):
            start, end = period_of(period, None, zone, 0)
            assert sum(c.amount.cost_micros for c in found if start <= c.billed_us < end) == wanted[period], (
                flag,
                period,
            )


def bill(ledger: PricedLedger, found: list[Charge]) -> None:
    """What `baton bill` and kept bills say of each job and day is what was posted, also after a restart anywhere."""
    meter, restart = Meter(), len(ledger.records) // 2
    for seq, record in enumerate(ledger.records, start=1):
        meter.apply(record, seq)
        if seq == restart:
            meter = Meter.load(meter.dump())
    wanted: dict[tuple[str, str, int, str, str], list[int]] = {}
    for charge in found:
        use, amount, day = charge.use, charge.amount, charge.billed_us // DAY_US
        row = wanted.setdefault((use.team, use.job_id, day, use.device_kind, use.priority_class), [0, 0, 0])
        for place, more in enumerate(
            (amount.cost_micros, amount.list_micros, amount.cost_micros if charge.credit else 0)
        ):
            row[place] += more
    ours: dict[tuple[str, str, int, str, str], list[int]] = {}
    for team, (job_id, _, day, kind, klass, _), (cost, listed, _, credit) in meter.money.all_rows():
        row = ours.setdefault((team, job_id, day, kind, klass), [0, 0, 0])
        for place, more in enumerate((cost, listed, credit)):
            row[place] += more
    assert {key: row for key, row in ours.items() if any(row)} == {key: row for key, row in wanted.items() if any(row)}
    if ledger.version and meter.money.book is not None:
        summed(ledger, meter)
        in_any_days(ledger, meter, found)


def in_any_days(ledger: PricedLedger, meter: Meter, found: list[Charge]) -> None:
    """Of any span, on the days of any zone, each grouping is a statement's: sums of an export's rows; and all are one sum."""
    chance = random.Random(len(found))
    name = chance.choice(ZONES)
    moments = [c.billed_us for c in found] or [0]
    span = sorted(chance.choice(moments) + chance.choice((0, 1, -(10**9), 10**10)) for _ in range(2))
    start, end = max(0, span[0]), max(0, span[1]) + 1
    days = Days(days_of_zone(name), start, end)
    rows = [c for c in found if start <= c.billed_us < end]
    totals = set()
    for by, ours in (
        ("team", "team"), ("user", "user"), ("job", "job"), ("device", "model"), ("class", "class"), ("day", "day"),
    ):  # fmt: skip
        told = bill_in_days(meter, _FILE, BillQuery(group_by=ours), None, days)
        sums: dict[str, list[int]] = {}
        for row in told.rows:
            one = sums.setdefault(row.key, [0, 0])
            one[0] += row.cost_micros
            one[1] += row.credit_micros
        stated = {
            k: [v.cost_micros, v.credit_micros] for k, v in grouped(rows, grouping_of(by, ZoneInfo(name), {})).items()
        }
        assert {k: v for k, v in sums.items() if any(v)} == {k: v for k, v in stated.items() if any(v)}, (by, name)
        totals.add((told.total_cost_micros, told.total_milli_us, told.total_credit_micros))
    assert len(totals) == 1


def summed(ledger: PricedLedger, meter: Meter) -> None:
    """A bill that walks no rows is the one that walks them all: of any days, with what is held, before and after a restart."""
    days = sorted({row.day for row in meter.usage()}) or [0]
    chance = random.Random(len(ledger.records))
    for books in (meter, Meter.load(meter.dump())):
        for by in ("team", "day", "model"):
            start, end = sorted(day_text(chance.choice(days) + chance.randint(-1, 1)) for _ in range(2))
            until = chance.choice((None, ledger.t_us + chance.randrange(10**11)))
            query = BillQuery(group_by=by, from_day=start, to_day=end, open_until_us=until)
            for team in (None, "red"):
                walked = bill_of(books.usage(team, open_until_us=until), _FILE, query, books.seq, "USD")
                assert bill_of_sums(books, query, team) == walked, query
        for by in ("job", "attempt"):
            query = BillQuery(group_by=by, from_day=start, to_day=end)
            assert at_least(books, query, None) == len(bill_of(books.usage(), _FILE, query, books.seq, "USD").rows), (
                query
            )


@given(st.integers(0, 2**63))
@settings(max_examples=LEDGERS, deadline=None)
def test_random_ledgers_cost_what_a_brute_force_comes_to(seed: int) -> None:
    """Also where lines and rows are packed soon, as those of long ledgers are."""
    with (
        patch.object(lines, "FRESH", (1, 3, lines.FRESH)[seed % 3]),
        patch.object(posted_module, "FRESH_ROWS", (2, 5, money_rows.FRESH_ROWS)[seed // 3 % 3]),
    ):
        check(PricedLedger(seed))


def test_random_ledgers_have_what_they_are_for() -> None:
    seen: Counter[str] = Counter(dict.fromkeys(CreditCause, 0))
    for seed in range(30):
        ledger = PricedLedger(seed)
        found = list(charges(partial(enumerate, ledger.records, 1), ledger.closed))
        seen += Counter(c.credit.value for c in found if c.credit)
        seen["credits that a later book takes back"] += sum(
            c.credit is not None and c.amount.cost_micros > 0 for c in found
        )
        seen["corrections"] += sum(c.correction and c.credit is None for c in found)
        seen["late"] += sum(c.late for c in found)
        seen["tiers"] += sum(c.amount.tier > 0 for c in found)
        seen["unpriced"] += sum(c.amount.quote is None for c in found)
        seen["contracts"] += sum(c.amount.quote is not None and c.amount.quote.contract != "" for c in found)
        seen["slices"] += sum(":" in c.use.device_kind for c in found)
        seen["priced later"] += sum(not c.correction and c.posted_seq != c.use.to_seq for c in found)
    assert {name for name, count in seen.items() if count < 10} == set(), seen
